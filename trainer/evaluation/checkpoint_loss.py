"""The loss of a checkpoint on a split of a prep run (`train evaluate`), and tables of what
evaluations measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from pipeline.commands import terminal
from pipeline.core.errors import ConfigError, InputError
from pipeline.hdf5.foreign.dataset import holds_shards, open_any
from pipeline.hdf5.format import VSL
from pipeline.tokenizers.definition import GPT2, load_definition
from trainer.config import EvalInput
from trainer.data import open_evaluation
from trainer.evaluation.loss import Evaluation, Evaluator
from trainer.generation.loaded import find_checkpoint, load_model
from wafer_backend.compiled import BackendConfig, CompiledModule, Target


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """What the command line asked for; `path`: a model directory or checkpoint; `data`: a prep
    run directory or a directory of shards."""

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
    """Measure the loss; nothing is written. Raises PrepError."""
    saved = find_checkpoint(request.path)
    loaded = load_model(saved)
    directory = split_directory(request.data, request.split)
    model = loaded.config
    dataset = open_any(directory, model.max_position_embeddings, model.vocab_size)
    is_vsl = dataset.layout is VSL
    section = EvalInput(data_dir=directory, batch_size=request.batch_size, use_vsl=is_vsl)
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
    named = request.reference_tokenizer
    reference = None
    if named is not None:
        reference = load_definition(GPT2 if str(named) == GPT2 else named)
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
        reference=reference,
    )
    measured = evaluator.measure()
    return LossMeasurement(saved.step, saved.hash, source.datasets[0].dataset_hash, measured)


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
        splits = ", ".join(sorted(d.name for d in (data / "hdf5").iterdir() if d.is_dir()))
        raise ConfigError(f"--split {split}: not in {data}, which has {splits or 'no splits'}")
    return directory


def print_losses(evaluation: Evaluation) -> None:
    """One line a source, and one for all."""
    amounts = {**evaluation.per_source, "all": evaluation.total}
    has_bytes = evaluation.total.bits_per_byte is not None
    has_reference = evaluation.total.reference_loss is not None
    heads = ["source", "labels", "loss", "perplexity"] + ["bits/byte"] * has_bytes
    heads += ["reference tokens", "loss/reference token"] * has_reference
    rows = []
    for name, amount in amounts.items():
        row = [name, f"{amount.n_counted:,}", f"{amount.loss:.5f}", f"{amount.perplexity:.4g}"]
        row += [_number(amount.bits_per_byte)] * has_bytes
        if has_reference:
            row += [f"{amount.reference_tokens:,}", _number(amount.reference_loss)]
        rows.append(row)
    print_numbers(heads, rows)


def print_numbers(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows of text, which may come from data; all columns but the first are numbers."""
    table = Table(box=None, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(terminal.format_cell, row))
    terminal.out.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


def print_scores(results: Mapping[str, Mapping[str, float | int | None]]) -> None:
    """Name -> (column -> value), one line a name."""
    heads = list(dict.fromkeys(key for row in results.values() for key in row))
    rows = [[name, *(_cell(row.get(head)) for head in heads)] for name, row in results.items()]
    print_numbers(["", *heads], rows)


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
