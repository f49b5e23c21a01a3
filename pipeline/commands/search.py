"""`prep search` and `prep trace`: words found in texts, and training data traced, back and forward.
Their options, one call each, and the answers of a search on a terminal and as JSON.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pipeline.commands.options import (
    FinishedRunArgument,
    JsonOption,
    RunArgument,
    WorkersOption,
    read_count,
)
from pipeline.commands.places import EXPOSURE
from pipeline.commands.terminal import out, print_json, print_line
from pipeline.commands.usage import commands
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.words import pluralise

if TYPE_CHECKING:
    from pipeline.explain.found_text import Snippet
    from pipeline.explain.search import FoundDocument, SearchAnswer


_SHOWN = 20
_PLACES, _ROWS, _STEPS = 3, 4, 6


def search(
    directory: FinishedRunArgument,
    words: str = "",
    index: bool = False,
    train: Path | None = None,
    limit: Annotated[int | None, typer.Option(min=0)] = None,
    skip: Annotated[int, typer.Option(min=0)] = 0,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find words in the texts of a run, word for word or nearly.

    Shows each document with file:line, state, HDF5 rows and training steps.

    WORDS: the words to find, in quotes; with --index they may be left out
    --index: make an index of the words of the run first, or bring it up to date; later searches
        read only the texts that it leaves
    --train MODEL_DIR: model_dir of a training run, to list its steps
    --limit N: list at most N documents [default: 20, all with --json]
    --skip N: leave out the first N documents, which an earlier call listed [default: 0]

    Examples:
    prep search runs/pile "the quick brown fox"
    prep search runs/pile "Permission is hereby granted" --limit 5 --train out
    prep search runs/pile "def forward(self" --json
    prep search runs/pile --index
    Case, punctuation and line breaks are ignored. For every five words, one may be changed, left
        out or added. For a longer text, `prep trace RUN --text FILE` finds near-duplicates and
        passages.
    """
    from pipeline.engine.progress import Progress
    from pipeline.explain.search import search_run as find

    if index:
        from pipeline.runs.generations import list_generations
        from pipeline.stories.word_index import index_words

        for generation in list_generations(directory):
            index_words(generation.directory, workers, progress=Progress(as_json=as_json))
        if not words:
            return None
    most = _SHOWN if limit is None and not as_json else limit
    progress = Progress(as_json=as_json)
    return show_search(find(directory, words, train, most, progress, skip), skip, as_json)


def show_search(answer: "SearchAnswer", skipped: int, as_json: bool) -> None:
    """Documents with their places, then what was looked at."""
    from pipeline.explain.text_search import describe_scope

    if as_json:
        return print_json(_json(answer))
    steps = answer.exposure
    for document in answer.documents:
        _show_document(document, steps is not None)
    shown = skipped + len(answer.documents)
    if answer.total > shown:
        print_line(_rest(answer.total - shown, shown, answer.is_exact))
    if not answer.total:
        print_line("no document contains these words, or most of them in this order")
    if steps is not None and answer.total:
        print_line(
            f"training run {steps.model_dir}: {pluralise(steps.last_step, 'step')}. {EXPOSURE}"
        )
    for line in describe_scope(answer.searched):
        print_line(line)
    return None


def _rest(documents: int, shown: int, is_exact: bool) -> str:
    """How many documents are not shown, and how they are.

    >>> print(_rest(1, 20, is_exact=True))
    and 1 more document (--limit, --skip 20, or --json for all)
    >>> print(_rest(85, 20, is_exact=False))
    and at most 85 more documents, which hold enough of these words (--limit, --skip 20)
    """
    more = pluralise(documents, "more document")
    if is_exact:
        return f"and {more} (--limit, --skip {shown}, or --json for all)"
    return f"and at most {more}, which hold enough of these words (--limit, --skip {shown})"


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
        "total_is_exact": answer.is_exact,
        "searched": searched,
        "training": training,
        "note": EXPOSURE,
    }


_MOST_TEXT_BYTES = 64 << 20

CountOption = Annotated[int | None, typer.Option(parser=read_count)]


