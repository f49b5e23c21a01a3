"""`prep registry`: its options, one call each, and works and imports on the terminal."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands import options
from pipeline.commands.terminal import out as console
from pipeline.commands.terminal import print_facts, print_json, print_line, show_table
from pipeline.commands.usage import group
from pipeline.core.words import pluralise, require_choice

if TYPE_CHECKING:
    from pipeline.screening.registry.finding import WorkChange
    from pipeline.screening.registry.importing import ImportResult
    from pipeline.screening.registry.works import Work

_FEW = 5

RegistryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="directory of the registry")]


def import_(
    files: list[Path],
    into: Path,
    format_: str | None = None,
    name: str | None = None,
    status: str | None = None,
    tier: str | None = None,
    scope: str | None = None,
    contact: str | None = None,
    jurisdiction: str | None = None,
    basis: str | None = None,
    legal_hold: bool | None = None,
    texts: Path | None = None,
    sketch_only: bool = False,
    salt_file: Path | None = None,
    replace: bool = False,
    list_refused: bool = False,
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Import lists of works; importing the same files again changes nothing.

    A line about a work that the registry has (same work_id, registration number, ISBN, or title and
    authors) adds to its entry. Where they disagree, the old value stays and the conflict is shown.
    Every change makes a new version of the registry; earlier versions are kept.

    FILE...: CSV, records of the US Copyright Office as text, works lists of settlements, or
        sketches (.arrow)
    --into DIR: the registry; created if it does not exist
    --format FORM: csv, usco, works-list or sketches [default: csv, unless it looks like usco or
        sketches]
    --name: name of a new registry [default: the directory's]
    --jurisdiction: for works whose line names none, such as US
    --basis: what the entries are based on [default: file name and sha256]
    --texts DIR: directory of reference texts (UTF-8): files that the column `text` names, and .txt
        files named after a work's id, registration number, ISBN or title
    --sketch-only: store sketches of the texts, not the texts
    --replace: where values differ, take the one in the file
    --list-refused: print every refused line, conflict and note

    Examples:
    prep registry import works.csv --into claims
    prep registry import exhibit_a.txt --into claims --format usco --dry-run
    prep registry import list.csv --into claims --format works-list --tier whole_book
    prep registry import own.csv --into licensed --status licensed --texts texts/
    prep registry import from_publisher.arrow --into claims --salt-file salt.bin
    """
    from pipeline.screening.registry.importing import FORMATS, ImportOptions, import_works

    defaults = _collect_values(
        status=status,
        tier=tier,
        scope=scope,
        contact=contact,
        jurisdiction=jurisdiction,
        basis=basis,
        legal_hold=legal_hold,
    )
    if format_ is not None:
        require_choice("--format", format_, FORMATS)
    settings = ImportOptions(
        form=format_,
        name=name,
        defaults=defaults,
        texts=texts,
        sketch_only=sketch_only,
        salt=_salt(salt_file),
        replacing=replace,
        dry_run=dry_run,
    )
    result = import_works(files, into, settings)
    show_import(result, into, dry_run, list_refused, as_json)


def list_(
    directory: RegistryArgument,
    status: str | None = None,
    search: str | None = None,
    limit: Annotated[int, typer.Option(min=0)] = 50,
    as_json: options.JsonOption = False,
) -> None:
    """List the works of a registry.

    --search WORDS: words in title, authors, claimant or publisher, or numbers
    --limit: print at most this many works; 0 and --json print all

    Examples:
    prep registry list claims --status asserted
    prep registry list claims --search 'darius james' --json
    """
    from pipeline.screening.registry import load_registry
    from pipeline.screening.registry.finding import search_works
    from pipeline.screening.registry.works import STATUSES

    if status is not None:
        require_choice("--status", status, STATUSES)
    registry = load_registry(directory)
    works = [w for w in registry.work_list() if status in (None, w.status)]
    works = search_works(works, search) if search else works
    if as_json:
        return _print_many(registry.label, works)
    _print_table(works[: limit or None])
    of = "" if len(works) == len(registry.works) else f" of {len(registry.works):,}"
    rest = "" if not limit or len(works) <= limit else f"; the first {limit} (--limit 0: all)"
    return print_line(f"{registry.label}: {len(works):,}{of} works{rest}")


