"""The form of a takedown: what was removed where, what was not, and who answers for it."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.errors import printable
from pipeline.provenance.wording import CHAIN, DELETED, NOT_ADVICE

_SHOWN_LINES = 20
Lines = Iterator[tuple[str, str]]
"""(kind, text): `title`, `head`, `item` or `text`."""


def _lines(record: Mapping[str, Any]) -> Lines:
    claim, documents = record["claim"], record["documents"]
    yield "title", f"Takedown {record['id']}"
    yield "item", f"Claimant: {claim['claimant']}"
    yield "item", f"Received: {claim['received']}"
    yield "item", f"Basis: {claim['basis']}"
    if claim["note"]:
        yield "item", f"Note: {claim['note']}"
    yield "item", f"Carried out by {record['by']} on {record['on']}, mode {record['mode']}"
    yield "head", "Documents"
    roles = ", ".join(f"{count:,} {role.replace('_', ' ')}"
                      for role, count in sorted(documents["roles"].items()))  # fmt: skip
    yield "item", f"{documents['count']:,} documents ({roles or 'none'})"
    if documents["taken_down_before"]:
        yield "item", f"{documents['taken_down_before']:,} of the claim were taken down before"
    yield "item", f"their keys and places: takedowns/{record['id']}.parquet"
    yield from _data_sets(record)
    yield "head", "Stored copies"
    for copy in record["copies"]:
        count = f", {copy['documents']:,} documents" if copy["documents"] else ""
        yield "item", f"{copy['store']}: {copy['files']:,} files{count}: {copy['done']}"
    yield "head", "Not removed"
    for copy in record["outside"]:
        lines = copy["lines"]
        places = f" lines {', '.join(map(str, lines[:_SHOWN_LINES]))}" if lines else ""
        more = " …" if len(lines) > _SHOWN_LINES else ""
        where = f" {copy['where']}" if copy["where"] else ""
        yield "item", f"{copy['what']}{where}{places}{more}: {copy['instruction']}"
    yield "head", "Limits"
    for sentence in (DELETED, CHAIN, NOT_ADVICE):
        yield "text", sentence
    yield "head", "Signed off"
    yield "text", f"{record['by']}, {record['on']}"


def _data_sets(record: Mapping[str, Any]) -> Lines:
    yield "head", "Data sets"
    if not record["splits"]:
        yield "item", "none of the documents stands in a data set of this run"
    for split in record["splits"]:
        unit = "tokens" if split["format"] == "corpus" else "labels"
        counts = f"{split['labels']:,} of {split['of_labels']:,} {unit} ({split['share']:.6%})"
        shards = f"{split['shards']:,} of {split['of_shards']:,} shards"
        told = f"{split['over_deletion']:.3f} per token of the documents"
        yield "item", f"{split['split']} ({split['format']}): {counts} in {shards}; {told}"
        new = record["data_sets"].get(split["split"])
        if new:
            yield "item", f"{split['split']}: data set {split['dataset_hash']} became {new}"
    for run in record["exposed"]:
        yield "item", _exposure(run)


def _exposure(run: Mapping[str, Any]) -> str:
    if not run["steps"]:
        return f"{run['model_dir']}: none of {run['last_step']:,} steps read a label of them"
    first = run["first_exposed"] or "none that is kept"
    before = run["last_unexposed"] or "none that is kept"
    return (
        f"{run['model_dir']}: {run['steps']:,} of {run['last_step']:,} steps read labels of them, "
        f"the first is step {run['listed'][0]}; first checkpoint after it: {first}; last before "
        f"it: {before}"
    )


def as_markdown(record: Mapping[str, Any]) -> bytes:
    """The form as Markdown."""
    marks = {"title": "# ", "head": "\n## ", "item": "- ", "text": ""}
    lines = [marks[kind] + _plain(text) for kind, text in _lines(record)]
    return ("\n".join(lines) + "\n").encode()


def _plain(text: str) -> str:
    """On one line, without what Markdown or a terminal would take for more than text."""
    shown = printable(text, len(text))
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in shown)


def as_html(record: Mapping[str, Any]) -> bytes:
    """The form as one HTML page without scripts or links."""
    from html import escape

    marks = {"title": "h1", "head": "h2", "item": "li", "text": "p"}
    body = "\n".join(
        f"<{marks[kind]}>{escape(printable(text, len(text)))}</{marks[kind]}>"
        for kind, text in _lines(record)
    )
    head = f"<title>Takedown {escape(str(record['id']))}</title>"
    page = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{head}</head>\n<body>\n'
    return f"{page}{body}\n</body></html>\n".encode()
