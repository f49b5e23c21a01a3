"""Findings of several detectors on one batch of documents as evidence."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import ids
from pipeline.provenance.detectors.contract import FINDINGS
from pipeline.provenance.evidence import EVIDENCE_SCHEMA


def evidence_rows(
    documents: pa.Table, found: Sequence[tuple[str, pa.Table]], letter: str = "p"
) -> pa.Table:
    """EVIDENCE_SCHEMA of what each detector found (its name and FINDINGS), by document, then in the
    order of the detectors; `documents` has doc_id and doc_key of every row of the batch. `letter`
    stands for the stage in ids, so that no other stage gives the same."""
    table = pa.concat_tables([FINDINGS.empty_table(), *(table for _, table in found)])
    names = pa.array([name for name, _ in found], pa.string())
    detector = np.repeat(np.arange(len(found)), [len(table) for _, table in found])
    order = np.argsort(table["row"].to_numpy(), kind="stable")
    table = table.take(pa.array(order))
    row = table["row"].to_numpy()
    about = documents.select(["doc_id", "doc_key"]).take(pa.array(row))
    first = np.searchsorted(row, row)
    columns = {name: table[name] for name in table.column_names} | {
        "evidence_id": _names(about["doc_key"], np.arange(len(row)) - first, letter),
        "doc_id": about["doc_id"],
        "doc_key": about["doc_key"],
        "detector": names.take(pa.array(detector[order])),
        "rule": pa.nulls(len(row), pa.string()).fill_null(""),
    }
    return pa.table([columns[name] for name in EVIDENCE_SCHEMA.names], schema=EVIDENCE_SCHEMA)


def _names(keys: pa.ChunkedArray, numbers: "np.typing.NDArray[np.int64]", letter: str) -> pa.Array:
    """`KEY-pN` for the N-th evidence on a document."""
    suffix = pc.binary_join_element_wise(letter, pa.array(numbers).cast(pa.string()), "")
    return pc.binary_join_element_wise(ids.hex_keys(keys), suffix, "-")
