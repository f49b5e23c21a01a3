"""The same finding in many rows, without a Python object for each."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.provenance.detectors.contract import FINDINGS, Finding, findings_table

_ORDER = ["row", "byte_offset", "kind", "target", "work_id", "seen"]


def spread(finding: Finding, rows: I64) -> pa.Table:
    """FINDINGS that say of every one of the (N,) rows what `finding` says of its own."""
    one = findings_table([finding]).combine_chunks()
    repeated = one.take(pa.array(np.zeros(len(rows), np.int64)))
    return repeated.set_column(0, FINDINGS.field("row"), pa.array(rows, pa.int64()))


def in_order(tables: Iterable[pa.Table]) -> pa.Table:
    """All findings in the order of the contract."""
    together = pa.concat_tables([FINDINGS.empty_table(), *tables])
    return together.sort_by([(name, "ascending") for name in _ORDER]).combine_chunks()


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
