"""The functions of `trainer` as users call them: what `train` does, with Python values."""

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.api import AnyPath, local_path, local_path_or_none, run_path, run_path_or_none
from pipeline.core.errors import ConfigError
from trainer.config import Params, ParamsLike, load_params
from trainer.errors import as_prep_errors, interruption_by
from trainer.evaluation.loss import LossMeasurement, LossOptions, evaluate_checkpoint
from trainer.generation import text
from trainer.generation.loaded import LoadedModel, find_checkpoint, load_model, tokenizer_for
from trainer.generation.text import GeneratedText, GenerationOptions, Sampling
from trainer.loop import ranks
from trainer.loop.callbacks import Callback, check_callbacks
from trainer.loop.options import TrainOptions, resolve_params
from trainer.loop.run import run_training
from trainer.runs import checkpoint as checkpoints
from trainer.runs import metrics, record
from trainer.runs.console import Pulse, print_fitted_line
from wafer_backend.compiled import Target
from wafer_backend.transports import TransportName

_TOKENIZER_HINT = (
    "give tokenizer=RUN (the prep run directory of its data) or tokenizer='tokenizer.json'"
)


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A training run that reached its last step, or that a callback stopped.

    model_dir: its directory.
    last_step: that step, counted from 1.
    checkpoint: the directory of the newest checkpoint.
    loss, eval_loss: of the last step and of the last evaluation, in nats per label; None where
        there was none.
    stopped: the reason of the callback that stopped it before its last step, None without one.
    """

    model_dir: Path
    last_step: int
    checkpoint: Path | None
    loss: float | None
    eval_loss: float | None
    stopped: str | None = None

    def metrics(self) -> list[dict[str, Any]]:
        """Return what every step logged, such as `step`, `loss` and `learning_rate`: the lines of
        metrics.jsonl."""
        return _lines(self.model_dir / metrics.TRAINING)

    def evaluations(self) -> list[dict[str, Any]]:
        """Return what every evaluation measured, such as `step`, `loss` and `per_source`: the
        lines of eval.jsonl."""
        return _lines(self.model_dir / metrics.EVALUATION)


def train(
    *,
    params: ParamsLike | None = None,
    data: AnyPath | None = None,
    model_dir: AnyPath = "model_dir",
    mode: Literal["train", "train_and_eval"] | None = None,
    target: Target = "CSX",
    num_csx: int | None = None,
    transport: TransportName | None = None,
    num_wgt_servers: int | None = None,
    num_steps: int | None = None,
    max_steps: int | None = None,
    num_epochs: int | None = None,
    eval_steps: int | None = None,
    seed: int | None = None,
    checkpoint_path: AnyPath | None = None,
    load_checkpoint_states: str | None = None,
    disable_strict_checkpoint_loading: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> TrainingResult:
    """Train a model, as `train`; the same call resumes from the newest checkpoint.

    params: a params.yaml, the name of a shipped one such as `tiny`, a mapping with the keys of such
        a file, or a `Params`; by default `laptop`, fitted to `data`.
    data: a run directory of `prep`, or its URL in a bucket, a directory of .h5 shards, or a prep
        config, which is run first; by default what the params name.
    model_dir: where checkpoints, logs and the report go.
    mode: whether to evaluate too; by default where there is something to evaluate on.
    target: `CSX`, the emulated cluster; `CPU` or `GPU`, with weights that stay there.
    num_csx: emulated systems; losses are equal to the bit for any number.
    transport: how the roles of the cluster talk.
    num_wgt_servers: processes that hold weights.
    num_steps, max_steps: the last step, counted from the start of the run.
    num_epochs: passes over the data, in place of steps.
    eval_steps: batches of one evaluation; by default all.
    seed: of weights and order.
    checkpoint_path: a checkpoint that a new run begins with.
    load_checkpoint_states: what is taken from it, such as `model,optimizer`.
    disable_strict_checkpoint_loading: take what fits of it.
    callbacks: what the run reports to, in this order; they may evaluate, save or stop.
    progress: print the lines of `train`.

    Returns the directory, last step, checkpoint and losses in nats. A signal stops after a
    checkpoint, with KeyboardInterrupt or SystemExit. Raises ConfigError, InputError for data,
    IntegrityError for damage, ResourceError, TrainingError for a step or a callback that
    failed, LostRankError.
    """
    request = TrainOptions(
        target=target,
        params=_params(params),
        model_dir=local_path(model_dir),
        mode=mode,
        num_csx=num_csx,
        transport=transport,
        num_wgt_servers=num_wgt_servers,
        num_steps=num_steps,
        max_steps=max_steps,
        num_epochs=num_epochs,
        eval_steps=eval_steps,
        seed=seed,
        data=run_path_or_none(data),
        checkpoint_path=local_path_or_none(checkpoint_path),
        load_checkpoint_states=load_checkpoint_states,
        disable_strict_checkpoint_loading=disable_strict_checkpoint_loading,
        callbacks=check_callbacks(callbacks),
    )
    with contextlib.ExitStack() as entered:
        say = entered.enter_context(Pulse(print_fitted_line)) if progress else _say_nothing
        with as_prep_errors():
            if ranks.is_launcher(resolve_params(request)):
                raise ConfigError(
                    "transport: distributed starts its ranks with the command line of `train`; "
                    "use that command, or start this program with torchrun"
                )
        code = run_training(request, say)
    if code:
        raise interruption_by(code)
    return _result(request.model_dir)


def evaluate(
    path: AnyPath,
    data: AnyPath,
    *,
    split: str = "validation",
    target: Target = "CPU",
    batch_size: int = 8,
    threads: int = 1,
    eval_steps: int | None = None,
    reference_tokenizer: AnyPath | None = None,
    progress: bool = False,
) -> LossMeasurement:
    """Measure the loss of a checkpoint on a split of a run, as `train evaluate`; writes nothing.

    path: a checkpoint, or a model directory for its last one.
    data: a run directory of `prep`, or its URL in a bucket, or a directory of .h5 shards.
    split: the split to measure, such as `validation` or `test`.
    target: where to run, as for `train`.
    batch_size: rows per batch.
    threads: CPU threads.
    eval_steps: batches to read; by default all.
    reference_tokenizer: `gpt2` or a tokenizer.json: also measure per token of this one.
    progress: print notes.

    Returns losses in nats per label, overall and by source, and which checkpoint and data set they
    are of. Raises ConfigError, InputError for data, IntegrityError for damage.
    """
    _check_least(batch_size=batch_size, threads=threads, eval_steps=eval_steps)
    request = LossOptions(
        path=local_path(path),
        data=run_path(data),
        split=split,
        target=target,
        batch_size=batch_size,
        threads=threads,
        eval_steps=eval_steps,
        reference_tokenizer=local_path_or_none(reference_tokenizer),
    )
    with as_prep_errors():
        return evaluate_checkpoint(request, print_fitted_line if progress else _say_nothing)


def load(
    path: AnyPath, *, tokenizer: AnyPath | None = None, device: Literal["cpu", "cuda"] = "cpu"
) -> LoadedModel:
    """Load a trained model with its tokenizer, to write text with or to look at.

    path: a checkpoint, or a model directory for its last one.
    tokenizer: tokenizer.json of the model, `gpt2`, or the prep run directory of its data; by
        default the one in the model directory, else GPT-2's for a vocabulary of 50,257 ids.
    device: where it computes.

    Returns `model` (fp32, in evaluation mode), `tokenizer`, `config`, `checkpoint` and `device`.
    Raises ConfigError where there is no checkpoint, tokenizer or device, InputError where weights
    and config disagree, IntegrityError for damage.
    """
    saved = find_checkpoint(local_path(path))
    vocabulary = tokenizer_for(local_path_or_none(tokenizer), saved, hint=_TOKENIZER_HINT)
    return replace(load_model(saved, device), tokenizer=vocabulary)


def generate(
    model: LoadedModel | AnyPath,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: str | Sequence[str] = (),
) -> list[GeneratedText]:
    """Continue prompts with a trained model, as `train generate`; the same call gives the same
    texts. An encoder with a decoder tells the spans that are missing at <extra_id_0>, ... instead.

    model: what `load` returned, or the path of a checkpoint or model directory.
    prompts: one text or several; an empty one starts a new document.
    max_new_tokens: tokens to write at most for each.
    temperature: randomness; 0 always takes the likeliest token.
    top_k: choose among so many likeliest tokens only.
    top_p: choose among the likeliest tokens that together have this probability, 0 to 1.
    seed: of the random choices, the same for every prompt.
    stop: texts that end a continuation, before themselves.

    Returns a continuation for each prompt, in their order: `text`, `ids` and what ended it. Raises
    ConfigError for options that cannot be meant, and the errors of `load`.
    """
    _check_least(max_new_tokens=max_new_tokens)
    sampling = Sampling(temperature, top_k, top_p)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    wish = GenerationOptions(max_new_tokens, sampling, seed, stops)
    loaded = model if isinstance(model, LoadedModel) else load(model)
    vocabulary = loaded.tokenizer
    if vocabulary is None:
        vocabulary = tokenizer_for(None, loaded.checkpoint, hint=_TOKENIZER_HINT)
    texts = [prompts] if isinstance(prompts, str) else prompts
    return [text.generate_text(loaded, vocabulary, prompt, wish) for prompt in texts]


def _params(params: ParamsLike | None) -> Path | Params | None:
    """A file stays one, so that errors name it."""
    if params is None or isinstance(params, Params):
        return params
    return Path(params) if isinstance(params, str | os.PathLike) else load_params(params)


def _result(model_dir: Path) -> TrainingResult:
    newest = checkpoints.find_newest(model_dir)
    steps = _lines(model_dir / metrics.TRAINING)
    measured = _lines(model_dir / metrics.EVALUATION)
    stopped = (record.read_run_record(model_dir) or {}).get(record.STOPPED)
    return TrainingResult(
        model_dir=model_dir,
        last_step=steps[-1]["step"] if steps else 0,
        checkpoint=newest,
        loss=steps[-1]["loss"] if steps else None,
        eval_loss=measured[-1]["loss"] if measured else None,
        stopped=None if stopped is None else stopped["reason"],
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _check_least(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} {value}: expected an integer of at least 1")


def _say_nothing(line: str) -> None:
    """The lines of `train` go to the log of the run only."""
