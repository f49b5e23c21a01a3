"""`prep search`: its options, one call, and its answers on a terminal and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pipeline.commands.options import FinishedRunArgument, JsonOption
from pipeline.commands.places import EXPOSURE
from pipeline.commands.terminal import out, print_json, print_line
from pipeline.commands.usage import commands
from pipeline.core.errors import escape_text
from pipeline.core.words import pluralise

if TYPE_CHECKING:
    from pipeline.explain.search import FoundDocument, SearchAnswer, Snippet


_SHOWN = 20
_PLACES, _ROWS, _STEPS = 3, 4, 6


def search(
    directory: FinishedRunArgument,
    words: str,
    train: Path | None = None,
    limit: Annotated[int | None, typer.Option(min=0)] = None,
    as_json: JsonOption = False,
) -> None:
    """Find words in the texts of a run, word for word or nearly.

    Shows each document with file:line, state, HDF5 rows and training steps.

    WORDS: the words to find, in quotes
    --train MODEL_DIR: model_dir of a training run, to list its steps
    --limit N: list at most N documents [default: 20, all with --json]

    Examples:
    prep search runs/pile "the quick brown fox"
    prep search runs/pile "Permission is hereby granted" --limit 5 --train out
    prep search runs/pile "def forward(self" --json
    Case, punctuation and line breaks are ignored. For every five words, one may be changed, left
        out or added. For a longer text, `prep trace RUN --text FILE` finds near-duplicates and
        passages.
    """
    from pipeline.engine.progress import Progress
    from pipeline.explain.search import search_run as find

    most = _SHOWN if limit is None and not as_json else limit
    show_search(find(directory, words, train, most, Progress()), as_json)


register = commands(search)


def show_search(answer: "SearchAnswer", as_json: bool) -> None:
    """Documents with their places, then what was looked at."""
    from pipeline.explain.search import describe_scope

    if as_json:
        return print_json(_json(answer))
    steps = answer.exposure
    for document in answer.documents:
        _show_document(document, steps is not None)
    shown = len(answer.documents)
    if answer.total > shown:
        print_line(
            f"and {pluralise(answer.total - shown, 'more document')} (--limit, or --json for all)"
        )
    if not answer.total:
        print_line("no document contains these words, or most of them in this order")
    if steps is not None and answer.total:
        print_line(
            f"training run {steps.model_dir}: {pluralise(steps.last_step, 'step')}. {EXPOSURE}"
        )
    for line in describe_scope(answer.searched):
        print_line(line)
    return None


def _show_document(document: "FoundDocument", with_steps: bool) -> None:
    from pipeline.runs.held_texts import IN_QUARANTINE

    d = document.traced
    state = f"taken down by {d.taken_down}" if d.taken_down else f"{d.state} {d.reason}".strip()
    split = f", {d.split}" if d.split else ""
    decision = f", {d.decision} {d.rule}".rstrip() if d.decision not in ("", "allow") else ""
    out.print(Text(f"{escape_text(d.path)}:{d.line}", "bold"), soft_wrap=True)
    print_line(f"  {d.document}  {d.source}  {state}{split}{decision}")
    if document.rows:
        where = "in" if document.of_words else "document in"
        print_line(f"  {where} {_first(document.rows, _ROWS)}")
    if with_steps:
        steps = document.steps
        print_line(f"  read at step {_first(steps, _STEPS)}" if steps else "  read by no step")
    if document.text.in_quarantine:
        count = document.text.exact + document.text.near
        return print_line(f"  {pluralise(count, 'place')}: {IN_QUARANTINE}")
    for place in document.text.places[:_PLACES]:
        out.print(_line(place), soft_wrap=True)
    rest = document.text.exact + document.text.near - _PLACES
    if rest > 0:
        print_line(f"  and {pluralise(rest, 'more place')}")


def _first(items: Sequence[object], most: int) -> str:
    """The first items, and how many more there are.

    >>> _first([3, 5], 2), _first("abcd", 2)
    ('3, 5', 'a, b and 2 more')
    """
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def _line(place: "Snippet") -> Text:
    """A place on one line, the match in bold; where nothing can be bold, between brackets."""
    opened, closed = ("", "") if out.is_terminal else ("[[", "]]")
    many = len(place.match)
    line = Text("  …" + escape_text(place.before, many + 400))
    line.append(opened + escape_text(place.match, many) + closed, "bold yellow")
    line.append(escape_text(place.after, many + 400) + "…")
    if place.changed:
        line.append(f"  ({pluralise(place.changed, 'word')} changed)", "dim")
    return line


def _json(answer: "SearchAnswer") -> dict[str, Any]:
    documents = []
    for document in answer.documents:
        d = vars(document.traced)
        fields = {name: value for name, value in d.items() if name not in ("doc", "because")}
        documents.append(
            {
                **fields,
                "place": f"{d['path']}:{d['line']}",
                "exact": document.text.exact,
                "near": document.text.near,
                "by_characters": document.text.by_characters,
                "in_quarantine": document.text.in_quarantine,
                "in_rows": list(document.rows),
                "of_words": document.of_words,
                "read_at_steps": list(document.steps),
                "places": [asdict(p) for p in document.text.places],
            }
        )
    searched = {**asdict(answer.searched), "home": str(answer.searched.home)}
    steps = answer.exposure
    training = {"model_dir": str(steps.model_dir), "last_step": steps.last_step} if steps else None
    return {
        "documents": documents,
        "documents_total": answer.total,
        "searched": searched,
        "training": training,
        "note": EXPOSURE,
    }
