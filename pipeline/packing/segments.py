"""Documents cut into segments, and where each segment stands in its row.

A segment is n + 1 consecutive tokens of one document and fills n columns of a row: its first n
tokens are inputs, its last n labels (`pipeline.hdf5.format`). Shapes: D documents, N segments, S
the maximum sequence length.
"""

from dataclasses import dataclass

import numpy as np

from dedup.arrays import I64


@dataclass(frozen=True)
class Segments:
    """Columns over segments in stream order, each (N,): the document, the first token inside it,
    and the labels, 1 to S."""

    document: I64
    start: I64
    labels: I64

    def __len__(self) -> int:
        return len(self.document)


@dataclass(frozen=True)
class Placement:
    """Columns over segments by (row, slot), each (N,): which segment, its row and the first column
    it fills; and how many rows there are."""

    segment: I64
    row: I64
    slot: I64
    rows: int


def fold(tokens_D: I64, max_sequence_length: int) -> Segments:
    """Cut documents of these many tokens, EOS included, into segments of at most S labels.

    Pieces of a document start at tokens 0, S, 2S, ... and overlap by one token, so every token but
    the first of a document is a label exactly once; a document of one token has no segment.

    >>> segments = fold(np.array([3, 1, 10]), 4)
    >>> segments.document.tolist(), segments.start.tolist(), segments.labels.tolist()
    ([0, 2, 2, 2], [0, 0, 4, 8], [2, 4, 4, 1])
    """
    labels_D = np.maximum(tokens_D - 1, 0)
    pieces_D = -(-labels_D // max_sequence_length)
    document = np.repeat(np.arange(len(tokens_D)), pieces_D)
    piece = np.arange(len(document)) - np.repeat(np.cumsum(pieces_D) - pieces_D, pieces_D)
    start = piece * max_sequence_length
    return Segments(document, start, np.minimum(max_sequence_length, labels_D[document] - start))


def place(row_N: I64, labels_N: I64) -> Placement:
    """Put the segments of every row side by side, in stream order.

    >>> place(np.array([0, 1, 0]), np.array([2, 4, 1])).slot.tolist()
    [0, 2, 0]
    """
    segment = np.argsort(row_N, kind="stable")
    row, labels = row_N[segment], labels_N[segment]
    ends = np.cumsum(labels)
    first = np.flatnonzero(np.diff(row, prepend=-1))
    before = np.repeat(ends[first] - labels[first], np.diff(np.append(first, len(row))))
    return Placement(segment, row, ends - labels - before, len(first))
