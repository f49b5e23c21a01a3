"""`prep takedown` on the terminal: plans and records of takedowns."""

from typing import Any

from rich.table import Table

from pipeline.core.errors import escape_text
from pipeline.core.words import pluralise
from pipeline.provenance.wording import DELETED
from pipeline.takedown.plan import TakedownPlan
from pipeline.terminal import format_cell, out, print_line

_MOST = 40


def show_plan(plan: TakedownPlan) -> None:
    """The plan for people: documents, splits, training runs, stored copies, what stays."""
    _show_documents(plan)
    for split in plan.splits:
        unit = "token" if split.format == "corpus" else "label"
        print_line(
            f"{split.split}: {pluralise(split.documents, 'document')} in {split.rows:,} of "
            f"{pluralise(split.of_rows, 'row')}, {split.labels:,} of "
            f"{pluralise(split.of_labels, unit)} ({split.share:.4%}), "
            f"{split.shards:,} of {pluralise(split.of_shards, 'shard')}; "
            f"over-deletion {split.over_deletion:.3f}"
        )
    for run in plan.exposed:
        first = f", first step {run.listed[0]}" if run.listed else ""
        steps = f"{run.steps:,} of {pluralise(run.last_step, 'step')}"
        print_line(
            f"{run.model_dir}: {steps} read labels of them{first}; first checkpoint after it "
            f"{run.first_exposed or '-'}, last before it {run.last_unexposed or '-'}"
        )
    for copy in plan.copies:
        count = f", {pluralise(copy.documents, 'document')}" if copy.documents else ""
        print_line(
            f"stored: {copy.store}: {pluralise(copy.files, 'file')}{count}: will be {copy.done}"
        )
    for left in plan.outside:
        lines = f" ({pluralise(len(left.lines), 'line')})" if left.lines else ""
        where = f" {left.where}" if left.where else ""
        print_line(f"out of reach: {left.what}{where}{lines}: {left.instruction}")
    for told in plan.told[:_MOST]:
        print_line(f"not taken down: {told.key}: {told.why}")
    for item in plan.nothing:
        print_line(f"nothing matches {item}")
    print_line(DELETED)


def _show_documents(plan: TakedownPlan) -> None:
    table = Table("document", "why", "via", "source", "file:line", "state", "tokens")
    for row in plan.taken.slice(0, _MOST).to_pylist():
        via = row["via"].hex() if row["via"] else ""
        like = "" if row["similarity"] is None else f" {row['similarity']:.3f}"
        cells = (
            row["doc_key"].hex(), row["because"], via + like, row["source"],
            f"{row['file']}:{row['line']}", row["state"], f"{row['tokens']:,}",
        )  # fmt: skip
        table.add_row(*(format_cell(cell) for cell in cells))
    out.print(table)
    more = len(plan.taken) - _MOST
    if more > 0:
        print_line(f"and {more:,} more (--json lists all)")
    if plan.earlier:
        print_line(f"taken down before: {pluralise(plan.earlier, 'document')} of the claim")


def show_record(value: dict[str, Any]) -> None:
    """What was done, in a few lines."""
    name = escape_text(value["id"])
    print_line(
        f"takedown {name}: {pluralise(value['documents']['count'], 'document')}, {value['mode']}"
    )
    for split, digest in value["data_sets"].items():
        print_line(f"hdf5/{split}: data set {digest}")
    print_line(f"record: takedowns/{name}.json; form: takedowns/takedown-{name}.md and .html")
    if value["mode"] == "rewrite":
        print_line(
            "the data set still holds them: run `prep run` with the config of this run and its "
            "directory as --out, which writes the data set again without them"
        )


def documents_as_rows(plan: TakedownPlan) -> list[dict[str, Any]]:
    """The documents as plain data, keys in hex."""
    rows: list[dict[str, Any]] = plan.taken.to_pylist()
    for row in rows:
        for name in ("doc_key", "text_key", "via"):
            row[name] = row[name].hex() if row[name] else None
    return rows
