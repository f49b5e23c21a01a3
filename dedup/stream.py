"""Normalised text in batches of bounded size: memory does not grow with the longest document.

A batch holds the code points of many documents end to end. A document longer than a batch goes on
in the next one, which begins with the code points that its last shingles still need.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.text import BLANK, Texts, Whole, ascii_steps, case_table, normalize_part, to_lower_case

CAPACITY = 1 << 16
"""Code points in a batch: points and hashes stay in a second-level cache of 1 MB."""
SEGMENTS = 1 << 12
"""Documents in a batch, at most."""
SLACK = 8

ROW, START, STOP, ENDS = range(4)
_DOCUMENT, _POSITION, _FILLED, _BLANK, _SPECIAL = range(5)


@dataclass
class Batch:
    """Normalised documents, or a part of one.

    points: code points, valid below `filled`, and room for one shingle. segments (S, 4) int64:
    row of the document, start and stop in points, 1 where the document ends here. continues: the
    first segment goes on with the last one of the batch before; only the points from `fresh` on are
    new. A consumer sets `keep_from`: points from there on return in the next batch.
    """

    points: U32
    filled: int
    segments: I64
    continues: bool
    fresh: int
    keep_from: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the last document goes on in the next batch."""
        return len(self.segments) > 0 and not self.segments[-1, ENDS]


@kernel
def _fill(
    data: U8, offsets: I64, table: U32, steps: U64, points: U32, capacity: int, cursor: I64,
    segments_S4: I64,
) -> int:  # fmt: skip
    """Fill `points` from the cursor on; returns the number of segments written.

    A document that might not fit begins the next batch, so only one of more than `capacity` bytes
    is ever cut. At a document that holds a capital sigma the batch ends and cursor[_SPECIAL]
    is set.
    """
    document, position, filled = cursor[_DOCUMENT], cursor[_POSITION], cursor[_FILLED]
    blank = cursor[_BLANK] != 0
    start: Whole = 0
    count = 0
    while document < len(offsets) - 1 and count < len(segments_S4):
        end = offsets[document + 1]
        if count > 0 and end - position > capacity - filled:
            break
        at, reached, blank = normalize_part(
            data, position, end, table, steps, points, filled, capacity, blank
        )
        if at < 0:
            cursor[_SPECIAL] = 1
            break
        position, filled = at, reached
        stop = filled - 1 if filled > start and points[filled - 1] == BLANK else filled
        segments_S4[count, ROW] = document
        segments_S4[count, START] = start
        segments_S4[count, STOP] = stop
        segments_S4[count, ENDS] = 1 if position >= end else 0
        count += 1
        if position < end:
            break
        document += 1
        start = stop
        filled = stop
        blank = True
    cursor[_DOCUMENT] = document
    cursor[_POSITION] = position
    cursor[_FILLED] = filled
    cursor[_BLANK] = 1 if blank else 0
    return count


class Stream:
    """Makes batches; its buffer serves any number of texts, one after the other.

    overlap: code points of one shingle, where that is known.
    """

    def __init__(self, overlap: int = 1, capacity: int = CAPACITY) -> None:
        self._slack = overlap + SLACK
        self._capacity = max(capacity, 4 * self._slack)
        self._points = np.zeros(self._capacity + self._slack, np.uint32)
        self._segments = np.empty((SEGMENTS, 4), np.int64)

    def batches(self, texts: Texts) -> Iterator[Batch]:
        """Every document of `texts` in order; rows are numbered from 0.

        A document that holds a capital sigma may appear twice: cut short, then whole, from its
        beginning. So counts start again where `continues` is false.
        """
        cursor = np.zeros(5, np.int64)
        while cursor[_DOCUMENT] < len(texts):
            document = int(cursor[_DOCUMENT])
            cursor[_POSITION : _BLANK + 1] = texts.offsets[document], 0, 1
            yield from self._batches(texts, cursor, row=None)
            if cursor[_SPECIAL]:
                cursor[_SPECIAL] = 0
                document = int(cursor[_DOCUMENT])
                start = np.array([0, 0, 0, 1, 0], np.int64)
                alone = to_lower_case(texts.text(document))
                yield from self._batches(alone, start, row=document)
                cursor[_DOCUMENT] += 1

    def _batches(self, texts: Texts, cursor: I64, row: int | None) -> Iterator[Batch]:
        """Until the texts end or a document holds a sigma; `row` overrides the row of all."""
        table, steps = case_table(), ascii_steps()
        continues = False
        fresh = 0
        while cursor[_DOCUMENT] < len(texts) and not cursor[_SPECIAL]:
            count = _fill(
                texts.data, texts.offsets, table, steps, self._points, self._capacity, cursor,
                self._segments,
            )  # fmt: skip
            filled = int(cursor[_FILLED])
            segments = self._segments[:count]
            if row is not None:
                segments[:, ROW] = row
            batch = Batch(self._points, filled, segments, continues, fresh)
            if count:
                yield batch
            continues = batch.is_open
            kept = filled - batch.keep_from if continues else 0
            fresh = kept - (filled - int(segments[-1, STOP])) if continues else 0
            cursor[_FILLED] = kept
            self._carry(filled - kept, kept)

    def _carry(self, start: int, kept: int) -> None:
        """Bring the last `kept` points to the front; make room when they fill half the buffer."""
        old = self._points
        if kept > self._capacity // 2:
            self._capacity *= 2
            self._points = np.zeros(self._capacity + self._slack, np.uint32)
        self._points[:kept] = old[start : start + kept].copy()
