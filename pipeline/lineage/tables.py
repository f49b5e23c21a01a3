"""The tables of lineage and of its inverse, and what is read of them with documents.parquet.

Lineage says which document every token of every HDF5 row came from. Per shard
`X.lineage.parquet`, one row per span, sorted by (row, token_start): row int32 (inside the shard),
token_start and token_end int32 (half-open, over `input_ids`), doc uint32 (row of
documents.parquet), doc_token_start int64 (where the span starts in the document's own tokens, EOS
being its last), stream_row int64 (row of the split's stream before the row shuffle). Label j of a
row is stream token stream_row * MSL + j + 1, so its document follows from the stream; in the `vsl`
format it is the document of input j, and rows have one span per segment. The `corpus` format has no
rows: token_start and token_end int64 are places in the shard's tokens.

The inverse leads from a document to its place in a split in one look-up:
`hdf5/SPLIT/inverse.parquet`, sorted by document, in parts. Of `sample` and `corpus` one row per
copy: doc uint32, stream_start int64 (the stream token it begins with); its rows follow from that,
because stream row k is at `row_positions(k)`. Of `vsl`, whose packer nobody can invert, one row per
segment: doc, doc_token_start int64, row int64 (of the data set), token_start int32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U32
from pipeline.core import rng
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.rng import invert, permute
from pipeline.hdf5.read import SampleDataset
from pipeline.runs.parts import RowGroups
from pipeline.runs.records import DocumentTable

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
    index = expand_ranges(first, counts)
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


def expand_ranges(first_N: I64, count_N: I64) -> I64:
    """The `count` numbers from `first` on, range by range.

    >>> expand_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    starts_N = np.cumsum(count_N) - count_N
    return np.repeat(first_N - starts_N, count_N) + np.arange(count_N.sum())


def describe_documents(table: DocumentTable, docs_N: I64, columns: Sequence[str]) -> pa.Table:
    """`document` (key in hex), `source`, `path`, `line` (of a format of rows the row) and these
    columns of documents, in the order asked for."""
    documents = table.take(docs_N, ["doc_key", "source", "path_id", "line", *columns])
    lines = documents["line"].to_numpy().copy()
    unnumbered = lines == 0
    lines[unnumbered] = table.take(docs_N[unnumbered], ["byte_offset"])["byte_offset"].to_numpy()
    described = {
        "document": pa.array([key.hex() for key in documents["doc_key"].to_pylist()], pa.string()),
        "source": documents["source"].cast(pa.string()),
        "path": pa.array(table.files, pa.string()).take(documents["path_id"].combine_chunks()),
        "line": pa.array(lines),
    }
    for name in columns:
        column = documents[name]
        is_label = pa.types.is_dictionary(column.type)
        described[name] = column.cast(pa.string()) if is_label else column
    return pa.table(described)


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
    """The inverse next to the shards of a split."""
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
        if not self._path.exists():
            raise InputError(
                f"{self._path}: missing: made before there was an {INVERSE}; repeat the `prep run` "
                "(or `prep repack`) that made the directory, it adds the file"
            )
        self._groups = RowGroups(self._path)

    def of(self, docs_D: I64) -> pa.Table:
        """The rows of these documents, which are ascending, from the row groups that hold them."""
        groups = []
        for group in range(len(self._groups)):
            bounds = self._groups.bounds(group, "doc")
            if bounds is not None:  # the group is not empty
                low = np.searchsorted(docs_D, bounds[0])
                if low < np.searchsorted(docs_D, bounds[1], side="right"):
                    groups.append(group)
        table = self._groups.read(groups)
        doc = table["doc"].to_numpy().astype(np.int64)
        first = np.searchsorted(doc, docs_D)
        count = np.searchsorted(doc, docs_D, side="right") - first
        return table.take(pa.array(expand_ranges(first, count)))

    def parts(self) -> Iterator[pa.Table]:
        """All rows, one row group at a time."""
        for group in range(len(self._groups)):
            yield self._groups.read([group])

    def document_at(self, stream_start: int) -> int:
        """The document that begins with this token of the stream."""
        for part in self.parts():
            places = np.flatnonzero(part["stream_start"].to_numpy() == stream_start)
            if len(places):
                return int(part["doc"][int(places[0])].as_py())
        raise IntegrityError(f"{self._path}: no document begins with token {stream_start:,}")
