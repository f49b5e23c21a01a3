"""The detector text_match: findings as the contract wants them."""

import json

import pyarrow as pa
import pytest

from pipeline.screening.evidence import FINDINGS
from pipeline.screening.fingerprints.build import build_index
from pipeline.screening.fingerprints.find import SEEN_WORDS, detect_passages
from pipeline.screening.fingerprints.index import FingerprintIndex
from pipeline.screening.fingerprints.sketch import sketch_text
from pipeline.screening.policy.attributes import OWN

from .conftest import invented


@pytest.fixture(scope="module")
def index() -> FingerprintIndex:
    return build_index([
        ("book-1", "excerpt", invented(1, 9000)),
        ("book-2", "excerpt", sketch_text(invented(2, 9000), 8, 5)),
    ])  # fmt: skip


def batch_of(texts: list[str]) -> pa.Table:
    return pa.table({"text": pa.array(texts, pa.large_string())})


def test_findings(index: FingerprintIndex) -> None:
    one, two = (" ".join(invented(n, 9000).split()[4000:4400]) for n in (1, 2))
    texts = ["nothing", f"Überdies {one}", f"{two} {invented(50, 900)} {one}"]
    found = detect_passages(batch_of(texts), index)
    assert found.schema == FINDINGS
    rows = found.to_pylist()
    assert [(r["row"], r["work_id"]) for r in rows] == [(1, "book-1"), (2, "book-2"), (2, "book-1")]
    for row in rows:
        attributes = json.loads(row["attributes"])
        assert row["kind"] == "passage"
        assert row["target"] == row["work_id"]
        assert row["score"] == attributes["hits"]
        assert attributes["verified"] == (row["work_id"] == "book-1")
        assert attributes["tier"] == "excerpt"
        assert attributes["containment"] > 0.9
        assert 380 <= attributes["words"] <= 403
        assert {a.name for a in OWN["text_match"]} >= set(attributes)
        data = texts[row["row"]].encode()[row["byte_offset"] :][: row["byte_length"]]
        assert data.decode().split()[:SEEN_WORDS] == row["seen"].split()
    assert json.loads(rows[0]["attributes"])["document_fraction"] > 0.98


def test_any_chunking(index: FingerprintIndex) -> None:
    texts = [invented(1, 9000)[n * 900 : n * 900 + 3000] for n in range(6)]
    batch = batch_of(texts)
    expected = detect_passages(batch, index)
    assert len(expected) == 6
    parts = pa.concat_tables([batch.slice(0, 2), batch.slice(2, 0), batch.slice(2)])
    assert detect_passages(parts, index).equals(expected)


def test_no_documents(index: FingerprintIndex) -> None:
    assert detect_passages(batch_of([]), index).equals(FINDINGS.empty_table())
    assert detect_passages(batch_of(["unrelated"]), index).equals(FINDINGS.empty_table())
