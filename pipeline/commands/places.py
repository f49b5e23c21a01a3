"""How `prep trace` answers look on a terminal and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipeline.commands.terminal import print_json, print_line, show_table
from pipeline.core.words import pluralise

if TYPE_CHECKING:
    from pipeline.lineage.checkpoint_trace import CheckpointTrace
    from pipeline.lineage.exposure import Exposure, ForwardTrace, TracedDocument
    from pipeline.lineage.rearranged import SpanPart
    from pipeline.lineage.trace import TokenSpan
    from pipeline.lineage.training import Period, TrainingCheckpoint


EXPOSURE = "Steps listed are exposure, not influence or memorisation."
_SHOWN = 20
_SHOWN_STEPS = 12


def show_spans(
    spans: "Sequence[TokenSpan]",
    limit: int | None,
    as_json: bool,
    elsewhere: Sequence[tuple[str, int]] = (),
) -> None:
    """Spans of rows, each with its document; `elsewhere`: other data sets that the step read, and
    how many rows of each."""
    if as_json:
        return print_json([_span_json(span) for span in _first(spans, limit)])
    shown = spans[: _SHOWN if limit is None else limit]
    rows = []
    for s in shown:
        place = s.file if s.row is None else f"{s.file}[{s.row}]"
        labels = "-" if s.label_start is None else _range(s.label_start, s.label_end or 0)
        numbers = (_range(s.token_start, s.token_end), labels)
        about = (s.document, s.source, f"{s.path}:{s.line}", s.licence or "-")
        decision = "taken down" if s.masked else f"{s.decision} {s.rule}".strip()
        parts = "; ".join(map(_describe_part, s.parts)) or "-"
        rows.append((place, *numbers, *about, decision, parts))
    columns = ("row", "tokens", "labels", "document", "source", "file:line", "licence", "decision")
    if any(span.parts for span in shown):
        show_table((*columns, "parts"), rows)
    else:
        show_table(columns, [row[:-1] for row in rows])
    _say_rest(len(spans), len(shown))
    for name, count in elsewhere:
        print_line(f"not traced here: {pluralise(count, 'row')} of another data set, {name}")


def _span_json(span: "TokenSpan") -> dict[str, Any]:
    """A span as JSON; the parts are those of a rearranged document and left out of any other."""
    value = asdict(span)
    return value if value["parts"] else {k: v for k, v in value.items() if k != "parts"}


def _describe_part(part: "SpanPart") -> str:
    tokens = f"{part.name} {_range(part.token_start, part.token_end)}"
    if part.name == "marker":
        return tokens
    return f"{tokens}: bytes {_range(part.byte_start, part.byte_end)}"


def show_forward(
    trace: "ForwardTrace", notes: Sequence[str], limit: int | None, as_json: bool
) -> None:
    """Documents, their share of every split, and what a training run read of them."""
    if as_json:
        return print_json(_forward(trace, notes, limit))
    for note in notes:
        print_line(note)
    if not trace.documents:
        return print_line("no document was found")
    documents = trace.documents[: _SHOWN if limit is None else limit]
    _print_documents(documents, trace.exposure is not None)
    _say_rest(len(trace.documents), len(documents))
    for split in trace.splits:
        share = split.tokens / split.stream_tokens if split.stream_tokens else 0.0
        print_line(
            f"{split.split}: {pluralise(split.documents, 'document')}, "
            f"{pluralise(split.copies, 'copy')}, {split.tokens:,} of "
            f"{pluralise(split.stream_tokens, 'token')} ({share:.4%}), "
            f"{pluralise(split.rows, 'row')}"
        )
    _say_places(trace, documents, limit)
    return _say_exposure(trace.exposure)


def _print_documents(documents: "Sequence[TracedDocument]", with_steps: bool) -> None:
    rows = []
    for d in documents:
        state = f"taken down by {d.taken_down}" if d.taken_down else f"{d.state} {d.reason}".strip()
        about = (d.document, f"{d.path}:{d.line}", d.source, state, d.split or "-")
        copies = f" x {d.copies}" if d.copies > 1 else ""
        context = f" + {d.context_rows} context" if d.context_rows else ""
        step_cells = (str(d.first_step or "-"), f"{d.steps:,}") if with_steps else ()
        because = d.because or "asked for"
        rows.append((*about, f"{d.tokens:,}{copies}", f"{d.rows:,}{context}", *step_cells, because))
    columns = ("document", "file:line", "source", "state", "split", "tokens", "rows")
    steps = ("first step", "steps") if with_steps else ()
    show_table((*columns, *steps, "because"), rows)


def _say_places(
    trace: "ForwardTrace", documents: "Sequence[TracedDocument]", limit: int | None
) -> None:
    keys = {d.doc: d.document for d in documents}
    places = [p for p in trace.places.to_pylist() if p["doc"] in keys]
    most = _SHOWN if limit is None else limit
    rows = []
    for p in places[:most]:
        row = p["file"] if p["row"] is None else f"{p['file']}[{p['row']}]"
        labels = "-" if p["row"] is None else _range(p["label_start"], p["label_end"])
        rows.append((keys[p["doc"]], row, _range(p["token_start"], p["token_end"]), labels))
    show_table(("document", "row", "tokens", "labels"), rows)
    _say_rest(len(places), len(rows))


def _say_exposure(exposure: "Exposure | None") -> None:
    if exposure is None:
        return
    steps, name = exposure.steps, exposure.model_dir
    print_line(f"training run {name}: {pluralise(exposure.last_step, 'step')}")
    if steps:
        print_line(
            f"{pluralise(len(steps), 'step')} read a label of them "
            f"({pluralise(exposure.labels_read, 'label')} in all): {_steps(steps)}"
        )
    else:
        print_line("no step read a label of them")
    if exposure.context_steps:
        print_line(
            f"{pluralise(len(exposure.context_steps), 'step')} read them as context only: "
            f"{_steps(exposure.context_steps)}"
        )
    print_line(f"first checkpoint exposed: {_checkpoint(exposure.first_exposed)}")
    print_line(f"last checkpoint not exposed: {_checkpoint(exposure.last_unexposed)}")
    if exposure.next_step is not None:
        print_line(f"next step that would read a label of them: {exposure.next_step:,}")
    _say_elsewhere(exposure.elsewhere)
    print_line(EXPOSURE)


def show_checkpoint(trace: "CheckpointTrace", limit: int | None, as_json: bool) -> None:
    """Sources and documents behind a checkpoint."""
    if as_json:
        return print_json(_checkpoint_json(trace, limit))
    print_line(
        f"{trace.checkpoint.path}: steps 1 to {trace.checkpoint.step:,} read {trace.rows:,} of "
        f"{pluralise(trace.rows_of_data_set, 'row')}, {pluralise(trace.labels_read, 'label')} of "
        f"{pluralise(len(trace.documents), 'document')}"
    )
    if trace.context_only:
        more = pluralise(trace.context_only, "more document")
        print_line(f"read as context only: {more}")
    counts = trace.sources.to_pylist()
    sources = ((s["source"], f"{s['documents']:,}", f"{s['labels_read']:,}") for s in counts)
    show_table(("source", "documents", "labels read"), sources)
    most = _SHOWN if limit is None else limit
    rows = []
    for d in trace.documents.slice(0, most).to_pylist():
        place, labels = f"{d['path']}:{d['line']}", f"{d['labels_read']:,}"
        rows.append((d["document"], d["source"], place, d["licence"] or "-", labels))
    show_table(("document", "source", "file:line", "licence", "labels read"), rows)
    _say_rest(len(trace.documents), min(most, len(trace.documents)))
    _say_elsewhere(trace.elsewhere)
    return print_line(EXPOSURE)


def _forward(trace: "ForwardTrace", notes: Sequence[str], limit: int | None) -> dict[str, Any]:
    documents = _first(trace.documents, limit)
    docs = {document.doc for document in documents}
    places = [place for place in trace.places.to_pylist() if place["doc"] in docs]
    exposure = trace.exposure
    return {
        "documents_total": len(trace.documents),
        "documents": [vars(document) for document in documents],
        "splits": [vars(split) for split in trace.splits],
        "places": places,
        "exposure": exposure
        and {
            **vars(exposure),
            "model_dir": str(exposure.model_dir),
            "first_exposed": _describe_checkpoint(exposure.first_exposed),
            "last_unexposed": _describe_checkpoint(exposure.last_unexposed),
            "elsewhere": [asdict(period) for period in exposure.elsewhere],
            "note": EXPOSURE,
        },
        "notes": list(notes),
    }


def _checkpoint_json(trace: "CheckpointTrace", limit: int | None) -> dict[str, Any]:
    documents = trace.documents if limit is None else trace.documents.slice(0, limit)
    return {
        "model_dir": str(trace.model_dir),
        "checkpoint": _describe_checkpoint(trace.checkpoint),
        "rows": trace.rows,
        "rows_of_data_set": trace.rows_of_data_set,
        "labels_read": trace.labels_read,
        "context_only": trace.context_only,
        "sources": trace.sources.to_pylist(),
        "documents_total": len(trace.documents),
        "documents": documents.to_pylist(),
        "elsewhere": [asdict(period) for period in trace.elsewhere],
        "note": EXPOSURE,
    }


def _describe_checkpoint(checkpoint: "TrainingCheckpoint | None") -> dict[str, Any] | None:
    return {"step": checkpoint.step, "path": str(checkpoint.path)} if checkpoint else None


def _checkpoint(checkpoint: "TrainingCheckpoint | None") -> str:
    return "none" if checkpoint is None else f"{checkpoint.path} (step {checkpoint.step:,})"


def _say_elsewhere(periods: "Sequence[Period]") -> None:
    for p in periods:
        print_line(
            f"not traced here: steps {p.first:,} to {p.stop - 1:,}, which read another data set, "
            f"{p.dataset_hash}"
        )


def _first(items: Sequence[Any], limit: int | None) -> Sequence[Any]:
    return items if limit is None else items[:limit]


def _say_rest(total: int, shown: int) -> None:
    if total > shown:
        print_line(f"and {total - shown:,} more (--limit, or --json for all)")


def _range(start: int, end: int) -> str:
    return f"{start}-{end}" if end > start else "-"


def _steps(steps: Sequence[int]) -> str:
    """The first steps, and the last of more.

    >>> _steps([3, 5]), _steps(range(1, 21))
    ('3, 5', '1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … 20')
    """
    if len(steps) <= _SHOWN_STEPS:
        return ", ".join(map(str, steps))
    return ", ".join(map(str, steps[: _SHOWN_STEPS - 1])) + f", … {steps[-1]}"
