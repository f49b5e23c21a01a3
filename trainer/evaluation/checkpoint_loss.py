"""The loss of a checkpoint on a split of a prep run (`train evaluate`)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError, InputError
from pipeline.hdf5.foreign_dataset import holds_shards, open_any
from pipeline.hdf5.format import VSL
from pipeline.tokenizers.definition import GPT2, load_definition
from trainer.config import EvalInput
from trainer.data import open_evaluation
from trainer.evaluate import Evaluation, Evaluator
from trainer.evaluation.loaded import find_checkpoint, load_model
from wafer_backend.compiled import BackendConfig, CompiledModule, Target


@dataclass(frozen=True)
class LossOptions:
    """What the command line asked for.

    `path`: a model directory or checkpoint; `data`: a prep run directory or a directory of shards;
    `batch_size`: sequences at once; `eval_steps`: batches, None for all of the split;
    `reference_tokenizer`: of the losses in another vocabulary, `gpt2` or a file.
    """

    path: Path
    data: Path
    split: str = "validation"
    target: Target = "CPU"
    batch_size: int = 8
    threads: int = 1
    eval_steps: int | None = None
    reference_tokenizer: Path | None = None


@dataclass(frozen=True)
class LossMeasurement:
    """A loss, of which checkpoint (step and content hash) and on which data set."""

    step: int
    checkpoint_hash: str
    dataset_hash: str
    evaluation: Evaluation


def evaluate_checkpoint(request: LossOptions, say: Callable[[str], None]) -> LossMeasurement:
    """Measure it; nothing is written. Raises PrepError."""
    found = find_checkpoint(request.path)
    loaded = load_model(found)
    directory = split_directory(request.data, request.split)
    model = loaded.config
    dataset = open_any(directory, model.max_position_embeddings, model.vocab_size)
    section = EvalInput(
        data_dir=directory,
        batch_size=request.batch_size,
        use_vsl=dataset.layout is VSL,
    )
    source = open_evaluation(section, loaded.config)
    compiled = CompiledModule(
        loaded.model.requires_grad_(True),
        BackendConfig(
            target=request.target,
            micro_batch_size=request.batch_size,
            threads=request.threads,
            precision=loaded.config.precision,
        ),
    )
    wanted = request.reference_tokenizer
    evaluator = Evaluator(
        compiled=compiled,
        source=source,
        model_dir=request.path,
        batch_size=request.batch_size,
        micro_batch_size=request.batch_size,
        max_batches=request.eval_steps,
        between_leaves=lambda: None,
        writes=False,
        say=say,
        reference=None
        if wanted is None
        else load_definition(GPT2 if str(wanted) == GPT2 else wanted),
    )
    measured = evaluator.measure()
    return LossMeasurement(found.step, found.hash, source.datasets[0].dataset_hash, measured)


def split_directory(data: Path, split: str) -> Path:
    """The directory of shards of a split. Raises ConfigError when there is no such split."""
    if holds_shards(data):
        return data
    if not (data / "hdf5").is_dir():
        missing = "" if data.is_dir() else "no such directory; "
        raise InputError(
            f"--data {data}: {missing}expected a prep run directory with hdf5/ inside, or a "
            "directory of .h5 files"
        )
    directory = data / "hdf5" / split
    if not directory.is_dir():
        known = ", ".join(sorted(d.name for d in (data / "hdf5").iterdir() if d.is_dir()))
        raise ConfigError(f"--split {split}: not in {data}, which has {known or 'no splits'}")
    return directory
