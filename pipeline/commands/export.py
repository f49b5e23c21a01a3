"""`prep export` and `prep disclose`, which hand a finished run on: its text, and the documents
about it. Options, one call each, printed results.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import JsonOption, WorkersOption, complete_runs
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import pluralise

if TYPE_CHECKING:
    from pipeline.stories.export import ExportedSplit, ExportOptions


def register(app: typer.Typer) -> None:
    """Add `export` and `disclose` to the `prep` app."""
    app.command(
        epilog="Examples:\n\n`prep disclose --about-template > about.yaml`\n\n"
        "`prep disclose runs/quickstart --out disclosure --about about.yaml`\n\n"
        "`prep disclose runs/quickstart --out audit --only audit --internal`"
    )(disclose)
    app.command(
        epilog="Examples:\n\n`prep export runs/quickstart --out text`\n\n"
        "`prep export runs/pile --out text --format parquet --split train --shard-size 512MB`"
    )(export)


def disclose(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="a finished run directory", autocompletion=complete_runs
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="OUT", help="directory to write the documents to")
    ] = None,
    about: Annotated[
        Path | None, typer.Option(metavar="ABOUT.yaml", help="what only people know about the data")
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="write only these: audit, card, croissant, eu, california, spdx, separated by "
            "commas [default: all]",
        ),
    ] = "",
    public: Annotated[
        bool,
        typer.Option(
            "--public/--internal",
            help="show passages, titles and names as hashes (public), or in full (internal)",
        ),
    ] = True,
    about_template: Annotated[
        bool, typer.Option(help="print a commented about.yaml and stop")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write documents about a run: audit report, dataset card, Croissant, SPDX, disclosure drafts.

    The drafts are of the EU summary of training content and of the California AB 2013 disclosure.
    All facts are from the tables of the run and ABOUT.yaml; what is in neither is written as
    TODO(what is needed). A match is a text overlap, no match is not evidence of absence, and none
    of this is legal advice.
    """
    from pipeline.commands.terminal import print_json, print_line

    if about_template:
        from pipeline.disclosure.about import about_template as template

        return typer.echo(template(), nl=False)
    if directory is None or out is None:
        raise typer.BadParameter("expected a run directory and --out, or --about-template")
    from pipeline.disclosure.publish import write_disclosure as write

    names = tuple(name.strip() for name in only.split(",") if name.strip())
    done = write(directory, out, about, names, public=public)
    if as_json:
        files = [{"file": file, "bytes": size} for file, size in done.files]
        return print_json(
            {
                "directory": str(done.directory),
                "edition": done.edition,
                "files": files,
                "todo": list(done.todos),
            }
        )
    for file, size in done.files:
        print_line(f"{done.directory / file}  ({pluralise(size, 'byte')})")
    print_line(f"edition: {done.edition}")
    if done.todos:
        print_line(
            f"{pluralise(len(done.todos), 'item')} to be filled in: " + ", ".join(done.todos)
        )
    return None


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
    from pipeline.commands.terminal import print_json, print_line
    from pipeline.engine.progress import Progress
    from pipeline.stories.export import export_run, forecast_export

    request = _request(form, split, shard_size, shuffle, fields)
    if dry_run:
        splits = forecast_export(directory, request)
        if as_json:
            return print_json([asdict(found) for found in splits])
        return _print_splits(splits)
    done = export_run(directory, out, request, workers, Progress())
    if as_json:
        value = {
            "directory": str(done.directory),
            "reused": done.reused,
            "splits": [asdict(found) for found in done.splits],
        }
        return print_json(value)
    _print_splits(done.splits)
    if done.reused:
        print_line("everything was up to date")
    return print_line(f"outputs: {done.directory}/  (records/, manifest.json)")


def _request(
    form: str, splits: list[str] | None, shard_size: str, shuffle: bool, fields: str
) -> "ExportOptions":
    from pydantic import TypeAdapter, ValidationError

    from pipeline.config.model import Bytes
    from pipeline.config.yaml import loads_value
    from pipeline.stages.records import FIELDS, choose_form
    from pipeline.stories.export import LARGEST_FILE, SMALLEST_FILE, ExportOptions

    chosen_form = choose_form(form)
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
    return ExportOptions(chosen_form, names, chosen, size, shuffle)


def _print_splits(splits: "tuple[ExportedSplit, ...]") -> None:
    from rich.table import Table

    from pipeline.commands.terminal import out
    from pipeline.core.words import format_bytes

    table = Table("split", title="exported text")
    for name in ("documents", "text", "files", "on disk"):
        table.add_column(name, justify="right")
    for found in splits:
        disk = "" if found.bytes is None else format_bytes(found.bytes)
        table.add_row(
            found.name,
            f"{found.documents:,}",
            format_bytes(found.text_bytes),
            f"{found.files:,}",
            disk,
        )
    out.print(table, soft_wrap=True)
