"""`prep dedup` on the terminal: what stayed of every source, batches of an index, matches."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from pipeline import layout
from pipeline.core import storage
from pipeline.core.words import pluralise
from pipeline.dedup_alone import duplicates_by_kind
from pipeline.dedup_index import AddedBatch, IndexAnswer, IndexMatch
from pipeline.preparation import Manifest
from pipeline.terminal import format_cell, format_similarity, out, print_json, print_line

_KINDS = ("exact", "near", "key", "chain")
_SHOWN = 40


def show_run(manifest: Manifest, as_json: bool) -> None:
    """A finished `prep dedup`: documents by source, and where things stand."""
    directory = manifest.directory
    ledger, kinds = _account(directory)
    if as_json:
        value = {"directory": str(directory), "reused": list(manifest.reused), "ledger": ledger,
                 "duplicates": kinds}  # fmt: skip
        return print_json(value)
    _print_sources(ledger, kinds)
    if len(manifest.reused) == len(manifest.stages):
        print_line(f"everything was up to date: all {len(manifest.stages)} stages reused")
    print_line(
        f"outputs: {directory}/  ({layout.RECORDS}/, {layout.CLUSTER_REPORT}, {layout.CLUSTERS}, "
        f"{layout.DOCUMENTS}, {layout.MANIFEST})"
    )
    return None


def show_added(added: AddedBatch, as_json: bool) -> None:
    """A batch of an index."""
    ledger, kinds = _account(added.directory)
    if as_json:
        value = {"batch": added.batch, "fresh": added.fresh, "directory": str(added.directory),
                 "ledger": ledger, "duplicates": kinds}  # fmt: skip
        return print_json(value)
    if not added.fresh:
        return print_line(f"batch {added.batch} already holds exactly these files; nothing to do")
    _print_sources(ledger, kinds)
    return print_line(f"batch {added.batch}: {added.directory}/")


def show_answer(answer: IndexAnswer, file: Path | None, as_json: bool) -> None:
    """The matches of a query: all of them as JSON or to a file, the first ones on the terminal."""
    if file is not None:
        lines = [json.dumps(asdict(match), ensure_ascii=False) + "\n" for match in answer.matches]
        storage.publish(file, "".join(lines).encode())
    if as_json:
        return print_json([asdict(match) for match in answer.matches])
    table = Table("document", "kind", "J", "repeats", "source", "batch", "there")
    for match in answer.matches[:_SHOWN]:
        table.add_row(*(format_cell(cell) for cell in _cells(match)))
    if answer.matches:
        out.print(table, soft_wrap=True)
    more = len(answer.matches) - _SHOWN
    if more > 0:
        print_line(f"and {more:,} more; --json prints all, --out FILE writes all")
    return print_line(
        f"{len(answer.matches):,} of {pluralise(answer.documents, 'document')} repeat the index"
    )


def _cells(match: IndexMatch) -> tuple[str, ...]:
    value = match.estimate if match.jaccard is None else match.jaccard
    estimated = "~" if match.jaccard is None and value is not None else ""
    return (
        _place(match.file, match.line, match.row), match.kind, estimated + format_similarity(value),
        match.document, match.source, match.batch,
        _place(match.batch_file, match.batch_line, match.batch_row),
    )  # fmt: skip


def _place(file: str, line: int | None, row: int | None) -> str:
    return f"{file}:{line}" if line is not None else f"{file}:row {row}"


def _account(directory: Path) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    ledger = json.loads((directory / layout.LEDGER).read_bytes())
    return ledger, duplicates_by_kind(directory)


def _print_sources(ledger: dict[str, Any], kinds: dict[str, dict[str, int]]) -> None:
    """Only the kinds of duplicates that there are."""
    found = [kind for kind in _KINDS if any(kind in counts for counts in kinds.values())]
    columns = ("records", "bad", *found, "kept", "MB", "kept MB")
    table = Table("source", title="documents by source")
    for name in columns:
        table.add_column(name, justify="right")
    totals = [0.0] * len(columns)
    for name, source in ledger["sources"].items():
        counts = kinds.get(name, {})
        values = [
            source["records"]["documents"], sum(t["documents"] for t in source["bad"].values()),
            *(counts.get(kind, 0) for kind in found), source["kept"]["documents"],
            source["documents"]["bytes"] / 1e6, source["kept"]["bytes"] / 1e6,
        ]  # fmt: skip
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        table.add_row(format_cell(name), *_numbers(values))
    table.add_section()
    table.add_row("all", *_numbers(totals))
    out.print(table, soft_wrap=True)


def _numbers(values: list[float]) -> list[str]:
    return [f"{int(v):,}" for v in values[:-2]] + [f"{v:,.2f}" for v in values[-2:]]
