"""`prep trace`: its options, and one call that answers the one question that is asked."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.options import JsonOption, RunArgument, read_count
from pipeline.commands.usage import commands
from pipeline.core.errors import ConfigError, InputError

_MOST_TEXT_BYTES = 64 << 20

CountOption = Annotated[int | None, typer.Option(parser=read_count)]


def trace(
    directory: RunArgument,
    train: Path | None = None,
    step: CountOption = None,
    checkpoint: Path | None = None,
    file: Path | None = None,
    row: CountOption = None,
    tokens: str | None = None,
    document: str | None = None,
    work: str | None = None,
    isbn: str | None = None,
    reg: str | None = None,
    title: str | None = None,
    text: str | None = None,
    registry: Path | None = None,
    limit: Annotated[int | None, typer.Option(min=0)] = None,
    as_json: JsonOption = False,
) -> None:
    """Trace training data: from a step, checkpoint, row or token back to documents, or forward.

    Forward is from a document, work or text to rows, steps and checkpoints. Keys, places and
    numbers can be given as pages and commands print them.

    --train MODEL_DIR: model_dir of a training run
    --registry DIR: registry of works [default: the one the run was screened with]
    --limit N: list at most N [default: 20, all with --json]

    Backwards:
    --step N: a step, counted from 1; with --train
    --checkpoint PATH: a checkpoint, with --train
    --file SHARD[ROW]: an HDF5 shard of the run, and a row in it
    --row N: a row of that shard, counted from 0
    --tokens A[:B]: tokens A to B - 1 of that row, or of a corpus shard

    Forwards:
    --document KEY|FILE:LINE|FILE|SHARD[ROW]: a document, or all of a raw file or of a row, written
        as commands print them
    --work ID: a work of the registry
    --isbn NUMBER: an ISBN
    --reg NUMBER: a registration number such as TX 1-234-567
    --title: a title of the registry
    --text FILE|-: a text: finds the same text, near-duplicates and passages of it

    Examples, backwards to documents:
    prep trace runs/pile --train out --step 57
    prep trace runs/pile --train out --checkpoint step_0000500
    prep trace runs/pile --file hdf5/train/examples_000000.h5 --row 3 --tokens 100:200
    prep trace runs/corpus --file hdf5/train/examples_000000.h5 --tokens 123456
    Forwards, to rows, steps and checkpoints:
    prep trace runs/pile --document 550f72 --train out
    prep trace runs/pile --document web/a.jsonl:17
    prep trace runs/pile --work c0ffee00c0de --train out --json
    prep trace runs/pile --isbn 978-0-306-40615-7 --registry registries/claims
    prep trace runs/pile --text excerpt.txt --train out
    A step listed here read a row: that is exposure, not influence or memorisation.
    """
    from pipeline.api import questions
    from pipeline.commands.places import show_checkpoint, show_forward, show_spans
    from pipeline.engine.progress import Progress
    from pipeline.lineage.checkpoint_trace import trace_checkpoint
    from pipeline.lineage.exposure import trace_documents
    from pipeline.lineage.trace import read_elsewhere, trace_step
    from pipeline.runs.references import split_row

    if file is not None and row is None and (place := split_row(str(file))) is not None:
        file, row = Path(place[0]), place[1]
    values: dict[str, Any] = {
        "step": step,
        "checkpoint": checkpoint,
        "file": file,
        "document": document,
        "work": work,
        "isbn": isbn,
        "reg": reg,
        "title": title,
        "text": text,
    }
    name = questions.choose_question(values, train, row, tokens, mark="--")
    if checkpoint is not None and train is not None:
        return show_checkpoint(trace_checkpoint(directory, train, checkpoint), limit, as_json)
    if step is not None and train is not None:
        spans = trace_step(directory, train, step)
        return show_spans(spans, limit, as_json, read_elsewhere(directory, train, step))
    if file is not None:
        between = None if tokens is None else _range(tokens)
        return show_spans(questions.find_spans(directory, file, row, between), limit, as_json)
    value = values[name] if text is None else _read(text)
    documents = questions.find_documents(directory, name, value, registry, Progress())
    answer = trace_documents(directory, documents.rows, train, documents.because)
    return show_forward(answer, documents.notes, limit, as_json)


register = commands(trace)


def _range(tokens: str) -> tuple[int, int]:
    from pipeline.runs.references import read_number

    first, mark, stop = tokens.replace("-", ":").partition(":")
    try:
        return read_number(first), read_number(stop) if mark else read_number(first) + 1
    except ValueError:
        raise typer.BadParameter(f"--tokens {tokens}: expected A or A:B, such as 100:200") from None


def _read(name: str) -> str:
    """The text in a file, or on standard input. Raises ConfigError, InputError."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(_MOST_TEXT_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(_MOST_TEXT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--text {name}: cannot read ({error.strerror})") from error
    if len(data) > _MOST_TEXT_BYTES:
        raise InputError(f"--text {name}: expected at most {_MOST_TEXT_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"--text {name}: not UTF-8 (byte {error.start})") from error
