"""Findings, evidence and decisions: the tables between detectors, policy and reports.

A detector is a pure function from a batch of documents (`BATCH_COLUMNS`) to a table of `FINDINGS`,
ordered by row, byte_offset, kind, target, work_id. It never decides. The findings of all detectors
become evidence, from which the policy makes decisions. Shards of both have `doc_id` besides.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.runs import layout

DECISIONS = ("allow", "review", "redact", "quarantine", "drop")
"""In order of rank: a cluster's representative has the smallest."""

EVIDENCE_SCHEMA = pa.schema([
    ("evidence_id", pa.string()), ("doc_id", pa.uint64()), ("doc_key", pa.binary(16)),
    ("detector", pa.string()), ("rule", pa.string()), ("kind", pa.string()),
    ("target", pa.string()), ("work_id", pa.string()), ("seen", pa.string()),
    ("byte_offset", pa.uint64()), ("byte_length", pa.uint64()), ("score", pa.float64()),
    ("attributes", pa.string()),
])  # fmt: skip
"""evidence_id: hex key, a letter for the stage, a number. rule: the filter or the rule of
decontamination that failed; empty for detectors. The rest: `detectors.contract.FINDINGS`."""

DECISION_SCHEMA = pa.schema([
    ("doc_id", pa.uint64()), ("doc_key", pa.binary(16)), ("decision", pa.string()),
    ("rule", pa.string()), ("reason", pa.string()), ("evidence", pa.list_(pa.string())),
    ("propagated_from", pa.binary(16)),
])  # fmt: skip
"""A document without a row is allowed. propagated_from: the document of the same cluster whose
decision this one has taken over; null for an own decision."""


def find_screenings(directory: Path) -> list[Path]:
    """Where evidence on a run's documents is: in the run, and in every finished rescan of it
    (`prep rescan`), by name."""
    later = sorted((directory / layout.RESCANS).glob(f"*/{layout.MANIFEST}"))
    places = [directory, *(manifest.parent for manifest in later)]
    return [place for place in places if (place / layout.EVIDENCE).exists()]


def make_table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """Rows of Python values as a table."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


BATCH_COLUMNS = ["doc_key", "source", "licence", "meta", "path_id", "text"]

FINDINGS = pa.schema([
    ("row", pa.int64()), ("kind", pa.string()), ("target", pa.string()), ("work_id", pa.string()),
    ("seen", pa.string()), ("byte_offset", pa.uint64()), ("byte_length", pa.uint64()),
    ("score", pa.float64()), ("attributes", pa.string()),
])  # fmt: skip
"""row: in the batch. work_id: a work of a registry, or empty. seen: the text found, at most
`SEEN_BYTES`. byte_offset, byte_length: in the text; both 0 for metadata. score:
detector's own, or null. attributes: `encode_attributes`, or empty."""

SEEN_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row of FINDINGS."""

    row: int
    kind: str
    target: str
    seen: str = ""
    byte_offset: int = 0
    byte_length: int = 0
    work_id: str = ""
    score: float | None = None
    attributes: str | Mapping[str, Any] = ""
    """A mapping becomes the JSON that the column holds."""


def findings_table(findings: Iterable[Finding]) -> pa.Table:
    """FINDINGS in the order of the contract; `seen` is cut after `SEEN_BYTES`."""
    ordered = sorted(
        findings, key=lambda f: (f.row, f.byte_offset, f.kind, f.target, f.work_id, f.seen)
    )
    columns: dict[str, list[Any]] = {
        name: [getattr(finding, name) for finding in ordered] for name in FINDINGS.names
    }
    columns["seen"] = [_cut(seen) for seen in columns["seen"]]
    columns["attributes"] = [
        value if isinstance(value, str) else encode_attributes(value)
        for value in columns["attributes"]
    ]
    return pa.table(columns, schema=FINDINGS)


_ATTRIBUTES = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def encode_attributes(attributes: Mapping[str, Any]) -> str:
    """The JSON object that the column `attributes` holds: sorted keys, no spaces.

    >>> encode_attributes({"words": 3, "family": "libgen"})
    '{"family":"libgen","words":3}'
    """
    return _ATTRIBUTES.encode(attributes)


def _cut(seen: str) -> str:
    data = seen.encode()
    return seen if len(data) <= SEEN_BYTES else data[:SEEN_BYTES].decode(errors="ignore")


def make_evidence_rows(
    documents: pa.Table, findings: Sequence[tuple[str, pa.Table]], letter: str = "p"
) -> pa.Table:
    """EVIDENCE_SCHEMA of the findings of each detector (its name and FINDINGS), by document, then
    in the order of the detectors; `documents` has doc_id and doc_key of every row of the batch.
    `letter` names the stage in ids, so that no other stage gives the same."""
    table = pa.concat_tables([FINDINGS.empty_table(), *(table for _, table in findings)])
    names = pa.array([name for name, _ in findings], pa.string())
    detector = np.repeat(np.arange(len(findings)), [len(table) for _, table in findings])
    order = np.argsort(table["row"].to_numpy(), kind="stable")
    table = table.take(pa.array(order))
    row = table["row"].to_numpy()
    about = documents.select(["doc_id", "doc_key"]).take(pa.array(row))
    number = pa.array(np.arange(len(row)) - np.searchsorted(row, row)).cast(pa.string())
    suffix = pc.binary_join_element_wise(letter, number, "")
    columns = {name: table[name] for name in table.column_names} | {
        "evidence_id": pc.binary_join_element_wise(ids.hex_keys(about["doc_key"]), suffix, "-"),
        "doc_id": about["doc_id"],
        "doc_key": about["doc_key"],
        "detector": names.take(pa.array(detector[order])),
        "rule": pa.nulls(len(row), pa.string()).fill_null(""),
    }
    return pa.table([columns[name] for name in EVIDENCE_SCHEMA.names], schema=EVIDENCE_SCHEMA)


def spread_finding(finding: Finding, rows: I64) -> pa.Table:
    """FINDINGS that say of every one of the (N,) rows what `finding` says of its own."""
    one = findings_table([finding]).combine_chunks()
    repeated = one.take(pa.array(np.zeros(len(rows), np.int64)))
    return repeated.set_column(0, FINDINGS.field("row"), pa.array(rows, pa.int64()))


def sort_findings(tables: Iterable[pa.Table]) -> pa.Table:
    """All findings in the order of the contract."""
    together = pa.concat_tables([FINDINGS.empty_table(), *tables])
    order = ("row", "byte_offset", "kind", "target", "work_id", "seen")
    return together.sort_by([(name, "ascending") for name in order]).combine_chunks()


def without_repeats(ordered: pa.Table) -> pa.Table:
    """Of ordered findings without a place in the text, the first of each row, kind and target."""
    if len(ordered) < 2:
        return ordered
    before, after = ordered.slice(0, len(ordered) - 1), ordered.slice(1)
    row, kind, target = (
        pc.not_equal(before[name].combine_chunks(), after[name].combine_chunks())
        for name in ("row", "kind", "target")
    )
    differs = pc.or_(pc.or_(row, kind), target).to_numpy(zero_copy_only=False)
    return ordered.filter(pa.array(np.concatenate([[True], differs])))
