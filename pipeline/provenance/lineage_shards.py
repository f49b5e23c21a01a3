"""Lineage beside the shards, by row: what `prep trace` reads of it.

The spans of a row (of a corpus: of a shard) follow one another from 0 without a gap, which `prep
verify` proves; so where a span begins is where the one before it ends, and is not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import SampleDataset
from pipeline.provenance.coverage import lineage_path
from pipeline.provenance.records import wrap_read_errors

_COLUMNS = ["token_end", "doc", "doc_token_start"]


@dataclass(frozen=True)
class RowSpans:
    """Spans of lineage, (N,) each: row of the shard (0 in a corpus), columns or tokens of the file,
    dense index, and first token inside the document."""

    row: I64
    token_start: I64
    token_end: I64
    doc: I64
    doc_token_start: I64

    def __len__(self) -> int:
        return len(self.doc)

    def at(self, index_M: I64) -> "RowSpans":
        """Some of them, in this order."""
        return RowSpans(*(column[index_M] for column in vars(self).values()))

    @staticmethod
    def joined(parts: Sequence["RowSpans"]) -> "RowSpans":
        """Parts one behind the other."""
        columns = zip(*(vars(part).values() for part in (_NONE, *parts)), strict=True)
        return RowSpans(*(np.concatenate(column) for column in columns))


_NONE = RowSpans(*(np.zeros(0, np.int64) for _ in range(5)))


def spans_of_rows(shard: Path, rows_R: I64) -> tuple[RowSpans, I64]:
    """The spans of these rows of a shard, row by row in this order, and how many each has, (R,)."""
    table = _table(shard, ["row", *_COLUMNS])
    row = table["row"].to_numpy()
    first = np.searchsorted(row, rows_R)
    count = np.searchsorted(row, rows_R, side="right") - first
    index = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    return _spans(table, row, index), count


def spans_of_tokens(shard: Path, first: int, stop: int) -> RowSpans:
    """The spans of a corpus shard that hold some of its tokens [first, stop)."""
    return spans_of_ranges(shard, np.array([first]), np.array([stop]))[0]


def spans_of_ranges(shard: Path, first_N: I64, stop_N: I64) -> tuple[RowSpans, I64]:
    """The spans of a corpus shard that hold some of the tokens [first, stop) of each range, range
    by range, and how many each has, (N,)."""
    table = _table(shard, _COLUMNS)
    end = table["token_end"].to_numpy()
    begin = np.searchsorted(end, first_N, side="right")
    count = np.searchsorted(end, stop_N) + 1 - begin
    index = np.repeat(begin - np.cumsum(count) + count, count) + np.arange(count.sum())
    return _spans(table, np.zeros(len(end), np.int64), index), count


def all_spans(dataset: SampleDataset, index: int) -> RowSpans:
    """The whole lineage of one shard."""
    shard = dataset.directory / dataset.shards[index].name
    is_corpus = dataset.layout is CORPUS
    table = _table(shard, _COLUMNS if is_corpus else ["row", *_COLUMNS])
    row = np.zeros(len(table), np.int64) if is_corpus else table["row"].to_numpy()
    return _spans(table, row, np.arange(len(table)))


def stream_rows(shard: Path) -> I64:
    """The row of the stream of every span of a shard, as lineage has it."""
    return np.asarray(_table(shard, ["stream_row"])["stream_row"].to_numpy())


def count_spans(shard: Path) -> int:
    """How many spans the lineage of a shard has."""
    with wrap_read_errors(lineage_path(shard)) as path:
        return int(pq.read_metadata(path).num_rows)


def _table(shard: Path, columns: list[str]) -> pa.Table:
    with (
        wrap_read_errors(lineage_path(shard)) as path,
        pq.ParquetFile(pa.memory_map(str(path))) as file,
    ):
        return file.read(columns, use_threads=False)


def _spans(table: pa.Table, row_N: npt.NDArray[np.integer], index_M: I64) -> RowSpans:
    """Spans number `index_M` of a shard; `row_N` are the rows of all its spans."""
    end, doc, first = (table[name].to_numpy() for name in _COLUMNS)
    before = np.maximum(index_M - 1, 0)
    follows = (index_M > 0) & (row_N[before] == row_N[index_M])
    start = np.where(follows, end[before], 0)
    columns = (row_N[index_M], start, end[index_M], doc[index_M], first[index_M])
    return RowSpans(*(column.astype(np.int64) for column in columns))
