"""`prep export`: parses, calls, prints; no logic."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.core.errors import ConfigError, escape_text
from pipeline.options import JsonOption, WorkersOption, complete_runs

if TYPE_CHECKING:
    from pipeline.export import ExportedSplit, ExportOptions


def register(app: typer.Typer) -> None:
    """Add `export` to the `prep` app."""
    app.command(
        epilog="Examples:\n\n`prep export runs/quickstart --out text`\n\n"
        "`prep export runs/pile --out text --format parquet --split train --shard-size 512MB`"
    )(export)


def export(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="a finished run directory", autocompletion=complete_runs
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="new directory; the records go to DIR/records/SPLIT/"),
    ],
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="jsonl.zst, jsonl.gz, jsonl or parquet")
    ] = "jsonl.zst",
    split: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="only this split; repeatable")
    ] = None,
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="about how much text is in one file, uncompressed")
    ] = "256 MB",
    shuffle: Annotated[
        bool, typer.Option(help="write in the order of the token stream, or in that of the input")
    ] = True,
    fields: Annotated[
        str, typer.Option(metavar="NAMES", help="fields of a record, separated by commas")
    ] = "text,meta,key,source,licence",
    workers: WorkersOption = None,
    dry_run: Annotated[bool, typer.Option(help="show what would be written and stop")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the text of a run in training order.

    Only kept documents are written, cut and repeated as for the tokens. `prep run` can read the
    records as its input. Finished work is reused; the same command resumes an interrupted export.
    """
    from pipeline.export import export as export_run
    from pipeline.export import forecast
    from pipeline.progress import Progress
    from pipeline.terminal import print_json, print_line

    request = _request(form, split, shard_size, shuffle, fields)
    if dry_run:
        splits = forecast(directory, request)
        if as_json:
            return print_json([asdict(found) for found in splits])
        return _print_splits(splits)
    done = export_run(directory, out, request, workers, Progress())
    if as_json:
        value = {"directory": str(done.directory), "reused": done.reused,
                 "splits": [asdict(found) for found in done.splits]}  # fmt: skip
        return print_json(value)
    _print_splits(done.splits)
    if done.reused:
        print_line("everything was up to date")
    return print_line(f"outputs: {done.directory}/  (records/, manifest.json)")


def _request(
    form: str, splits: list[str] | None, shard_size: str, shuffle: bool, fields: str
) -> "ExportOptions":
    from pydantic import TypeAdapter, ValidationError

    from dedup.presets import check_choice
    from pipeline.core.config_model import Bytes
    from pipeline.core.strict_yaml import loads_value
    from pipeline.export import LARGEST_FILE, SMALLEST_FILE, ExportOptions
    from pipeline.stages.export_format import FIELDS, FORMATS

    try:
        check_choice("format", form, FORMATS)
    except ValueError as error:
        raise ConfigError(f"--format: {error}") from None
    try:
        size = TypeAdapter(Bytes).validate_python(loads_value(shard_size))
    except ValidationError:
        size = -1
    if not SMALLEST_FILE <= size <= LARGEST_FILE:
        raise ConfigError(
            f"--shard-size: expected 1 kB to 2 GB, such as 256MB; got {escape_text(shard_size, 60)}"
        )
    wanted = [name.strip() for name in fields.split(",")]
    unknown = [name for name in wanted if name not in FIELDS]
    if unknown or "text" not in wanted:
        raise ConfigError(
            f"--fields: expected text and any of {', '.join(FIELDS[1:])}; got "
            f"{escape_text(fields, 60)}"
        )
    chosen = tuple(name for name in FIELDS if name in wanted)
    names = tuple(splits) if splits else None
    return ExportOptions(next(f for f in FORMATS if f == form), names, chosen, size, shuffle)


def _print_splits(splits: "tuple[ExportedSplit, ...]") -> None:
    from rich.table import Table

    from pipeline.core.figures import format_bytes
    from pipeline.terminal import out

    table = Table("split", title="exported text")
    for name in ("documents", "text", "files", "on disk"):
        table.add_column(name, justify="right")
    for found in splits:
        disk = "" if found.bytes is None else format_bytes(found.bytes)
        table.add_row(
            found.name, f"{found.documents:,}", format_bytes(found.text_bytes),
            f"{found.files:,}", disk,
        )  # fmt: skip
    out.print(table, soft_wrap=True)
