"""`prep quarantine`: what is in quarantine, shown, exported, released, held or deleted."""

from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import JsonOption, OneGenerationArgument
from pipeline.commands.terminal import print_facts, print_json, print_line, show_table
from pipeline.commands.usage import group
from pipeline.core.words import pluralise

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="a document key, or the beginning of one")
]
WhatArgument = Annotated[
    str, typer.Argument(metavar="KEY|WORK", help="a document key, or the id of a work")
]


def _today() -> date:
    return datetime.now().astimezone().date()


def list_(directory: OneGenerationArgument, as_json: JsonOption = False) -> None:
    """List the documents in quarantine, without their text; those past their date are due.

    Example: prep quarantine list runs/pile
    """
    from pipeline.takedown.quarantine import list_quarantined, to_json_data

    documents, today = list_quarantined(directory), _today()
    if as_json:
        return print_json([{**to_json_data(d), "due": d.is_due(today)} for d in documents])
    rows = []
    for about in documents:
        text = "purged" if about.purged else f"{about.text_bytes:,}"
        since, until = (str(day or "") for day in (about.since, about.until))
        due = f"{until}, due" if about.is_due(today) else until
        place = f"{about.file}:{about.line}"
        rows.append((about.key, about.source, place, about.rule, text, since, due, about.held))
    if not rows:
        return print_line("no document is in quarantine")
    columns = ("document", "source", "file:line", "rule", "bytes", "since", "until", "kept by")
    return show_table(columns, rows)


def show(directory: OneGenerationArgument, key: KeyArgument, by: str) -> None:
    """Show one document with its text. That is recorded as an event.

    Example: prep quarantine show runs/pile 550f72 --by 'J. Doe'
    """
    from pipeline.takedown.quarantine import show_quarantined

    about, text = show_quarantined(directory, key, by)
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
    for line in text.splitlines():
        print_line(line)


def export(directory: OneGenerationArgument, out: Path, by: str) -> None:
    """Write all quarantined documents with their texts to a file, one record per line.

    --out FILE: the .jsonl file to write; it must not exist

    Example: prep quarantine export runs/pile --out held.jsonl --by 'J. Doe'
    """
    from pipeline.takedown.quarantine import export_quarantined

    print_line(f"{pluralise(export_quarantined(directory, out, by), 'record')}: {out}")


def release(directory: OneGenerationArgument, key: KeyArgument, by: str, note: str) -> None:
    """Record the review `allow` for a document; the next `prep run` then keeps it.

    Example: prep quarantine release runs/pile 550f72 --by 'J. Doe' --note 'own work'
    """
    from pipeline.takedown.quarantine import release_quarantined

    about = release_quarantined(directory, key, by, note)
    print_line(f"{about.key}: allowed by {by}; the next `prep run` takes it out of quarantine")


def purge(
    directory: OneGenerationArgument,
    by: str,
    older_than: Annotated[int | None, typer.Option(min=0)] = None,
    document: list[str] | None = None,
) -> None:
    """Delete quarantined texts: those that are due, those of some age, or those of some documents.

    Keys, hashes, rules and evidence stay. Documents on hold are not deleted.

    --older-than DAYS: delete what has been in quarantine for longer
        [default: screen.quarantine_days]
    --document KEY: delete the text of this document, repeatable

    Examples:
    prep quarantine purge runs/pile --by 'J. Doe'
    prep quarantine purge runs/pile --older-than 90 --by 'J. Doe'
    prep quarantine purge runs/pile --document 550f72… --by 'J. Doe'
    """
    from pipeline.takedown.quarantine import purge_documents

    event = purge_documents(directory, tuple(document or ()), older_than, by, _today())
    if event is None:
        return print_line("nothing to purge")
    return print_line(f"{event.id}: {pluralise(event.value['documents']['count'], 'text')} deleted")


def hold(directory: OneGenerationArgument, what: WhatArgument, by: str, reason: str) -> None:
    """Set a hold: the document or work must not be purged or taken down until it is lifted.

    Example: prep quarantine hold runs/pile w1 --by 'J. Doe' --reason 'case 7'
    """
    from pipeline.takedown.claims import set_hold

    set_hold(directory, what, by, reason)
    print_line(f"{what}: on hold")


def unhold(directory: OneGenerationArgument, what: WhatArgument, by: str, reason: str) -> None:
    """Lift the hold on a document or work.

    Example: prep quarantine unhold runs/pile w1 --by 'J. Doe' --reason 'case closed'
    """
    from pipeline.takedown.claims import lift_hold

    lift_hold(directory, what, by, reason)
    print_line(f"{what}: no longer on hold")


register = group(
    "quarantine",
    """List, read, release or delete quarantined texts.

    --by NAME: your name; it is recorded
    --note TEXT: why; the reason is recorded
    --reason TEXT: why; the reason is recorded
    """,
    list_,
    show,
    export,
    release,
    purge,
    hold,
    unhold,
)
