"""What a run starts from: nothing, a checkpoint of its own, or one of another run.

- `model_dir` holds a checkpoint: the run goes on from the newest, whatever started it.
- `--checkpoint_path` of the same run elsewhere: it goes on from there, in `model_dir`.
- `--checkpoint_path` with `--load_checkpoint_states model` or `model,optimizer`: a new run from
  step 0 that begins with those weights (fine-tuning); run.json says where from.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.core.order import Schedule, samples_before_step
from pipeline.core.words import pluralise
from trainer.config import ModelConfig, Params, RunConfig
from trainer.config.model_parameters import shapes
from trainer.data import SampleSource, join_generations
from trainer.loop import sparsity
from trainer.runs import checkpoint, record
from trainer.runs.checkpoint import Checkpoint
from trainer.runs.console import Say
from wafer_backend.compiled import CompiledModule
from wafer_backend.sparse import Group

STATES = ("model", "optimizer")
_TENSORS_NAMED = 3
ORIGIN = "initialized_from"
_OF_TRAINING = (
    "dropout_rate",
    "embedding_dropout_rate",
    "attention_dropout_rate",
    "residual_dropout_rate",
    "embedding_initializer",
    "initializer",
    "output_layer_initializer",
    "loss_scaling",
    "loss_weight",
    "mixed_precision",
    "fp16_type",
    "max_position_embeddings",
    "tgt_max_position_embeddings",
)
"""Keys of `model` that may differ between a run and the one its weights come from; shapes are
checked apart."""


@dataclass(frozen=True)
class RunStart:
    """`checkpoint`: None for nothing to start from; `states`: None to resume all of it, else the
    parts that a new run begins with."""

    checkpoint: Checkpoint | None = None
    states: tuple[str, ...] | None = None

    @property
    def step(self) -> int:
        """The last step that is done."""
        return 0 if self.checkpoint is None or self.states is not None else self.checkpoint.step

    @property
    def origin(self) -> dict[str, Any]:
        """What run.json and checkpoints say of where the weights of a new run come from."""
        if self.checkpoint is None:
            return {}
        if self.states is None:
            inherited = self.checkpoint.state.get(ORIGIN)
            return {} if inherited is None else {ORIGIN: inherited}
        came_from = {
            "path": str(self.checkpoint.path.resolve()),
            "step": self.checkpoint.step,
            "hash": self.checkpoint.hash,
            "states": list(self.states),
        }
        return {ORIGIN: came_from}


def choose_start(model_dir: Path, run: RunConfig, say: Say) -> RunStart:
    """What to start from. Raises ConfigError where options contradict one another or what is in
    `model_dir`."""
    path, states = run.checkpoint_path, _states(run)
    own = checkpoint.find_newest(model_dir)
    if path is None and own is None:
        return RunStart()
    if path is None or (own is not None and states is not None):
        assert own is not None
        if path is not None and states is not None:
            _check_origin(model_dir, own, path, states)
        if not run.autoload_last_checkpoint:
            raise ConfigError(
                f"{model_dir} holds {own.name}, but runconfig.autoload_last_checkpoint is false: "
                "give --checkpoint_path to continue from a checkpoint, or another --model_dir to "
                "start again"
            )
        return RunStart(checkpoint.open_checkpoint(own))
    inside = path.resolve().is_relative_to(model_dir.resolve())
    other = checkpoint.open_checkpoint(path)
    if own is not None and checkpoint.open_checkpoint(own).step > other.step:
        if inside or not run.autoload_last_checkpoint:
            raise ConfigError(
                f"{model_dir} holds {own.name}, newer than {path}; "
                "use another --model_dir to start again from there"
            )
        say(f"{model_dir} has continued from {path} to {own.name}")
        return RunStart(checkpoint.open_checkpoint(own))
    return RunStart(other, states)


def _states(run: RunConfig) -> tuple[str, ...] | None:
    path = run.checkpoint_path
    if run.load_checkpoint_states in (None, "all"):
        if path is not None and run.disable_strict_checkpoint_loading:
            raise ConfigError(
                "--disable_strict_checkpoint_loading is for a new run that begins with weights of "
                "another one: add --load_checkpoint_states model"
            )
        return None
    if path is None:
        raise ConfigError(
            "--load_checkpoint_states needs --checkpoint_path, the checkpoint to load them from"
        )
    words = (run.load_checkpoint_states or "").split(",")
    states = tuple(word.strip() for word in words if word.strip())
    if "model" not in states or set(states) - set(STATES):
        raise ConfigError(
            f"--load_checkpoint_states {run.load_checkpoint_states!r}: expected model, or "
            "model,optimizer, or nothing for all of a checkpoint (order of the data and step too)"
        )
    return tuple(state for state in STATES if state in states)


def _check_origin(model_dir: Path, own: Path, path: Path, states: tuple[str, ...]) -> None:
    """Refuse to go on with a run that began with other weights than those asked for."""
    origin = checkpoint.open_checkpoint(own).state.get(ORIGIN)
    now = {"path": str(path.resolve()), "states": list(states)}
    before = None if origin is None else {key: origin[key] for key in now}
    if before != now:
        began = "from scratch" if before is None else f"with {before['states']} of {before['path']}"
        raise ConfigError(
            f"{model_dir} holds a run that began {began}, not with {now['states']} of "
            f"{now['path']}; use another --model_dir"
        )


def join_new_generations(start: RunStart, source: SampleSource, schedule: Schedule) -> SampleSource:
    """The source with the generations that are new since the checkpoint at the place where they
    join; unchanged for a new run, which reads all from the start."""
    if start.checkpoint is None or start.states is not None:
        return source
    earlier = start.checkpoint.state.get("datasets", [])
    return join_generations(source, earlier, samples_before_step(start.step + 1, schedule))


def check_start(
    start: RunStart, model_dir: Path, now: dict[str, Any], source: SampleSource
) -> None:
    """Raise ConfigError naming the field in which the run in `model_dir`, or the checkpoint to
    resume, is another one than `now`."""
    before = record.read_run_record(model_dir)
    if before is not None:
        record.check_same_run(model_dir, before, now, source)
    if start.checkpoint is not None and start.states is None:
        compared = now.keys() | {record.SPARSITY}
        state = {key: value for key, value in start.checkpoint.state.items() if key in compared}
        record.check_same_run(start.checkpoint.path, state, now, source)


def check_architecture(start: RunStart, now: dict[str, Any], *, strict: bool) -> None:
    """Raise ConfigError naming a key in which the model of the weights computes otherwise, or
    when the optimizer state is that of another optimizer."""
    if start.checkpoint is None or start.states is None:
        return
    if "optimizer" in start.states:
        records = (start.checkpoint.state, now)
        kinds = [record.complete_record(each)["optimizer"]["optimizer_type"] for each in records]
        before, after = ({"optimizer_type": kind} for kind in kinds)
        if change := record.difference({"optimizer": before}, {"optimizer": after}):
            raise ConfigError(
                f"{start.checkpoint.path} holds the state of another optimizer: {change}; use "
                "--load_checkpoint_states model"
            )
    if not strict:
        return
    models = [record.complete_record(state)["model"] for state in (start.checkpoint.state, now)]
    before, after = ({k: v for k, v in m.items() if k not in _OF_TRAINING} for m in models)
    if change := record.difference({"model": before}, {"model": after}):
        tensors = _other_tensors(start.checkpoint, now["model"])
        mend = (
            "give the section model of that run"
            if tensors
            else "give the earlier value; to train with these weights all the same, give "
            "--disable_strict_checkpoint_loading"
        )
        raise ConfigError(
            f"{start.checkpoint.path} holds weights of another model: {change}{tensors}; {mend}"
        )


def _other_tensors(saved: Checkpoint, model: dict[str, Any]) -> str:
    theirs = {name: tuple(weight.shape) for name, weight in checkpoint.read_weights(saved).items()}
    ours = shapes(ModelConfig.model_validate_json(json.dumps(model)))
    differing = [n for n in {**ours, **theirs} if theirs.get(n) != ours.get(n)]
    if not differing:
        return ""
    named = ", ".join(
        f"{name} ({_shape(theirs.get(name))} there, {_shape(ours.get(name))} here)"
        for name in differing[:_TENSORS_NAMED]
    )
    return (
        f"; {pluralise(len(differing), 'different tensor')}: "
        f"{named}{', …' * (len(differing) > _TENSORS_NAMED)}"
    )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else " x ".join(map(str, shape))


def load_start(
    start: RunStart, params: Params, compiled: CompiledModule, *, strict: bool, say: Say
) -> Group | None:
    """Bring the model to where it starts; returns the masks of sparse weights, None for a dense
    run. Raises IntegrityError for a damaged file, and what MemoryX raises; nothing is changed
    then."""
    saved = start.checkpoint
    if saved is not None and start.states is None:
        masks = sparsity.put_masks(
            params, compiled
        )  # first, or the first masks would cut the weights
        checkpoint.load_into(saved, compiled.memoryx)
        if masks is not None:
            sparsity.restore_masks(masks, checkpoint.read_masks(saved), saved.state[sparsity.STATE])
        if compiled.loss_scale is not None:
            compiled.loss_scale.load_state_dict(saved.state["loss_scale"])
        say(f"Loaded checkpoint {saved.path} (step {saved.step})")
        return masks
    if saved is not None:
        _load_states(saved, start.states or (), compiled, strict=strict, say=say)
    masks = sparsity.put_masks(params, compiled)  # masks may follow from the weights that are there
    _tell_of_masks(saved, masks, say)
    return masks


def _load_states(
    saved: Checkpoint, states: tuple[str, ...], compiled: CompiledModule, *, strict: bool, say: Say
) -> None:
    weights, own = checkpoint.read_weights(saved), compiled.memoryx.parameters
    if not strict:
        for name in own.keys() - weights.keys():
            say(f"{name} is not in the checkpoint and keeps its initial value")
        for name in weights.keys() - own.keys():
            say(f"{name} of the checkpoint is not in the model and is left out")
        weights = {name: weights.get(name, parameter.detach()) for name, parameter in own.items()}
    optimizer = None
    if "optimizer" in states:
        optimizer = {n: f for n, f in checkpoint.read_optimizer(saved).items() if n in own}
    compiled.memoryx.load(weights, optimizer)
    say(f"A new run, with {' and '.join(states)} of {saved.path} (step {saved.step})")


def _tell_of_masks(saved: Checkpoint | None, masks: Group | None, say: Say) -> None:
    was_sparse = saved is not None and record.SPARSITY in saved.state
    if masks is None:
        if was_sparse:
            say("Its pruned weights start as zeros and are trained: this run is dense")
        return
    pruned, elements = sparsity.pruned_share(masks)
    loaded = (
        "; the first masks of this run are applied to the loaded weights"
        if saved is not None
        else ""
    )
    say(f"Sparsity: {pruned:,} of {elements:,} weights of sparse matrices are pruned{loaded}")