def show(directory: RegistryArgument, work: str, as_json: options.JsonOption = False) -> None:
    """Show everything that a registry says about a work, and how it changed.

    WORK: work_id, registration number, ISBN, ASIN, DOI, LCCN or title

    Examples:
    prep registry show claims TX0003372564
    prep registry show claims 'Negrophobia' --json
    """
    from pipeline.screening.registry import load_registry
    from pipeline.screening.registry.finding import find_works, list_changes

    registry = load_registry(directory)
    works = find_works(registry.work_list(), work)
    histories = [list_changes(directory, w.work_id) for w in works]
    if as_json:
        pairs = zip(works, histories, strict=True)
        entries = [{**asdict(w), "history": [asdict(c) for c in changes]} for w, changes in pairs]
        return print_json({"registry": registry.label, "works": entries})
    for entry, changes in zip(works, histories, strict=True):
        _print_work(entry, changes)
    total = pluralise(len(registry.works), "work")
    return print_line(f"{registry.label}: {len(works):,} of {total}")


def set_(
    directory: RegistryArgument,
    work: str,
    status: str | None = None,
    legal_hold: bool | None = None,
    scope: str | None = None,
    tier: str | None = None,
    contact: str | None = None,
    basis: str | None = None,
    effective_from: str | None = None,
    effective_to: str | None = None,
    as_json: options.JsonOption = False,
) -> None:
    """Change the entry of a work; this makes a new version of the registry.

    WORK: as for `prep registry show`; must name one work
    --basis: what the entry is based on
    --effective-from DATE: first day, such as 2026-03-01
    --effective-to DATE: last day, such as 2028-12-31

    Examples:
    prep registry set claims TX0003372564 --legal-hold
    prep registry set claims 4e84733077f6 --status licensed --effective-from 2026-03-01
    """
    from pipeline.screening.registry.importing import set_fields

    values: dict[str, Any] = {
        "status": status,
        "legal_hold": legal_hold,
        "scope": scope,
        "tier": tier,
        "contact": contact,
        "basis": basis,
        "effective_from": effective_from,
        "effective_to": effective_to,
    }
    changes = {name: value for name, value in values.items() if value is not None}
    edited = set_fields(directory, work, changes)
    if as_json:
        return print_json(asdict(edited))
    for name, (before, after) in edited.changes.items():
        print_line(f"{name}: {_describe_value(before)} -> {_describe_value(after)}")
    same = "nothing changed: the values were the same"
    outcome = f"version {edited.version}" if edited.changes else same
    return print_line(f"work {edited.work_id}: {outcome}")


def sketch(
    texts: list[Path],
    out: Path,
    title: str,
    author: list[str] | None = None,
    isbn: list[str] | None = None,
    registration: str | None = None,
    claimant: str | None = None,
    publisher: str | None = None,
    contact: str | None = None,
    tier: str | None = None,
    salt_file: Path | None = None,
    as_json: options.JsonOption = False,
) -> None:
    """Write a sketch of a work for someone else's registry; the text itself stays here.

    The file holds the description of the work, and hashes of some of its word sequences with their
    positions. With a salt that only both sides know, nobody else can test phrases against it.

    TEXT...: files with the text of one work (UTF-8), in order
    --out FILE.arrow: the file to send
    --title: title, or 'Title: subtitle'
    --author: an author; repeatable
    --isbn: an ISBN; repeatable
    --registration NUMBER: registration number of the US Copyright Office
    --claimant: who claims rights in the work
    --publisher: publisher of the edition

    Examples:
    prep registry sketch book.txt --out book.arrow --title 'A Title' --author 'First Last'
    prep registry sketch part1.txt part2.txt --out book.arrow --title 'A Title'
        --author 'First Last' --salt-file salt.bin
    """
    from pipeline.screening.registry.importing import sketch_work

    description = _collect_values(
        title_raw=title,
        authors="; ".join(author or ()),
        isbn13="; ".join(isbn or ()),
        reg_no=registration,
        claimant=claimant,
        publisher=publisher,
        contact=contact,
        tier=tier,
    )
    result = sketch_work(texts, out, description, _salt(salt_file))
    if as_json:
        return print_json({**asdict(result), "out": str(result.out)})
    for warning in result.warnings:
        print_line(f"warning: {warning}")
    salted = "salted: send the salt separately" if result.salted else "not salted"
    print_line(
        f"work {result.work_id}: {pluralise(result.words, 'word')}, "
        f"{pluralise(result.hashes, 'hash')} of {result.k} words each (one in {result.s}), {salted}"
    )
    return print_line(f"outputs: {result.out}")


register = group(
    "registry",
    """Keep registries of works to look for in documents. An entry states what its source says.

    --status STATUS: asserted, verified, licensed or public_domain
    --tier TIER: excerpt (finds passages) or whole_book (takes a sixtieth of the space)
    --scope SCOPE: what a claim covers: exact, or derivatives (translations too)
    --contact: whom to ask about the work
    --legal-hold/--no-legal-hold: whether copies must not be deleted
    --salt-file FILE: file with the salt of the sketches: 16 random bytes or more
    """,
    import_,
    list_,
    show,
    set_,
    sketch,
)