def trace(
    directory: RunArgument,
    train: Path | None = None,
    step: CountOption = None,
    checkpoint: Path | None = None,
    file: Path | None = None,
    row: CountOption = None,
    tokens: str | None = None,
    document: str | None = None,
    work: str | None = None,
    isbn: str | None = None,
    reg: str | None = None,
    title: str | None = None,
    text: str | None = None,
    registry: Path | None = None,
    limit: Annotated[int | None, typer.Option(min=0)] = None,
    as_json: JsonOption = False,
) -> None:
    """Trace training data: from a step, checkpoint, row or token back to documents, or forward.

    Forward is from a document, work or text to rows, steps and checkpoints. Keys, places and
    numbers can be given as pages and commands print them.

    --train MODEL_DIR: model_dir of a training run
    --registry DIR: registry of works [default: the one the run was screened with]
    --limit N: list at most N [default: 20, all with --json]

    Backwards:
    --step N: a step, counted from 1; with --train
    --checkpoint PATH: a checkpoint, with --train
    --file SHARD[ROW]: an HDF5 shard of the run, and a row in it
    --row N: a row of that shard, counted from 0
    --tokens A[:B]: tokens A to B - 1 of that row, or of a corpus shard

    Forwards:
    --document KEY|FILE:LINE|FILE|SHARD[ROW]: a document, or all of a raw file or of a row, written
        as commands print them
    --work ID: a work of the registry
    --isbn NUMBER: an ISBN
    --reg NUMBER: a registration number such as TX 1-234-567
    --title: a title of the registry
    --text FILE|-: a text: finds the same text, near-duplicates and passages of it

    Examples, backwards to documents:
    prep trace runs/pile --train out --step 57
    prep trace runs/pile --train out --checkpoint step_0000500
    prep trace runs/pile --file hdf5/train/examples_000000.h5 --row 3 --tokens 100:200
    prep trace runs/corpus --file hdf5/train/examples_000000.h5 --tokens 123456
    Forwards, to rows, steps and checkpoints:
    prep trace runs/pile --document 550f72 --train out
    prep trace runs/pile --document web/a.jsonl:17
    prep trace runs/pile --work c0ffee00c0de --train out --json
    prep trace runs/pile --isbn 978-0-306-40615-7 --registry registries/claims
    prep trace runs/pile --text excerpt.txt --train out
    A step listed here read a row: that is exposure, not influence or memorisation.
    """
    from pipeline.api import questions
    from pipeline.commands.places import show_checkpoint, show_forward, show_spans
    from pipeline.engine.progress import Progress
    from pipeline.lineage.generations import trace_run_checkpoint
    from pipeline.lineage.trace import read_elsewhere, trace_step
    from pipeline.runs.references import split_row

    if file is not None and row is None and (place := split_row(str(file))) is not None:
        file, row = Path(place[0]), place[1]
    values: dict[str, Any] = {
        "step": step,
        "checkpoint": checkpoint,
        "file": file,
        "document": document,
        "work": work,
        "isbn": isbn,
        "reg": reg,
        "title": title,
        "text": text,
    }
    name = questions.choose_question(values, train, row, tokens, mark="--")
    if checkpoint is not None and train is not None:
        return show_checkpoint(trace_run_checkpoint(directory, train, checkpoint), limit, as_json)
    if step is not None and train is not None:
        spans = trace_step(directory, train, step)
        return show_spans(spans, limit, as_json, read_elsewhere(directory, train, step))
    if file is not None:
        between = None if tokens is None else _range(tokens)
        return show_spans(questions.find_spans(directory, file, row, between), limit, as_json)
    value = values[name] if text is None else _read(text)
    progress = Progress(as_json=as_json)
    answer = questions.trace_found(directory, (name, value), registry, train, progress)
    return show_forward(answer, answer.notes, limit, as_json)


register = commands(search, trace)


def _range(tokens: str) -> tuple[int, int]:
    from pipeline.runs.references import read_number

    first, mark, stop = tokens.replace("-", ":").partition(":")
    try:
        return read_number(first), read_number(stop) if mark else read_number(first) + 1
    except ValueError:
        raise typer.BadParameter(f"--tokens {tokens}: expected A or A:B, such as 100:200") from None


def _read(name: str) -> str:
    """The text in a file, or on standard input. Raises ConfigError, InputError."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(_MOST_TEXT_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(_MOST_TEXT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--text {name}: cannot read ({error.strerror})") from error
    if len(data) > _MOST_TEXT_BYTES:
        raise InputError(f"--text {name}: expected at most {_MOST_TEXT_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"--text {name}: not UTF-8 (byte {error.start})") from error
