"""`prep quarantine`: parses, calls, prints; no logic."""

from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import JsonOption, complete_runs
from pipeline.core.words import pluralise

if TYPE_CHECKING:
    from pipeline.quarantine.access import QuarantinedDocument

_app = typer.Typer(no_args_is_help=True, help="List, read, release or delete quarantined texts.")

RunArgument = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="a finished run directory", autocompletion=complete_runs),
]
KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="a document key, or the beginning of one")
]
ByOption = Annotated[str, typer.Option(metavar="NAME", help="your name; it is recorded")]
WhatArgument = Annotated[
    str, typer.Argument(metavar="KEY|WORK", help="a document key, or the id of a work")
]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="why; the reason is recorded")]


def register(app: typer.Typer) -> None:
    """Add `quarantine` to the `prep` app."""
    app.add_typer(_app, name="quarantine")


def _today() -> date:
    return datetime.now().astimezone().date()


@_app.command("list", epilog="Example: `prep quarantine list runs/pile`")
def list_quarantine(directory: RunArgument, as_json: JsonOption = False) -> None:
    """List the documents in quarantine, without their text; those past their date are due."""
    from rich.table import Table

    from pipeline.commands.terminal import format_cell, out, print_json
    from pipeline.quarantine.access import list_quarantined, to_json_data

    found = list_quarantined(directory)
    if as_json:
        today = _today()
        return print_json([{**to_json_data(about), "due": about.is_due(today)} for about in found])
    columns = ("document", "source", "file:line", "rule", "bytes", "since", "until", "kept by")
    table, today = Table(*columns), _today()
    for about in found:
        text = "purged" if about.purged else f"{about.text_bytes:,}"
        since, until = (str(day or "") for day in (about.since, about.until))
        due = f"{until}, due" if about.is_due(today) else until
        cells = (
            about.key,
            about.source,
            f"{about.file}:{about.line}",
            about.rule,
            text,
            since,
            due,
            about.held,
        )
        table.add_row(*(format_cell(cell) for cell in cells))
    return out.print(table)


@_app.command(epilog="Example: `prep quarantine show runs/pile 550f72 --by 'J. Doe'`")
def show(directory: RunArgument, key: KeyArgument, by: ByOption) -> None:
    """Show one document with its text. That is recorded as an event."""
    from pipeline.commands.terminal import print_line
    from pipeline.quarantine.access import show_quarantined

    about, text = show_quarantined(directory, key, by)
    _print_about(about)
    for line in text.splitlines():
        print_line(line)


def _print_about(about: "QuarantinedDocument") -> None:
    from pipeline.commands.terminal import print_facts

    print_facts(
        (
            ("document", about.key),
            ("source", about.source),
            ("place", f"{about.file}:{about.line}"),
            ("rule", about.rule),
            ("reason", about.reason),
            ("evidence", ", ".join(about.evidence)),
            ("kept by", about.held),
        )
    )


@_app.command(epilog="Example: `prep quarantine export runs/pile --out held.jsonl --by 'J. Doe'`")
def export(
    directory: RunArgument,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="the .jsonl file to write; it must not exist")
    ],
    by: ByOption,
) -> None:
    """Write all quarantined documents with their texts to a file, one record per line."""
    from pipeline.commands.terminal import print_line
    from pipeline.quarantine.access import export_quarantined

    print_line(f"{pluralise(export_quarantined(directory, out, by), 'record')}: {out}")


@_app.command(
    epilog="Example: `prep quarantine release runs/pile 550f72 --by 'J. Doe' --note 'own work'`"
)
def release(
    directory: RunArgument,
    key: KeyArgument,
    by: ByOption,
    note: Annotated[str, typer.Option(metavar="TEXT", help="why; the reason is recorded")],
) -> None:
    """Record the review `allow` for a document; the next `prep run` then keeps it."""
    from pipeline.commands.terminal import print_line
    from pipeline.quarantine.access import release_quarantined

    about = release_quarantined(directory, key, by, note)
    print_line(f"{about.key}: allowed by {by}; the next `prep run` takes it out of quarantine")


@_app.command(
    epilog="Examples:\n\n`prep quarantine purge runs/pile --by 'J. Doe'`\n\n"
    "`prep quarantine purge runs/pile --older-than 90 --by 'J. Doe'`\n\n"
    "`prep quarantine purge runs/pile --document 550f72… --by 'J. Doe'`"
)
def purge(
    directory: RunArgument,
    by: ByOption,
    older_than: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="DAYS",
            help="delete what has been in quarantine for longer [default: screen.quarantine_days]",
        ),
    ] = None,
    document: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="delete the text of this document, repeatable"),
    ] = None,
) -> None:
    """Delete quarantined texts: those that are due, those of some age, or those of some documents.

    Keys, hashes, rules and evidence stay. Documents on hold are not deleted.
    """
    from pipeline.commands.terminal import print_line
    from pipeline.quarantine.access import purge_documents as purge_texts

    done = purge_texts(directory, tuple(document or ()), older_than, by, _today())
    if done is None:
        return print_line("nothing to purge")
    return print_line(f"{done.id}: {pluralise(done.value['documents']['count'], 'text')} deleted")


@_app.command(epilog="Example: `prep quarantine hold runs/pile w1 --by 'J. Doe' --reason 'case 7'`")
def hold(directory: RunArgument, what: WhatArgument, by: ByOption, reason: ReasonOption) -> None:
    """Set a hold: the document or work must not be purged or taken down until it is lifted."""
    from pipeline.commands.terminal import print_line
    from pipeline.takedown.holds import set_hold

    set_hold(directory, what, by, reason)
    print_line(f"{what}: on hold")


@_app.command(
    epilog="Example: `prep quarantine unhold runs/pile w1 --by 'J. Doe' --reason 'case closed'`"
)
def unhold(directory: RunArgument, what: WhatArgument, by: ByOption, reason: ReasonOption) -> None:
    """Lift the hold on a document or work."""
    from pipeline.commands.terminal import print_line
    from pipeline.takedown.holds import lift_hold

    lift_hold(directory, what, by, reason)
    print_line(f"{what}: no longer on hold")
