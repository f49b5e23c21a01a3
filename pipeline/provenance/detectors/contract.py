"""The detector contract, on one page.

A detector is a pure function over one documents shard: it looks at a batch of documents (columns
`BATCH_COLUMNS`) and returns a table of `FINDINGS`, one row for everything it found. It never
decides; `pipeline.provenance.policy` does, from the evidence that these rows become.

Order: by row, byte_offset, kind, target, work_id. The same batch and settings give the same table.

To add a detector: write `detectors/NAME.py` with a `detect_…` function, add it to the list in
`pipeline/stages/screen.py` and its attributes to `pipeline/provenance/policy/attributes.py`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

BATCH_COLUMNS = ["doc_key", "source", "licence", "meta", "path_id", "text"]

FINDINGS = pa.schema([
    ("row", pa.int64()), ("kind", pa.string()), ("target", pa.string()), ("work_id", pa.string()),
    ("seen", pa.string()), ("byte_offset", pa.uint64()), ("byte_length", pa.uint64()),
    ("score", pa.float64()), ("attributes", pa.string()),
])  # fmt: skip
"""row: in the batch. work_id: a work of a registry, or empty. seen: what stands there, at most
`SEEN_BYTES`. byte_offset, byte_length: in the text; both 0 for what stands in metadata. score:
detector's own, or null. attributes: `attributes_json`, or empty."""

SEEN_BYTES = 200


@dataclass(frozen=True)
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
    attributes: str = ""


def findings_table(findings: Iterable[Finding]) -> pa.Table:
    """FINDINGS in the order of the contract; `seen` is cut after `SEEN_BYTES`."""
    ordered = sorted(
        findings, key=lambda f: (f.row, f.byte_offset, f.kind, f.target, f.work_id, f.seen)
    )
    columns: dict[str, list[Any]] = {name: [] for name in FINDINGS.names}
    for finding in ordered:
        for name in FINDINGS.names:
            columns[name].append(getattr(finding, name))
    columns["seen"] = [_cut(seen) for seen in columns["seen"]]
    return pa.table(columns, schema=FINDINGS)


def attributes_json(attributes: Mapping[str, Any]) -> str:
    """The JSON object that the column `attributes` holds: sorted keys, no spaces.

    >>> attributes_json({"words": 3, "family": "libgen"})
    '{"family":"libgen","words":3}'
    """
    return json.dumps(attributes, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _cut(seen: str) -> str:
    data = seen.encode()
    return seen if len(data) <= SEEN_BYTES else data[:SEEN_BYTES].decode(errors="ignore")
