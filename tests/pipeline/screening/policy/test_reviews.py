"""Reviews: recorded in the log and in a file, evidence of the next run, bound to the text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core import ids
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.runs.events import EVENTS, verify_events
from pipeline.screening.evidence import FINDINGS
from pipeline.screening.policy.evaluation import evaluate_policy
from pipeline.screening.policy.propagation import find_redaction_spans
from pipeline.screening.policy.rules import Policy
from pipeline.screening.reviews import (
    REVIEWS,
    Review,
    load_reviews,
    make_review_findings,
    record_review,
)

Make = Callable[..., Any]


@pytest.fixture
def batch(run: Path) -> pa.Table:
    """The documents of the run, as a detector sees them."""
    with pa.memory_map(str(run / "documents/000000.arrow")) as file:
        return pa.ipc.open_file(file).read_all()


def changed(batch: pa.Table) -> pa.Table:
    """The same documents with other texts."""
    texts = pa.array([text + " More." for text in batch["text"].to_pylist()], pa.large_string())
    return batch.set_column(batch.column_names.index("text"), "text", texts)


def test_a_review_is_recorded(run: Path, make_key: Make) -> None:
    key = make_key(2).hex()
    review = record_review(run, key, "allow", "A. Reader", "a mistake: our own manual")
    event = verify_events(run).events[0]
    assert (event.kind, event.by, event.n) == ("review", "A. Reader", review.event)
    assert event.what == {
        "doc_key": key, "text_key": review.text_key, "decision": "allow",
        "note": "a mistake: our own manual", "spans": [],
    }  # fmt: skip
    assert load_reviews(run / REVIEWS) == (review,)
    line = json.loads((run / REVIEWS).read_text())
    assert "at" not in line and line["event"] == 1
    second = record_review(run, "web/a.jsonl:3", "drop", "B. Reader", "no")
    assert second.doc_key == make_key(3).hex() and second.event == 2
    assert load_reviews(run / REVIEWS) == (review, second)


def test_findings(run: Path, batch: pa.Table, make_key: Make) -> None:
    record_review(run, make_key(2).hex(), "drop", "A. Reader", "first thought")
    review = record_review(run, make_key(2).hex(), "allow", "B. Reader", "on reflection")
    record_review(run, make_key(4).hex(), "redact", "B. Reader", "two names", [(9, 14), (0, 7)])
    found = make_review_findings(load_reviews(run / REVIEWS), batch)
    assert found.schema == FINDINGS
    told = [
        (f["row"], f["kind"], f["target"], f["byte_offset"], f["byte_length"])
        for f in found.to_pylist()
    ]
    assert told == [
        (1, "current", "allow", 0, 0), (3, "current", "redact", 0, 7),
        (3, "current", "redact", 9, 5),
    ]  # fmt: skip
    assert json.loads(found["attributes"][0].as_py()) == {
        "by": "B. Reader", "event": review.event, "note": "on reflection",
    }  # fmt: skip
    parts = [make_review_findings(load_reviews(run / REVIEWS), batch.slice(n, 2)) for n in (0, 2)]
    assert [len(part) for part in parts] == [1, 2]
    chunked = pa.concat_tables([batch.slice(0, 1), batch.slice(1)])
    assert make_review_findings(load_reviews(run / REVIEWS), chunked).equals(found)
    assert make_review_findings([], batch).equals(FINDINGS.empty_table())
    assert len(make_review_findings(load_reviews(run / REVIEWS), batch.slice(0, 0))) == 0


@pytest.mark.parametrize(
    ("decision", "counts"),
    [("allow", "review"), ("redact", "review"), ("review", "review"),
     ("quarantine", "quarantine"), ("drop", "drop")],
)  # fmt: skip
def test_another_text(
    decision: Any, counts: str, run: Path, batch: pa.Table, make_key: Make
) -> None:
    """What let a text pass does not let another pass; what kept it out does."""
    spans = [(0, 7)] if decision == "redact" else []
    record_review(run, make_key(4).hex(), decision, "A. Reader", "seen", spans)
    found = make_review_findings(load_reviews(run / REVIEWS), changed(batch)).to_pylist()
    assert [(f["kind"], f["target"], f["byte_length"]) for f in found] == [("outdated", counts, 0)]


def test_a_redaction_reaches_the_spans(
    run: Path, batch: pa.Table, default_policy: Policy, make_row: Make, make_evidence: Make,
    make_key: Make,
) -> None:  # fmt: skip
    record_review(run, make_key(4).hex(), "redact", "A. Reader", "a name", [(0, 7), (5, 9)])
    findings = make_review_findings(load_reviews(run / REVIEWS), batch).to_pylist()
    rows = [
        make_row(4, n, "review", **{k: v for k, v in f.items() if k not in ("row", "kind")},
                 kind=f["kind"])
        for n, f in enumerate(findings)
    ]  # fmt: skip
    evidence = make_evidence(rows)
    decisions = evaluate_policy(default_policy, evidence)
    assert decisions["decision"].to_pylist() == ["redact"]
    spans = find_redaction_spans(decisions, evidence).to_pylist()
    assert [(s["byte_offset"], s["byte_length"]) for s in spans] == [(0, 9)]


REFUSED = [
    ("redact", [], "expected one or more with --decision redact"),
    ("allow", [(0, 3)], "only with it"),
    ("redact", [(3, 3)], r"--span 3:3: expected FIRST:END"),
    ("redact", [(-1, 3)], r"--span -1:3"),
    ("redact", [(0, 999)], r"in the 51 bytes of the text"),
    ("redact", [(0, 2)], r"--span 0:2: ends inside a character"),
    ("redact", [(2, 5)], r"--span 2:5: ends inside a character"),
]


@pytest.mark.parametrize(("decision", "spans", "message"), REFUSED)
def test_refused(decision: Any, spans: Any, message: str, run: Path, make_key: Make) -> None:
    with pytest.raises(ConfigError, match=message):
        record_review(run, make_key(4).hex(), decision, "A. Reader", "seen", spans)
    assert not (run / EVENTS).exists() and not (run / REVIEWS).exists()


@pytest.mark.parametrize(("by", "note"), [(" ", "seen"), ("A. Reader", ""), ("x" * 201, "seen")])
def test_a_name_and_a_reason(by: str, note: str, run: Path, make_key: Make) -> None:
    with pytest.raises(ConfigError):
        record_review(run, make_key(4).hex(), "drop", by, note)
    assert not (run / EVENTS).exists()


def test_documents_that_cannot_be_reviewed(run: Path, tmp_path: Path, make_key: Make) -> None:
    with pytest.raises(InputError, match="no such document"):
        record_review(run, "f" * 32, "drop", "A. Reader", "seen")
    with pytest.raises(InputError, match="no such run directory"):
        record_review(tmp_path / "none", "f" * 32, "drop", "A. Reader", "seen")
    (run / "documents/000000.arrow").unlink()
    with pytest.raises(InputError, match="no text of it, so it cannot be reviewed"):
        record_review(run, make_key(1).hex(), "drop", "A. Reader", "seen")


def test_a_broken_log_takes_no_review(run: Path, make_key: Make) -> None:
    record_review(run, make_key(4).hex(), "drop", "A. Reader", "seen")
    path = run / EVENTS
    path.write_text(path.read_text().replace("A. Reader", "B. Reader"))
    with pytest.raises(IntegrityError, match="event 1"):
        record_review(run, make_key(2).hex(), "drop", "A. Reader", "seen")
    assert len(load_reviews(run / REVIEWS)) == 1


def test_reading(run: Path, tmp_path: Path, make_key: Make) -> None:
    assert load_reviews(tmp_path / "none") == ()
    review = record_review(run, make_key(4).hex(), "drop", "A. Reader", "seen")
    path = run / REVIEWS
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    assert load_reviews(path) == (review,)
    again = record_review(run, make_key(4).hex(), "drop", "A. Reader", "seen again")
    assert load_reviews(path) == (review, again)
    for wrong in (b"{}\n", b"not json\n", whole.replace(b'"drop"', b'"delete"'),
                  whole.replace(b'"by"', b'"bye"')):  # fmt: skip
        path.write_bytes(whole + wrong)
        with pytest.raises(InputError, match=r"reviews\.jsonl:2: "):
            load_reviews(path)


def test_a_review_names_its_text(run: Path, make_key: Make) -> None:
    review = record_review(run, make_key(4).hex(), "review", "A. Reader", "look again")
    text = "Wörter mit Umlauten, und eine Seite über Flüsse."
    assert review.text_key == ids.text_key(text.encode()).hex()
    assert Review.model_validate_json(review.model_dump_json()) == review
    assert pq.read_table(run / "documents.parquet").num_rows == 4
