"""Evidence and decisions: the tables evidence.parquet and decisions.parquet, and their shards.

Detectors, filters and decontamination append evidence; the policy turns it into decisions. Shards
have `doc_id` besides, which the published tables leave out.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from pipeline import layout

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
    """Where evidence on a run's documents stands: in the run, and in every finished rescan of it
    (`prep rescan`), by name."""
    later = sorted((directory / layout.RESCANS).glob(f"*/{layout.MANIFEST}"))
    places = [directory, *(manifest.parent for manifest in later)]
    return [place for place in places if (place / layout.EVIDENCE).is_file()]


def table_of(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """Rows of Python values as a table."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
