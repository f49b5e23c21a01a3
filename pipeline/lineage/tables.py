"""The tables of lineage, and their inverse.

Lineage: which document every token of every HDF5 row came from.

Per shard `X.lineage.parquet`, one row per span, sorted by (row, token_start): row int32 (inside the
shard), token_start and token_end int32 (half-open, over `input_ids`), doc uint32 (row of
documents.parquet), doc_token_start int64 (where the span starts in the document's own tokens, EOS
being its last), stream_row int64 (row of the split's stream before the row shuffle). Label j of a
row is stream token stream_row * MSL + j + 1, so its document follows from the stream; in the `vsl`
format it is the document of input j. `vsl` rows have one span per segment.

The `corpus` format has no rows: token_start and token_end int64 are places in the shard's tokens.

The inverse of lineage: from a document to its place in a split, in one look-up.

`hdf5/SPLIT/inverse.parquet`, sorted by document. Of `sample` and `corpus` one row per copy of a
document: doc uint32 (row of documents.parquet), stream_start int64 (the stream token it begins
with); its rows follow from that, because stream row k stands at `row_positions(k)`. Of `vsl`, whose
packer nobody can invert, one row per segment: doc, doc_token_start int64, row int64 (of the data
set), token_start int32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dedup.arrays import I64, U32
from pipeline.core import rng
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.rng import invert, permute
from pipeline.hdf5.read import SampleDataset
from pipeline.runs.records import wrap_read_errors

SCHEMA = pa.schema([
    ("row", pa.int32()), ("token_start", pa.int32()), ("token_end", pa.int32()),
    ("doc", pa.uint32()), ("doc_token_start", pa.int64()), ("stream_row", pa.int64()),
])  # fmt: skip

CORPUS_SCHEMA = pa.schema(
    [
        ("token_start", pa.int64()),
        ("token_end", pa.int64()),
        ("doc", pa.uint32()),
        ("doc_token_start", pa.int64()),
    ]
)


@dataclass(frozen=True)
class StreamDocuments:
    """Documents of part of a split's stream, in order: dense index, first stream token and the one
    behind the last, each (N,); and T, the tokens of the whole stream.
    """

    doc: npt.NDArray[np.uint32]
    start: I64
    end: I64
    tokens: int


def make_lineage(
    documents: StreamDocuments, stream_rows_R: I64, max_sequence_length: int
) -> pa.Table:
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
        row.astype(np.int32),
        (begin - first_token[row]).astype(np.int32),
        (end - first_token[row]).astype(np.int32),
        documents.doc[index],
        begin - documents.start[index],
        stream_rows_R[row],
    ]
    return pa.table([pa.array(c) for c in columns], schema=SCHEMA)


INVERSE = "inverse.parquet"
STREAM_SCHEMA = pa.schema([("doc", pa.uint32()), ("stream_start", pa.int64())])
SEGMENT_SCHEMA = pa.schema(
    [
        ("doc", pa.uint32()),
        ("doc_token_start", pa.int64()),
        ("row", pa.int64()),
        ("token_start", pa.int32()),
    ]
)


def inverse_path(split: Path) -> Path:
    """The inverse beside the shards of a split."""
    return split / INVERSE


def stream_inverse(doc_N: U32, start_N: I64) -> pa.Table:
    """The inverse of a split of `sample` or `corpus` from its documents in any order."""
    order = np.lexsort((start_N, doc_N))
    return pa.table([pa.array(doc_N[order]), pa.array(start_N[order])], schema=STREAM_SCHEMA)


def segment_inverse(doc_N: U32, doc_token_start_N: I64, row_N: I64, token_start_N: I64) -> pa.Table:
    """The inverse of a split of `vsl` from its segments in any order."""
    order = np.lexsort((row_N, doc_token_start_N, doc_N))
    columns = [
        doc_N[order],
        doc_token_start_N[order],
        row_N[order],
        token_start_N[order].astype(np.int32),
    ]
    return pa.table([pa.array(c) for c in columns], schema=SEGMENT_SCHEMA)


def row_positions(stream_rows: I64, rows: int, seed: int, split: str) -> I64:
    """The row of the data set that each row of the stream became."""
    return invert(stream_rows, rows, _key(seed, split)).astype(np.int64)


def stream_rows_at(positions: I64, rows: int, seed: int, split: str) -> I64:
    """The row of the stream that each row of the data set was."""
    return permute(positions, rows, _key(seed, split)).astype(np.int64)


def _key(seed: int, split: str) -> int:
    return rng.key(seed, "rows", split)


class Inverse:
    """The inverse of one split. Raises InputError when the run has none."""

    def __init__(self, dataset: SampleDataset) -> None:
        self._path = inverse_path(dataset.directory)
        if not self._path.is_file():
            raise InputError(
                f"{self._path}: missing: made before there was an {INVERSE}; repeat the `prep run` "
                "(or `prep repack`) that made the directory, it adds the file"
            )
        with wrap_read_errors(self._path):
            self._file = pq.ParquetFile(self._path, memory_map=True)

    def of(self, docs_D: I64) -> pa.Table:
        """The rows of these documents, which are ascending, from the row groups that hold them."""
        groups = [
            group
            for group, low, high in self._bounds()
            if np.searchsorted(docs_D, low) < np.searchsorted(docs_D, high, side="right")
        ]
        with wrap_read_errors(self._path):
            table = self._file.read_row_groups(groups)
        doc = table["doc"].to_numpy().astype(np.int64)
        first = np.searchsorted(doc, docs_D)
        count = np.searchsorted(doc, docs_D, side="right") - first
        index = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        return table.take(pa.array(index))

    def parts(self) -> Iterator[pa.Table]:
        """All rows, one row group at a time."""
        for group in range(self._file.num_row_groups):
            with wrap_read_errors(self._path):
                yield self._file.read_row_group(group)

    def document_at(self, stream_start: int) -> int:
        """The document that begins with this token of the stream."""
        for part in self.parts():
            found = np.flatnonzero(part["stream_start"].to_numpy() == stream_start)
            if len(found):
                return int(part["doc"][int(found[0])].as_py())
        raise IntegrityError(f"{self._path}: no document begins with token {stream_start:,}")

    def _bounds(self) -> Iterator[tuple[int, int, int]]:
        """Every row group that is not empty, its first and its last document."""
        meta = self._file.metadata
        for group in range(meta.num_row_groups):
            statistics = meta.row_group(group).column(0).statistics
            if statistics is not None:
                yield group, statistics.min, statistics.max
