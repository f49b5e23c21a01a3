"""`prep clean` on the terminal: what stayed of every source, and why the rest left."""

import json
from collections import Counter
from typing import Any

from rich.table import Table

from pipeline import layout
from pipeline.preparation import Manifest
from pipeline.terminal import format_cell, out, print_json, print_line


def show_run(manifest: Manifest, as_json: bool) -> None:
    """A finished `prep clean`: documents by source, reasons, and where things stand."""
    directory = manifest.directory
    ledger = json.loads((directory / layout.LEDGER).read_bytes())
    if as_json:
        value = {"directory": str(directory), "reused": list(manifest.reused), "ledger": ledger,
                 "masked": dict(_masked(manifest))}  # fmt: skip
        return print_json(value)
    _print_sources(ledger["sources"])
    _print_reasons(ledger["sources"])
    masked = _masked(manifest)
    if masked:
        print_line("masked: " + ", ".join(f"{count:,} {kind}" for kind, count in masked.items()))
    if len(manifest.reused) == len(manifest.stages):
        print_line(f"everything was up to date: all {len(manifest.stages)} stages reused")
    return print_line(
        f"outputs: {directory}/  ({layout.CLEANED}/, drops/, {layout.DOCUMENTS}, {layout.LEDGER}, "
        f"{layout.MANIFEST})"
    )


def _print_sources(sources: dict[str, Any]) -> None:
    table = Table("source", title="documents by source")
    for name in ("records", "bad", "dropped", "kept", "MB", "kept MB"):
        table.add_column(name, justify="right")
    totals = [0] * 6
    for name, source in sources.items():
        values = [
            source["records"]["documents"], _documents(source["bad"]),
            _documents(source["dropped"]) + source["quarantined"]["documents"],
            source["kept"]["documents"], source["documents"]["bytes"], source["kept"]["bytes"],
        ]  # fmt: skip
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        table.add_row(format_cell(name), *_numbers(values))
    table.add_section()
    table.add_row("all", *_numbers(totals))
    out.print(table, soft_wrap=True)


def _print_reasons(sources: dict[str, Any]) -> None:
    counts: Counter[str] = Counter()
    for source in sources.values():
        for ends in ("bad", "dropped"):
            for reason, tally in source[ends].items():
                counts[reason] += tally["documents"]
    if not counts:
        return
    table = Table("reason", title="why records left")
    table.add_column("records", justify="right")
    for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(format_cell(reason), f"{count:,}")
    out.print(table, soft_wrap=True)


def _masked(manifest: Manifest) -> Counter[str]:
    """How often each kind was masked."""
    counts: Counter[str] = Counter()
    for task in manifest.stages["clean"].tasks:
        for of_source in task.counters.get("masked", {}).values():
            counts.update(of_source)
    return counts


def _documents(tallies: dict[str, dict[str, int]]) -> int:
    return sum(tally["documents"] for tally in tallies.values())


def _numbers(values: list[int]) -> list[str]:
    return [f"{v:,}" for v in values[:4]] + [f"{v / 1e6:,.2f}" for v in values[4:]]
