"""Rows of a corpus: which tokens of which files a window of the stream has as inputs and labels.

Row k has inputs [k S, k S + S) of the stream and labels one token on, over the borders of files.
Shapes: R rows, P pieces of rows in one file each, N spans.
"""

from dataclasses import dataclass

import numpy as np

from dedup.arrays import I64
from pipeline.hdf5.read import SampleDataset
from pipeline.provenance.lineage_shards import RowSpans, spans_of_ranges


@dataclass(frozen=True)
class CorpusWindows:
    """Spans of windows, window by window: the file of each, the span cut to the inputs there, and
    [label_start, label_end) of the tokens that are labels, as places in the file, (N,) each. Either
    range can be empty, never both."""

    shard: I64
    spans: RowSpans
    label_start: I64
    label_end: I64


def windows_of_corpus(dataset: SampleDataset, rows_R: I64) -> CorpusWindows:
    """The lineage of these rows of a corpus, in this order."""
    starts, length = dataset.starts, dataset.max_sequence_length
    row_P, shard_P = _pieces(rows_R * length, length, starts)
    begin_P = rows_R[row_P] * length - starts[shard_P]
    size_P = starts[shard_P + 1] - starts[shard_P]
    low_P, high_P = np.maximum(begin_P, 0), np.minimum(begin_P + length + 1, size_P)
    found, pieces = [], [np.zeros(0, np.int64)]
    for index in np.unique(shard_P).tolist():
        here = np.flatnonzero((shard_P == index) & (high_P > low_P))
        path = dataset.directory / dataset.shards[index].name
        spans, count = spans_of_ranges(path, low_P[here], high_P[here])
        found.append(spans)
        pieces.append(np.repeat(here, count))
    piece_N = np.concatenate(pieces)
    order = np.argsort(piece_N, kind="stable")
    piece_N, spans = piece_N[order], RowSpans.joined(found).at(order)
    return _cut(spans, shard_P[piece_N], begin_P[piece_N], length)


def _pieces(first_R: I64, length: int, starts: I64) -> tuple[I64, I64]:
    """The files that hold the length + 1 tokens from `first` on of each row: row and file, (P,)."""
    shard_R = np.searchsorted(starts, first_R, side="right") - 1
    count_R = np.searchsorted(starts, first_R + length, side="right") - shard_R
    row_P = np.repeat(np.arange(len(first_R)), count_R)
    within = np.arange(count_R.sum()) - np.repeat(np.cumsum(count_R) - count_R, count_R)
    return row_P, shard_R[row_P] + within


def _cut(spans: RowSpans, shard_N: I64, begin_N: I64, length: int) -> CorpusWindows:
    """Spans cut to windows that begin at `begin` of their file, or before the file: negative."""
    end_N = begin_N + length
    first = np.maximum(spans.token_start, begin_N)
    stop = np.maximum(first, np.minimum(spans.token_end, end_N))
    label = np.maximum(spans.token_start, begin_N + 1)
    label_stop = np.maximum(label, np.minimum(spans.token_end, end_N + 1))
    moved = spans.doc_token_start + first - spans.token_start
    cut = RowSpans(spans.row, first, stop, spans.doc, moved)
    return CorpusWindows(shard_N, cut, label, label_stop)
