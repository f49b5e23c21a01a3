"""Masked: how often something was masked in a document, for the clean stage."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import layout
from pipeline.cleaning.mask import KINDS
from pipeline.stage import Output, parquet_output

MASKED_SCHEMA = pa.schema(
    [
        ("doc_id", pa.uint64()),
        ("doc_key", pa.binary(16)),
        ("source", pa.string()),
        *((kind, pa.uint32()) for kind in KINDS),
    ]
)


def masked_rows(places: pa.RecordBatch, counts_NK: npt.NDArray[np.uint32]) -> pa.RecordBatch:
    """The documents in which something was masked, of N whose places and counts per kind these
    are."""
    rows = pa.array(np.flatnonzero(counts_NK.any(axis=1)))
    found = [places[name] for name in MASKED_SCHEMA.names[: -len(KINDS)]]
    columns = [*found, *(pa.array(column) for column in counts_NK.T.copy())]
    return pa.RecordBatch.from_arrays(columns, schema=MASKED_SCHEMA).take(rows)


def masked_output(index: int, batches: Sequence[pa.RecordBatch]) -> Output:
    """The shard of one task, whose batches are in order."""
    table = pa.Table.from_batches([batch for batch in batches if len(batch)], MASKED_SCHEMA)
    return parquet_output(layout.shard("masked", index, "parquet"), table)


def masked_counts(batches: Sequence[pa.RecordBatch]) -> dict[str, dict[str, int]]:
    """Per source and kind, how often it was masked."""
    counts: dict[str, dict[str, int]] = {}
    for batch in batches:
        for row in batch.select(["source", *KINDS]).to_pylist():
            of_source = counts.setdefault(row.pop("source"), dict.fromkeys(KINDS, 0))
            for kind, count in row.items():
                of_source[kind] += count
    return dict(sorted(counts.items()))
