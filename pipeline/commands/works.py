"""`prep registry` on the terminal."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pipeline.commands.terminal import format_cell, out, print_facts, print_json, print_line
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import did_you_mean, pluralise
from pipeline.screening.registry import Work, load_registry

if TYPE_CHECKING:
    from pipeline.screening.registry.finding import WorkChange
    from pipeline.screening.registry.importing import ImportResult, SketchFile, WorkEdit


__all__ = [
    "check_form",
    "collect_values",
    "show_edit",
    "show_import",
    "show_list",
    "show_sketch",
    "show_work",
]

_FEW = 5


def collect_values(**values: str | bool | None) -> dict[str, str]:
    """The values that were given, as a line of a list would have them."""
    texts = {name: str(v).lower() if isinstance(v, bool) else v for name, v in values.items()}
    return {name: text for name, text in texts.items() if text}


def check_form(form: str | None) -> str | None:
    """Raises ConfigError for an unknown --format."""
    from pipeline.screening.registry.importing import FORMATS

    return _one_of("--format", form, FORMATS)


def _one_of(option: str, value: str | None, allowed: Sequence[str]) -> str | None:
    if value is None or value in allowed:
        return value
    raise ConfigError(
        f"{option} {escape_text(value, 40)}: expected one of {', '.join(allowed)}"
        f"{did_you_mean(value, allowed)}"
    )


def show_import(
    done: "ImportResult", directory: Path, dry_run: bool, all_of_it: bool, as_json: bool
) -> None:
    """What an import did; refused lines, conflicts and remarks, a few or all of them."""
    if as_json:
        return print_json({"dry_run": dry_run, **asdict(done)})
    limit = None if all_of_it else _FEW
    _print_some("refused", [f"{r.where}: {r.why}" for r in done.refusals], limit)
    _print_some("conflict", [_conflict(**vars(c)) for c in done.conflicts], limit)
    _print_some("note", [f"{r.where}: {r.text}" for r in done.remarks], limit)
    would = "would be " if dry_run else ""
    print_line(
        f"{pluralise(done.lines, 'line')}: {pluralise(done.added, 'work')} {would}added, "
        f"{done.changed:,} {would}changed, {done.unchanged:,} unchanged; "
        f"{pluralise(len(done.refusals), 'line')} refused, "
        f"{pluralise(len(done.conflicts), 'conflict')}, {pluralise(len(done.remarks), 'note')}"
    )
    if done.texts or done.sketches:
        print_line(
            f"references: {pluralise(done.texts, 'text')}, "
            f"{pluralise(done.sketches, 'sketch')} {would}kept"
        )
    state = f"version {done.version}" if done.fresh else f"still version {done.version}"
    print_line(f"registry: {directory}/  ({done.name}, {state}, {pluralise(done.works, 'work')})")
    return None


def _conflict(where: str, work_id: str, field: str, kept: str, other: str) -> str:
    return f"{where}: {field} of work {work_id}: kept {kept!r}, ignored {other!r}"


def _print_some(kind: str, lines: Sequence[str], limit: int | None) -> None:
    for line in lines[:limit]:
        print_line(f"{kind}: {line}")
    left = len(lines) - len(lines[:limit])
    if left:
        print_line(f"{kind}: and {left:,} more; --list-refused prints them all")


def show_list(
    directory: Path, status: str | None, search: str | None, limit: int, as_json: bool
) -> None:
    """The works of a registry, or those of one status, or that a search finds."""
    from pipeline.screening.registry.finding import search_works
    from pipeline.screening.registry.works import STATUSES

    _one_of("--status", status, STATUSES)
    registry = load_registry(directory)
    works = [w for w in registry.work_list() if status in (None, w.status)]
    works = search_works(works, search) if search else works
    if as_json:
        return _print_many(registry.label, works)
    _print_table(works[: limit or None])
    of = "" if len(works) == len(registry.works) else f" of {len(registry.works):,}"
    left = "" if not limit or len(works) <= limit else f"; the first {limit} (--limit 0: all)"
    print_line(f"{registry.label}: {len(works):,}{of} works{left}")
    return None


def _print_many(label: str, works: Iterable[Work]) -> None:
    """ASCII JSON line by line: a registry may hold half a million works."""
    from pipeline.screening.registry.works import FIELDS

    print_line(f'{{"registry": {json.dumps(label)}, "works": [')
    before = ""
    for work in works:
        fields = {name: getattr(work, name) for name in FIELDS}
        out.file.write(f"{before}{json.dumps(fields)}")
        before = ",\n"
    out.file.write("\n]}\n")


def _print_table(works: Iterable[Work]) -> None:
    table = Table("work", "title", "authors", "registration", "ISBN", "status", "reference")
    for work in works:
        cells = (
            work.work_id,
            work.title_raw,
            "; ".join(work.authors),
            work.reg_no,
            ", ".join(work.isbn13),
            f"{work.status}{', legal hold' if work.legal_hold else ''}",
            _reference(work),
        )
        table.add_row(*map(format_cell, cells))
    out.print(table)


def _reference(work: Work) -> str:
    kind = "text" if work.text_sha256 else "sketch" if work.sketch_hash else ""
    return f"{kind}, {work.tier}" if kind else "-"


def show_work(directory: Path, asked: str, as_json: bool) -> None:
    """Every work that `asked` means, with its history."""
    from pipeline.screening.registry.finding import find_works, history_of

    registry = load_registry(directory)
    works = find_works(registry.work_list(), asked)
    histories = [history_of(directory, work.work_id) for work in works]
    if as_json:
        pairs = zip(works, histories, strict=True)
        found = [{**asdict(w), "history": [asdict(c) for c in changes]} for w, changes in pairs]
        return print_json({"registry": registry.label, "works": found})
    for work, changes in zip(works, histories, strict=True):
        _print_work(work, changes)
    print_line(f"{registry.label}: {len(works):,} of {pluralise(len(registry.works), 'work')}")
    return None


def _print_work(work: Work, changes: "Iterable[WorkChange]") -> None:
    authors = "; ".join(work.authors)
    held = "yes: copies must not be deleted" if work.legal_hold else ""
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
            ("hold", held),
            ("effective", "" if effective == "-" else effective),
            ("reference", _reference(work)),
        ]
    )
    for change in changes:
        print_line(f"version {change.version}: {change.text}")


def show_edit(edited: "WorkEdit", as_json: bool) -> None:
    """What was set."""
    if as_json:
        return print_json(asdict(edited))
    for name, (before, after) in edited.changes.items():
        print_line(f"{name}: {_value(before)} -> {_value(after)}")
    said = (
        f"version {edited.version}"
        if edited.changes
        else "nothing changed: the values were the same"
    )
    print_line(f"work {edited.work_id}: {said}")
    return None


def _value(value: Any) -> str:
    return {True: "yes", False: "no", "": "(none)"}.get(value, str(value))


def show_sketch(made: "SketchFile", as_json: bool) -> None:
    """What was written for exchange."""
    if as_json:
        return print_json({**asdict(made), "out": str(made.out)})
    for warning in made.warnings:
        print_line(f"warning: {warning}")
    salted = "salted: send the salt separately" if made.salted else "not salted"
    print_line(
        f"work {made.work_id}: {pluralise(made.words, 'word')}, "
        f"{pluralise(made.hashes, 'hash')} of {made.k} words each (one in {made.s}), {salted}"
    )
    print_line(f"outputs: {made.out}")
    return None
