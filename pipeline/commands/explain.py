"""`prep explain`: its options, one call, and what it prints: facts in lines, links in a table,
texts side by side.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from pipeline.commands.inspect import evidence_line
from pipeline.commands.options import DocumentArgument, JsonOption, RunArgument
from pipeline.commands.terminal import (
    format_similarity,
    out,
    print_facts,
    print_json,
    print_line,
    show_table,
)
from pipeline.commands.usage import commands
from pipeline.core.errors import escape_text
from pipeline.core.words import pluralise
from pipeline.report.side_by_side import LinePair, Piece, compare_texts, shorten_row
from pipeline.runs import layout
from pipeline.runs.references import LEAST_DIGITS

if TYPE_CHECKING:
    from pipeline.explain.explain import Cut, Explanation, Link


def explain(
    directory: RunArgument,
    document: DocumentArgument,
    lines: Annotated[int, typer.Option(min=1)] = 40,
    all_: bool = False,
    as_json: JsonOption = False,
) -> None:
    """Show what became of a document; a duplicate is shown next to the document that was kept.

    --lines: rows of each list to show
    --all: show everything, with equal lines

    Examples:
    prep explain runs/quickstart 550f72f4
    prep explain runs/quickstart shard-00.jsonl.zst:191 --all
    """
    from pipeline.explain.explain import explain_document as find

    most = None if all_ else lines
    show_explanation(find(directory, document, most), most, as_json)


register = commands(explain)


_CUTS = 10
"""Of the spans that were cut from a text the first are shown."""
_REMOVED, _ADDED = ("bold red", "[-{}-]"), ("bold green", "{{+{}+}}")
"""Style of a stretch that differs, and its marks where there are no colours."""


def show_explanation(explanation: "Explanation", lines: int | None, as_json: bool) -> None:
    """Print an explanation; of the texts `lines` rows around differences (None: all rows)."""
    rows = []
    if explanation.texts:
        rows = (
            compare_texts(*explanation.texts)
            if lines
            else compare_texts(*explanation.texts, context=None)
        )
    if as_json:
        return print_json(_as_json(explanation, rows[:lines], len(rows)))
    print_facts(_about_document(explanation))
    if explanation.kept_by:
        print_facts(_about_link(explanation, explanation.kept_by))
    if explanation.stands_for:
        _print_members(explanation)
    if explanation.kept_by and lines and rows and not any(row.differs for row in rows):
        print_facts([("texts", "equal; --all shows them")])
    elif explanation.kept_by and rows:
        _print_texts(
            explanation.kept_by.key, explanation.record.place.key, rows[:lines], lines is None
        )
        if lines and len(rows) > lines:
            print_line(f"{len(rows) - lines:,} more rows; --lines or --all shows them")
    return None


def _as_json(explanation: "Explanation", rows: Sequence[LinePair], total: int) -> dict[str, Any]:
    value = asdict(explanation)
    del value["texts"]
    value["origin"] = str(explanation.origin) if explanation.origin else None
    recipe = {"words": explanation.recipe.words, **value["recipe"]} if explanation.recipe else None
    return {**value, "recipe": recipe, "rows": [asdict(row) for row in rows], "rows_total": total}


def _about_document(explanation: "Explanation") -> list[tuple[str, str]]:
    from pipeline.runs.records import describe_place

    r = explanation.record
    state = r.state or "not decided yet: the run stopped before that"
    screening = " by ".join(word for word in (r.decision, r.rule) if word)
    return [
        ("document", f"{r.place.key}  {describe_place(r.place, '')}"),
        ("licence", r.licence),
        ("state", f"{state} ({r.reason})" if r.reason else state),
        ("screening", ": ".join(word for word in (screening, explanation.decision_reason) if word)),
        (
            "taken over",
            explanation.decision_of and f"from {explanation.decision_of}, of the same cluster",
        ),
        ("taken down", ", ".join(explanation.taken_down)),
        *(("evidence", evidence_line(evidence)) for evidence in explanation.evidence),
        ("split", r.split if r.state == "kept" else ""),
        ("mixture", _about_cluster_weight(explanation)),
        ("text", _about_text(explanation)),
        *(("cut", _about_cut(cut)) for cut in explanation.cuts[:_CUTS]),
        ("cut", _about_more_cuts(explanation)),
        ("tokens", f"{r.tokens:,}" if r.tokens else ""),
        ("excerpt", explanation.excerpt),
        ("packed from", str(explanation.origin or "")),
        ("run", "" if explanation.finished else "not finished: no tokens and no rows yet"),
    ]


def _about_cluster_weight(explanation: "Explanation") -> str:
    weight = explanation.cluster_weight
    if weight is None:
        return ""
    size = pluralise(explanation.cluster_size, "document")
    times = "once" if weight == 1 else f"{weight:g} times"
    return f"counts {times}, by mixture.cluster_weights for a cluster of {size}"


def _about_cut(cut: "Cut") -> str:
    from pipeline.runs.records import describe_place

    span = f"bytes {cut.byte_start:,} to {cut.byte_end:,}, a {cut.kind}"
    if not cut.first:
        return span
    start = "" if cut.first_start is None else f", from byte {cut.first_start:,} on"
    return f"{span} that is first in {cut.first}  {describe_place(cut.place, '')}{start}"


def _about_more_cuts(explanation: "Explanation") -> str:
    more = explanation.cuts_total - len(explanation.cuts[:_CUTS])
    return f"{more:,} more; {layout.CUTS} has them all" if more else ""


def _about_text(explanation: "Explanation") -> str:
    record = explanation.record
    size = pluralise(record.text_bytes, "byte") if record.text_bytes else ""
    if not explanation.in_quarantine:
        return size
    key = record.place.key[:LEAST_DIGITS]
    command = f"prep quarantine show DIR {key} --by NAME"
    return f"{size}, in quarantine; `{command}` shows it and records that"


def _about_link(explanation: "Explanation", link: "Link") -> list[tuple[str, str]]:
    from pipeline.runs.records import describe_place

    similarities = (
        ("estimated", link.estimate),
        ("exact", link.jaccard),
        ("computed now", explanation.jaccard_now),
    )
    values = ", ".join(
        f"{name} {format_similarity(value)}" for name, value in similarities if value is not None
    )
    whole = explanation.recipe.preset.bands if explanation.recipe else 0
    bands = f" ({' '.join(map(str, link.bands))})" if link.bands else ""
    shared = f": {len(link.bands)} of {whole} bands shared{bands}" if whole else ""
    state = "" if link.state == "kept" else f", {link.state} itself"
    return [
        ("kept", f"{link.key}  {describe_place(link.place, link.index)}{state}"),
        ("kind", link.kind + shared),
        ("similarity", values or "not computed"),
        ("contained", f"{100 * link.share:.1f} % of its shingles" if link.share else ""),
        ("recipe", explanation.recipe.words if explanation.recipe else ""),
        ("texts", "" if explanation.texts else _why_no_texts(explanation, link)),
    ]


def _why_no_texts(explanation: "Explanation", link: "Link") -> str:
    from pipeline.runs.held_texts import QUARANTINED

    if link.place is None:
        return "the kept document is not in this run, so they cannot be compared"
    compared = "equal" if link.kind == "exact" else "not compared"
    if QUARANTINED in (explanation.record.state, link.state):
        return f"{compared}; the text is in quarantine"
    return f"{compared}; the text was taken down"


def _print_members(explanation: "Explanation") -> None:
    rows = []
    for link in explanation.stands_for:
        place = link.place
        at = (place.source, f"{place.file}:{place.line}") if place else ("", "")
        similarities = (format_similarity(link.estimate), format_similarity(link.jaccard))
        rows.append((link.key, *at, link.state, link.kind, len(link.bands), *similarities))
    total = explanation.stands_for_total
    columns = ("document", "source", "file:line", "state", "kind", "bands", "estimate", "exact J")
    show_table(columns, rows, title=f"kept instead of {total:,}")
    if total > len(explanation.stands_for):
        print_line(f"{total - len(explanation.stands_for):,} more; --all lists them")


def _print_texts(kept: str, own: str, rows: Iterable[LinePair], whole: bool) -> None:
    table = Table(box=None, padding=(0, 1), expand=True)
    for title in (f"kept {kept}", f"this {own}"):
        table.add_column("line", justify="right", style="dim")
        table.add_column(title, ratio=1, overflow="fold")
    for row in rows:
        if row.skipped:
            table.add_row("", Text(f"… {row.skipped:,} equal lines …", style="dim"), "", "")
            continue
        cut = row if whole else shorten_row(row)
        left, right = _mark_pieces(cut.left, *_REMOVED), _mark_pieces(cut.right, *_ADDED)
        table.add_row(str(row.left_line or ""), left, str(row.right_line or ""), right)
    out.print(table)


def _mark_pieces(pieces: Sequence[Piece], style: str, marks: str) -> Text:
    """Pieces without control characters, the different ones set apart."""
    text = Text()
    for piece, differs in pieces:
        # A tab that is the difference shows as \t, any other as blanks.
        readable = piece if differs else piece.replace("\t", "    ")
        readable = escape_text(readable, len(readable))
        if differs and not out.is_terminal:
            readable = marks.format(readable)
        text.append(readable, style=style if differs else None)
    return text
