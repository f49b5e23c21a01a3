"""The ledger of a finished run, as the commands that make runs print it."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.commands.terminal import print_line, show_table
from pipeline.core.words import pluralise
from pipeline.runs import layout

if TYPE_CHECKING:
    from pipeline.stories.loop import Manifest


def read_summary(manifest: "Manifest") -> dict[str, Any]:
    """What the JSON of every such command begins with."""
    ledger = json.loads((manifest.directory / layout.LEDGER).read_bytes())
    reused = list(manifest.reused)
    return {"directory": str(manifest.directory), "reused": reused, "ledger": ledger}


def print_outputs(manifest: "Manifest", *names: str) -> None:
    """Where the outputs are, and whether all of them were there already."""
    if len(manifest.reused) == len(manifest.stages):
        print_line(f"everything was up to date: all {len(manifest.stages)} stages reused")
    print_line(f"outputs: {manifest.directory}/  ({', '.join(names)})")


def print_sources(
    sources: Mapping[str, Any],
    columns: Sequence[str],
    counts: Mapping[str, Mapping[str, int]] | None = None,
) -> None:
    """A line for each source and a total, in columns of the ledger or of `counts`."""

    def format_cells(values: Sequence[int]) -> list[str]:
        pairs = zip(columns, values, strict=True)
        return [f"{v / 1e6:,.2f}" if name.endswith("MB") else f"{v:,}" for name, v in pairs]

    rows = {}
    for name, source in sources.items():
        own = (counts or {}).get(name, {})
        rows[name] = [own[c] if c in own else _count(source, c) for c in columns]
    totals = [sum(values) for values in zip(*rows.values(), strict=True)]
    show_table(
        ("source", *(f">{name}" for name in columns)),
        ((name, *format_cells(values)) for name, values in rows.items()),
        title="documents by source",
        total=("all", *format_cells(totals)),
    )


def _count(source: Mapping[str, Any], column: str) -> int:
    """Documents or bytes of a source; 0 for a kind of duplicates that it has not."""
    match column:
        case "bad" | "dropped":
            return sum(tally["documents"] for tally in source[column].values())
        case "MB":
            return int(source["documents"]["bytes"])
        case "kept MB":
            return int(source["kept"]["bytes"])
        case "tokens":
            return int(source["tokens"])
    return int(source.get(column, {"documents": 0})["documents"])


def show_mixture(mixture: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the section `mixture` of ledger.json; nothing for an empty one."""
    total = sum(row["stream_tokens"] for row in mixture.values())
    by_share = any(row["asked_share"] is not None for row in mixture.values())
    request = "share requested" if by_share else "epochs requested"
    names = ("documents", "tokens", request, "epochs", "in the stream", "tokens there", "share")
    rows = (
        (
            source,
            f"{row['documents']:,}",
            f"{row['tokens']:,}",
            f"{row['asked_share']:.2%}" if by_share else f"{row['asked_epochs']:g}",
            f"{row['epochs']:.4g}",
            f"{row['stream_documents']:,}",
            f"{row['stream_tokens']:,}",
            f"{row['stream_tokens'] / total:.2%}" if total else "-",
        )
        for source, row in mixture.items()
    )
    columns = ("source", *(f">{name}" for name in names))
    show_table(columns, rows, title="mixture of the training split")


def describe_split(name: str, split: dict[str, Any]) -> str:
    """One line about a split of the ledger."""
    line = (
        f"{name}: {pluralise(split['documents'], 'document')}, "
        f"{pluralise(split['tokens'], 'token')}"
    )
    if split["format"] == "corpus":
        return f"{line}, one stream"
    rows, length, padding = split["rows"], split["max_sequence_length"], split["padding"]
    share = f" ({100 * padding / (rows * length):.2f} %)" if rows else ""
    return f"{line}, {pluralise(rows, 'row')} of {length}, {padding:,} padding{share}"
