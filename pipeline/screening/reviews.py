"""Decisions of people about single documents, recorded in reviews.jsonl: evidence of the detector
`review` in every later run.

A review names the text that was looked at by its hash. If the text changes, allow and redact become
a review that is due; quarantine and drop hold. The last of several reviews of a document counts.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationError

from pipeline.config.model import FrozenModel
from pipeline.core import ids
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.runs.events import append_event, append_line
from pipeline.screening.evidence import Finding, findings_table
from pipeline.screening.policy.rules import Decision

if TYPE_CHECKING:
    from pipeline.runs.records import RunRecord

REVIEWS = "reviews.jsonl"
_KEY = r"^[0-9a-f]{32}$"
_LAPSES = ("allow", "redact")
"""Decisions that hold for the reviewed text alone."""


class Review(FrozenModel):
    """One line of reviews.jsonl."""

    doc_key: str = Field(pattern=_KEY, description="the document")
    text_key: str = Field(pattern=_KEY, description="hash of the text that was reviewed")
    decision: Decision
    by: str = Field(min_length=1, max_length=200, description="who decided")
    note: str = Field(min_length=1, max_length=2000, description="why")
    spans: tuple[tuple[int, int], ...] = Field(
        (), description="[first byte, byte after the last] of what to redact"
    )
    event: int = Field(ge=1, description="number of the event that records it")


def record_review(
    directory: Path,
    document: str,
    decision: Decision,
    by: str,
    note: str,
    spans: Sequence[tuple[int, int]] = (),
) -> Review:
    """Add a review of a document (as `prep explain` takes it) of a run to its event log,
    then to reviews.jsonl; the next `prep run` takes it. Spans are bytes of the cleaned text.

    Raises InputError for an unknown document or one without a text, ConfigError for spans that are
    missing, unwanted or not in the text, IntegrityError when the event log does not hold together.
    """
    from pipeline.runs.held_texts import read_held_text
    from pipeline.runs.records import RunRecords

    records = RunRecords(directory)
    record = records.find(document)
    key = bytes.fromhex(record.place.key)
    text = _encode_text(records.texts([key]) or read_held_text(directory, key), record)
    if not by.strip() or not note.strip():
        raise ConfigError("--by and --note: expected the name of a person, and a reason")
    what = {
        "doc_key": record.place.key,
        "text_key": ids.text_key(text).hex(),
        "decision": decision,
        "note": note,
        "spans": _check_spans(decision, spans, text),
    }
    try:
        Review.model_validate_json(json.dumps({**what, "by": by, "event": 1}))
    except ValidationError as error:
        raise ConfigError(f"a review: {_describe_error(error)}") from error
    event = append_event(directory, "review", by, what)
    review = Review.model_validate_json(json.dumps({**what, "by": by, "event": event.n}))
    append_line(directory / REVIEWS, review.model_dump_json())
    return review


def _encode_text(texts: dict[bytes, str], record: "RunRecord") -> bytes:
    if not texts:
        state = record.state or "not decided"
        raise InputError(
            f"{record.place.key}: {state}; the run has no text of it, so it cannot be reviewed"
        )
    return next(iter(texts.values())).encode()


def _check_spans(
    decision: Decision, spans: Sequence[tuple[int, int]], text: bytes
) -> list[tuple[int, int]]:
    """Spans in order. Raises ConfigError."""
    if bool(spans) != (decision == "redact"):
        raise ConfigError("--span: expected one or more with --decision redact, and only with it")
    for start, end in spans:
        if not 0 <= start < end <= len(text):
            raise ConfigError(
                f"--span {start}:{end}: expected FIRST:END with FIRST below END, both in the "
                f"{len(text):,} bytes of the text"
            )
        if any(place < len(text) and text[place] & 0xC0 == 0x80 for place in (start, end)):
            raise ConfigError(f"--span {start}:{end}: ends inside a character")
    return sorted(spans)


def load_reviews(path: Path) -> tuple[Review, ...]:
    """All reviews in a file, oldest first; none when there is no file. A last line that a crash
    left unfinished is passed over. Raises InputError naming file and line."""
    if not path.exists():
        return ()
    *lines, _ = path.read_bytes().split(b"\n")
    reviews = []
    for number, line in enumerate(lines, 1):
        try:
            reviews.append(Review.model_validate_json(line))
        except ValidationError as error:
            raise InputError(
                f"{path}:{number}: {_describe_error(error)}; expected a review as "
                "`prep policy review` writes it"
            ) from error
    return tuple(reviews)


def _describe_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return escape_text(": ".join([*map(str, first["loc"]), first["msg"]]))


def make_review_findings(reviews: Iterable[Review], batch: pa.Table) -> pa.Table:
    """FINDINGS about the documents of a batch (columns doc_key and text): of each one its last
    review, a row for every span or one without a place. kind: `current`, or `outdated` when the
    text is another one; target: the decision that counts."""
    last = {bytes.fromhex(review.doc_key): review for review in reviews}
    reviewed_keys = pa.array(last, pa.binary(ids.KEY_BYTES))
    rows = np.flatnonzero(pc.is_in(batch["doc_key"], reviewed_keys).to_numpy(zero_copy_only=False))
    findings: list[Finding] = []
    for row in rows.tolist():
        text = batch["text"][row].as_buffer().to_pybytes()
        findings += _make_findings(row, last[batch["doc_key"][row].as_py()], text)
    return findings_table(findings)


def _make_findings(row: int, review: Review, text: bytes) -> list[Finding]:
    current = ids.text_key(text).hex() == review.text_key
    decision = "review" if review.decision in _LAPSES and not current else review.decision
    attributes = {"by": review.by, "note": review.note, "event": review.event}
    spans = review.spans if decision == "redact" else ((0, 0),)
    kind = "current" if current else "outdated"
    return [
        Finding(
            row=row,
            kind=kind,
            target=decision,
            byte_offset=a,
            byte_length=b - a,
            attributes=attributes,
        )
        for a, b in spans
    ]