def _salt(path: Path | None) -> bytes:
    from pipeline.screening.registry.sketches import read_salt

    return read_salt(path) if path else b""


def _collect_values(**values: str | bool | None) -> dict[str, str]:
    """The values that were given, as a line of a list would have them."""
    texts = {name: str(v).lower() if isinstance(v, bool) else v for name, v in values.items()}
    return {name: text for name, text in texts.items() if text}


def show_import(
    result: "ImportResult", directory: Path, dry_run: bool, all_of_it: bool, as_json: bool
) -> None:
    """What an import did; refused lines, conflicts and remarks, a few or all of them."""
    if as_json:
        return print_json({"dry_run": dry_run, **asdict(result)})
    lists = {
        "refused": [f"{r.where}: {r.why}" for r in result.refusals],
        "conflict": [
            f"{c.where}: {c.field} of work {c.work_id}: kept {c.kept!r}, ignored {c.other!r}"
            for c in result.conflicts
        ],
        "note": [f"{r.where}: {r.text}" for r in result.remarks],
    }
    for kind, lines in lists.items():
        shown = lines if all_of_it else lines[:_FEW]
        for line in shown:
            print_line(f"{kind}: {line}")
        if len(shown) < len(lines):
            rest = len(lines) - len(shown)
            print_line(f"{kind}: and {rest:,} more; --list-refused prints them all")
    would = "would be " if dry_run else ""
    print_line(
        f"{pluralise(result.lines, 'line')}: {pluralise(result.added, 'work')} {would}added, "
        f"{result.changed:,} {would}changed, {result.unchanged:,} unchanged; "
        f"{pluralise(len(result.refusals), 'line')} refused, "
        f"{pluralise(len(result.conflicts), 'conflict')}, {pluralise(len(result.remarks), 'note')}"
    )
    if result.texts or result.sketches:
        print_line(
            f"references: {pluralise(result.texts, 'text')}, "
            f"{pluralise(result.sketches, 'sketch')} {would}kept"
        )
    state = f"version {result.version}" if result.fresh else f"still version {result.version}"
    works = pluralise(result.works, "work")
    return print_line(f"registry: {directory}/  ({result.name}, {state}, {works})")


def _print_many(label: str, works: "Iterable[Work]") -> None:
    """ASCII JSON line by line: a registry may hold half a million works."""
    from pipeline.screening.registry.works import FIELDS

    print_line(f'{{"registry": {json.dumps(label)}, "works": [')
    before = ""
    for work in works:
        fields = {name: getattr(work, name) for name in FIELDS}
        console.file.write(f"{before}{json.dumps(fields)}")
        before = ",\n"
    console.file.write("\n]}\n")


def _print_table(works: "Iterable[Work]") -> None:
    rows = []
    for work in works:
        authors, numbers = "; ".join(work.authors), ", ".join(work.isbn13)
        status = f"{work.status}{', legal hold' if work.legal_hold else ''}"
        names = (work.work_id, work.title_raw, authors, work.reg_no, numbers, status)
        rows.append((*names, _reference(work)))
    columns = ("work", "title", "authors", "registration", "ISBN", "status", "reference")
    show_table(columns, rows)


def _reference(work: "Work") -> str:
    kind = "text" if work.text_sha256 else "sketch" if work.sketch_hash else ""
    return f"{kind}, {work.tier}" if kind else "-"


def _print_work(work: "Work", changes: "Iterable[WorkChange]") -> None:
    authors = "; ".join(work.authors)
    hold = "yes: copies must not be deleted" if work.legal_hold else ""
    effective = " to ".join(filter(None, (work.effective_from or "-", work.effective_to)))
    print_line(f"work {work.work_id}")
    print_facts(
        [
            ("title", work.title_raw),
            ("subtitle", work.subtitle),
            ("authors", authors),
            ("publisher", work.publisher),
            ("published", work.pub_date),
            ("claimant", work.claimant),
            ("registered", f"{work.reg_no} {work.reg_date}".strip()),
            ("ISBN", ", ".join(work.isbn13)),
            ("ASIN", ", ".join(work.asin)),
            ("DOI", work.doi),
            ("LCCN", work.lccn),
            ("catalogue", work.catalog_url),
            ("country", work.jurisdiction),
            ("status", work.status),
            ("basis", work.basis),
            ("scope", work.scope),
            ("contact", work.contact),
            ("hold", hold),
            ("effective", "" if effective == "-" else effective),
            ("reference", _reference(work)),
        ]
    )
    for change in changes:
        print_line(f"version {change.version}: {change.text}")


def _describe_value(value: Any) -> str:
    return {True: "yes", False: "no", "": "(none)"}.get(value, str(value))
