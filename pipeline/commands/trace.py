"""`prep trace`: parses, calls, prints; no logic."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import JsonOption, complete_runs, read_count
from pipeline.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from pipeline.explain.find import FoundDocuments
    from pipeline.lineage.trace import TokenSpan

_QUESTIONS = (
    "--step",
    "--checkpoint",
    "--file",
    "--document",
    "--work",
    "--isbn",
    "--reg",
    "--title",
    "--text",
)
_BACKWARDS = "Backwards"
_FORWARDS = "Forwards"
_MOST_TEXT_BYTES = 64 << 20

_EXAMPLES = (
    "Examples, backwards to documents:\n\n"
    "`prep trace runs/pile --train out --step 57`\n\n"
    "`prep trace runs/pile --train out --checkpoint step_0000500`\n\n"
    "`prep trace runs/pile --file hdf5/train/examples_000000.h5 --row 3 --tokens 100:200`\n\n"
    "`prep trace runs/corpus --file hdf5/train/examples_000000.h5 --tokens 123456`\n\n"
    "Forwards, to rows, steps and checkpoints:\n\n"
    "`prep trace runs/pile --document 550f72 --train out`\n\n"
    "`prep trace runs/pile --document web/a.jsonl:17`\n\n"
    "`prep trace runs/pile --work c0ffee00c0de --train out --json`\n\n"
    "`prep trace runs/pile --isbn 978-0-306-40615-7 --registry registries/claims`\n\n"
    "`prep trace runs/pile --text excerpt.txt --train out`\n\n"
    "A step listed here read a row: that is exposure, not influence or memorisation."
)


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """The options of one call that ask something; exactly one of them is given."""

    step: int | None
    checkpoint: Path | None
    file: Path | None
    document: str | None
    work: str | None
    isbn: str | None
    reg: str | None
    title: str | None
    text: str | None


def register(app: typer.Typer) -> None:
    """Add `trace` to the `prep` app."""
    app.command(no_args_is_help=True, epilog=_EXAMPLES)(trace)


def trace(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="a run directory", autocompletion=complete_runs),
    ],
    train: Annotated[
        Path | None, typer.Option(metavar="MODEL_DIR", help="model_dir of a training run")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            help="a step, counted from 1; with --train",
            parser=read_count,
            metavar="N",
            rich_help_panel=_BACKWARDS,
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="a checkpoint, with --train", rich_help_panel=_BACKWARDS),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="SHARD[ROW]",
            help="an HDF5 shard of the run, and a row in it",
            rich_help_panel=_BACKWARDS,
        ),
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(
            help="a row of that shard, counted from 0",
            parser=read_count,
            metavar="N",
            rich_help_panel=_BACKWARDS,
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="A[:B]",
            rich_help_panel=_BACKWARDS,
            help="tokens A to B - 1 of that row, or of a corpus shard",
        ),
    ] = None,
    document: Annotated[
        str | None,
        typer.Option(
            metavar="KEY|FILE:LINE|FILE|SHARD[ROW]",
            rich_help_panel=_FORWARDS,
            help="a document, or all of a raw file or of a row, written as commands print them",
        ),
    ] = None,
    work: Annotated[
        str | None,
        typer.Option(metavar="ID", help="a work of the registry", rich_help_panel=_FORWARDS),
    ] = None,
    isbn: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="an ISBN", rich_help_panel=_FORWARDS)
    ] = None,
    reg: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="a registration number such as TX 1-234-567",
            rich_help_panel=_FORWARDS,
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="a title of the registry", rich_help_panel=_FORWARDS)
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            rich_help_panel=_FORWARDS,
            help="a text: finds the same text, near-duplicates and passages of it",
        ),
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="registry of works [default: the one the run was screened with]"
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="list at most N [default: 20, all with --json]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Trace training data: from a step, checkpoint, row or token back to documents, or forward.

    Forward is from a document, work or text to rows, steps and checkpoints. Keys, places and
    numbers can be given as pages and commands print them.
    """
    from pipeline.commands.places import show_checkpoint, show_forward, show_spans
    from pipeline.runs.references import split_row

    if file is not None and row is None and (named := split_row(str(file))) is not None:
        file, row = Path(named[0]), named[1]
    asked = TraceOptions(
        step=step,
        checkpoint=checkpoint,
        file=file,
        document=document,
        work=work,
        isbn=isbn,
        reg=reg,
        title=title,
        text=text,
    )
    _check(asked, train, row, tokens)
    if checkpoint is not None and train is not None:
        from pipeline.lineage.checkpoint_trace import trace_checkpoint

        return show_checkpoint(trace_checkpoint(directory, train, checkpoint), limit, as_json)
    if step is not None and train is not None:
        from pipeline.lineage.trace import read_elsewhere, trace_step

        spans = trace_step(directory, train, step)
        return show_spans(spans, limit, as_json, read_elsewhere(directory, train, step))
    if file is not None:
        return show_spans(_spans(directory, file, row, tokens), limit, as_json)
    from pipeline.lineage.exposure import trace_documents

    found = _found(directory, asked, registry)
    answer = trace_documents(directory, found.rows, train, found.because)
    return show_forward(answer, found.notes, limit, as_json)


def _check(asked: TraceOptions, train: Path | None, row: int | None, tokens: str | None) -> None:
    given = [
        name
        for name, value in zip(_QUESTIONS, vars(asked).values(), strict=True)
        if value is not None
    ]
    if len(given) != 1:
        what = f"got {', '.join(given)}" if given else "got none"
        raise typer.BadParameter(f"expected one of {', '.join(_QUESTIONS)}; {what}")
    if given[0] in ("--step", "--checkpoint") and train is None:
        raise typer.BadParameter(f"{given[0]} needs --train MODEL_DIR")
    if asked.file is None and (row is not None or tokens is not None):
        raise typer.BadParameter("--row and --tokens need --file")
    if asked.file is not None and row is None and tokens is None:
        raise typer.BadParameter("--file needs --row, or --tokens for a corpus")


def _spans(directory: Path, file: Path, row: int | None, tokens: str | None) -> "list[TokenSpan]":
    from pipeline.lineage.trace import trace_row, trace_tokens

    if tokens is None:
        assert row is not None, "_check refuses this"
        return trace_row(directory, file, row)
    first, stop = _range(tokens)
    return trace_tokens(directory, file, first, stop, row)


def _range(tokens: str) -> tuple[int, int]:
    from pipeline.runs.references import read_number

    first, mark, stop = tokens.replace("-", ":").partition(":")
    try:
        return read_number(first), read_number(stop) if mark else read_number(first) + 1
    except ValueError:
        raise typer.BadParameter(f"--tokens {tokens}: expected A or A:B, such as 100:200") from None


def _found(directory: Path, asked: TraceOptions, registry: Path | None) -> "FoundDocuments":
    from pipeline.api.questions import find_asked
    from pipeline.engine.progress import Progress

    return find_asked(
        directory,
        document=asked.document,
        work=asked.work,
        isbn=asked.isbn,
        reg=asked.reg,
        title=asked.title,
        text=None if asked.text is None else _read(asked.text),
        registry=registry,
        progress=Progress(),
    )


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
