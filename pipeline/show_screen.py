"""`prep screen` on the terminal: documents by decision and rule, and what was found."""

import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from pipeline import layout
from pipeline.preparation import Manifest
from pipeline.terminal import format_cell, out, print_json, print_line


def show_decisions(manifest: Manifest, as_json: bool) -> None:
    """A finished screening."""
    directory = manifest.directory
    documents = pq.read_table(directory / layout.DOCUMENTS, columns=["decision", "rule"])
    evidence = pq.read_table(directory / layout.EVIDENCE, columns=["detector", "kind"])
    decided = _counts(documents, ["decision", "rule"])
    found = _counts(evidence, ["detector", "kind"])
    if as_json:
        return print_json({"directory": str(directory), "reused": list(manifest.reused),
                           "decisions": decided, "evidence": found})  # fmt: skip
    _print("documents by decision", ["decision", "rule"], decided)
    _print("evidence", ["detector", "kind"], found)
    return print_line(
        f"outputs: {directory}/  ({layout.EVIDENCE}, {layout.DECISIONS}, {layout.DOCUMENTS}); "
        "`prep explain` shows one document"
    )


def _counts(table: pa.Table, columns: list[str]) -> list[dict[str, object]]:
    """Rows by the values of these columns, the largest count first."""
    grouped = table.group_by(columns, use_threads=False).aggregate([([], "count_all")])
    order = [("count_all", "descending"), *((name, "ascending") for name in columns)]
    rows = grouped.sort_by(order).to_pylist()
    return [{**{c: row[c] for c in columns}, "count": row["count_all"]} for row in rows]


def _print(title: str, columns: list[str], rows: list[dict[str, object]]) -> None:
    if not rows:
        return print_line(f"{title}: none")
    table = Table(*columns, title=title, title_justify="left")
    table.add_column("documents" if "rule" in columns else "rows", justify="right")
    for row in rows:
        names = (format_cell(str(row[column] or "-")) for column in columns)
        table.add_row(*names, f"{row['count']:,}")
    return out.print(table)
