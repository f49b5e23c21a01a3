"""The form of a takedown: what was removed where, what was not, and who answers for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.errors import escape_text
from pipeline.core.words import pluralise
from pipeline.provenance.wording import CHAIN, DELETED, NOT_ADVICE
from pipeline.report.page import report_environment

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
    yield "item", f"{pluralise(documents['count'], 'document')} ({roles or 'none'})"
    if documents["taken_down_before"]:
        before = pluralise(documents["taken_down_before"], "document")
        yield "item", f"taken down before: {before} of the claim"
    yield "item", f"their keys and places: takedowns/{record['id']}.parquet"
    yield from _data_sets(record)
    yield "head", "Stored copies"
    for copy in record["copies"]:
        count = f", {pluralise(copy['documents'], 'document')}" if copy["documents"] else ""
        yield "item", f"{copy['store']}: {pluralise(copy['files'], 'file')}{count}: {copy['done']}"
    yield "head", "Not removed"
    for copy in record["outside"]:
        lines = copy["lines"]
        unit = "line" if len(lines) == 1 else "lines"
        places = f" {unit} {', '.join(map(str, lines[:_SHOWN_LINES]))}" if lines else ""
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
        yield "item", "none of the documents is in a data set of this run"
    for split in record["splits"]:
        unit = "token" if split["format"] == "corpus" else "label"
        of_all = pluralise(split["of_labels"], unit)
        counts = f"{split['labels']:,} of {of_all} ({split['share']:.6%})"
        shards = f"{split['shards']:,} of {pluralise(split['of_shards'], 'shard')}"
        told = f"{split['over_deletion']:.3f} {unit}s masked per token of the documents"
        yield "item", f"{split['split']} ({split['format']}): {counts} in {shards}; {told}"
        new = record["data_sets"].get(split["split"])
        if new:
            yield "item", f"{split['split']}: data set {split['dataset_hash']} became {new}"
    for run in record["exposed"]:
        yield "item", _exposure(run)


def _exposure(run: Mapping[str, Any]) -> str:
    if not run["steps"]:
        steps = pluralise(run["last_step"], "step")
        return f"{run['model_dir']}: none of {steps} read a label of these documents"
    first = run["first_exposed"] or "none that is kept"
    before = run["last_unexposed"] or "none that is kept"
    steps = f"{run['steps']:,} of {pluralise(run['last_step'], 'step')}"
    return (
        f"{run['model_dir']}: {steps} read labels of these documents, first step "
        f"{run['listed'][0]}; "
        f"first checkpoint after it: {first}; last before it: {before}"
    )


def as_markdown(record: Mapping[str, Any]) -> bytes:
    """The form as Markdown."""
    marks = {"title": "# ", "head": "\n## ", "item": "- ", "text": ""}
    lines = [marks[kind] + _plain(text) for kind, text in _lines(record)]
    return ("\n".join(lines) + "\n").encode()


def _plain(text: str) -> str:
    """On one line, without what Markdown or a terminal would take for more than text."""
    shown = escape_text(text, len(text))
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in shown)


@dataclass
class _Section:
    """What stands below one heading."""

    head: str
    items: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def as_html(record: Mapping[str, Any]) -> bytes:
    """The form as one HTML page without scripts or links, in the style of the reports."""
    title, sections = "", [_Section("Claim")]
    for kind, text in _lines(record):
        if kind == "title":
            title = text
        elif kind == "head":
            sections.append(_Section(text))
        else:
            (sections[-1].items if kind == "item" else sections[-1].texts).append(text)
    template = report_environment("pipeline.takedown").get_template("form.html.j2")
    return template.render(title=title, sections=sections).encode()
