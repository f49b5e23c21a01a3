"""The detector `text_match`: passages of a registry's works, by their text."""

import pyarrow as pa

from pipeline.provenance.detectors.contract import (
    FINDINGS,
    SEEN_BYTES,
    Finding,
    attributes_json,
    findings_table,
)
from pipeline.provenance.fingerprints.find import passages_of_texts
from pipeline.provenance.fingerprints.index import FingerprintIndex

KIND = "passage"
SEEN_WORDS = 15
"""Words of a passage that `seen` shows at most, from its beginning."""


def detect_passages(batch: pa.Table, index: FingerprintIndex) -> pa.Table:
    """FINDINGS: a row per passage; target and work_id are the work's id, the score is its hits.

    Attributes: document_fraction and work_fraction, the words in passages that both hold as a share
    of the document's and of the work's words; longest_run_words, words in a row that both hold (all
    three estimates where `verified` is false); words of the passage, edited ones included; hits;
    tier of the work; containment, the share of the passage's grams that the work holds; verified,
    whether it was compared with the work's own words.
    """
    texts = batch["text"]
    found = passages_of_texts(texts, index)
    if not len(found.document):
        return FINDINGS.empty_table()
    works = index.works.select(["work_id", "tier", "is_stored"]).take(pa.array(found.work))
    columns = zip(*(column.tolist() for column in found), strict=True)
    findings = []
    for passage, work in zip(columns, works.to_pylist(), strict=True):
        row, _, start, stop, hits, longest, words, matched, grams, _, fraction, of_work = passage
        attributes = attributes_json({
            "containment": round(matched / grams, 4), "document_fraction": round(fraction, 4),
            "hits": hits, "longest_run_words": longest, "tier": work["tier"],
            "verified": work["is_stored"], "words": words, "work_fraction": round(of_work, 4),
        })  # fmt: skip
        findings.append(Finding(
            row, KIND, work["work_id"], _beginning(texts[row], start, stop), start, stop - start,
            work["work_id"], float(hits), attributes,
        ))  # fmt: skip
    return findings_table(findings)


def _beginning(text: pa.Scalar, start: int, stop: int) -> str:
    """The first words of the bytes [start, stop) of a text."""
    data = text.as_buffer()[start : min(stop, start + 2 * SEEN_BYTES)].to_pybytes()
    return " ".join(data.decode(errors="ignore").split()[:SEEN_WORDS])
