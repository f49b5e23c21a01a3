"""Lineage: which document every token of every HDF5 row came from.

Per shard `X.lineage.parquet`, one row per span, sorted by (row, token_start): row int32 (inside the
shard), token_start and token_end int32 (half-open, over `input_ids`), doc uint32 (row of
documents.parquet), doc_token_start int64 (where the span starts in the document's own tokens, EOS
being its last), stream_row int64 (row of the split's stream before the row shuffle). Label j of a
row is stream token stream_row * MSL + j + 1, so its document follows from the stream; in the `vsl`
format it is the document of input j. `vsl` rows have one span per segment.

The `corpus` format has no rows: token_start and token_end int64 are places in the shard's tokens.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64

SCHEMA = pa.schema([
    ("row", pa.int32()), ("token_start", pa.int32()), ("token_end", pa.int32()),
    ("doc", pa.uint32()), ("doc_token_start", pa.int64()), ("stream_row", pa.int64()),
])  # fmt: skip

CORPUS_SCHEMA = pa.schema([
    ("token_start", pa.int64()), ("token_end", pa.int64()),
    ("doc", pa.uint32()), ("doc_token_start", pa.int64()),
])  # fmt: skip


@dataclass(frozen=True)
class StreamDocuments:
    """Documents of part of a split's stream, in order: dense index, first stream token and the one
    behind the last, each (N,); and T, the tokens of the whole stream.
    """

    doc: npt.NDArray[np.uint32]
    start: I64
    end: I64
    tokens: int


def spans(documents: StreamDocuments, stream_rows_R: I64, max_sequence_length: int) -> pa.Table:
    """The lineage of shard rows 0..R-1, which hold these stream rows; schema `SCHEMA`."""
    first_token = stream_rows_R * max_sequence_length
    end_token = np.minimum(first_token + max_sequence_length, documents.tokens - 1)
    first = np.searchsorted(documents.start, first_token, side="right") - 1
    last = np.searchsorted(documents.start, end_token, side="left") - 1
    counts = last - first + 1
    row = np.repeat(np.arange(len(stream_rows_R)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    index = first[row] + within
    begin = np.maximum(documents.start[index], first_token[row])
    end = np.minimum(documents.end[index], end_token[row])
    columns = [
        row.astype(np.int32), (begin - first_token[row]).astype(np.int32),
        (end - first_token[row]).astype(np.int32), documents.doc[index],
        begin - documents.start[index], stream_rows_R[row],
    ]  # fmt: skip
    return pa.table([pa.array(c) for c in columns], schema=SCHEMA)
