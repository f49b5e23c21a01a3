"""Normalised text in batches of bounded size, and the shingles of each batch with their hashes.

A batch holds the code points of many documents end to end. A document longer than a batch goes on
in the next one, which begins with the code points that its last shingles still need, so memory does
not grow with the longest document.

Shingle i of a batch starts at unit i: a code point, or a word. 64-bit hashes are made for every i,
also where a shingle would reach into the next document; the windows of a document say which are
real.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import (
    BLOCK,
    INVERSE,
    char_hashes,
    powers,
    prefix_sums,
    word_hashes,
)
from dedup.presets import BASE, Preset
from dedup.text import BLANK, Texts, Whole, ascii_steps, case_table, normalize_part, to_lower_case

CAPACITY = 1 << 16
"""Code points in a batch: points and hashes stay in a second-level cache of 1 MB."""
SEGMENTS = 1 << 12
"""Documents in a batch, at most."""
SLACK = 8

ROW, START, STOP, ENDS = range(4)
_DOCUMENT, _POSITION, _FILLED, _BLANK, _SPECIAL = range(5)


@dataclass(kw_only=True)
class TextBatch:
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
    data: U8,
    offsets: I64,
    table: U32,
    steps: U64,
    points: U32,
    capacity: int,
    cursor: I64,
    segments_S4: I64,
) -> int:
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

    def batches(self, texts: Texts) -> Iterator[TextBatch]:
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

    def _batches(self, texts: Texts, cursor: I64, row: int | None) -> Iterator[TextBatch]:
        """Until the texts end or a document holds a sigma; `row` overrides the row of all."""
        table, steps = case_table(), ascii_steps()
        continues = False
        fresh = 0
        while cursor[_DOCUMENT] < len(texts) and not cursor[_SPECIAL]:
            count = _fill(
                texts.data,
                texts.offsets,
                table,
                steps,
                self._points,
                self._capacity,
                cursor,
                self._segments,
            )
            filled = int(cursor[_FILLED])
            segments = self._segments[:count]
            if row is not None:
                segments[:, ROW] = row
            batch = TextBatch(
                points=self._points,
                filled=filled,
                segments=segments,
                continues=continues,
                fresh=fresh,
            )
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


@kernel
def char_windows(segments_S4: I64, size: int, windows_S3: I64) -> int:
    """windows_S3[s] = row, first shingle, end of the shingles of each segment.

    Returns from where on the next batch needs the points of a document that goes on.
    """
    keep_from = 0
    for s in range(len(segments_S4)):
        start, stop = segments_S4[s, START], segments_S4[s, STOP]
        windows_S3[s, 0] = segments_S4[s, ROW]
        windows_S3[s, 1] = start
        windows_S3[s, 2] = max(start, stop - size + 1)
        keep_from = windows_S3[s, 2]
    return keep_from


@kernel
def word_windows(
    points: U32, segments_S4: I64, size: int, starts: I64, ends: I64, windows_S3: I64
) -> tuple[Whole, Whole]:
    """Find the words, and as `char_windows` the shingles that begin at them.

    starts, ends: where in points each word lies; they must hold half of the points and one more.
    The last word of a document that goes on is left for the next batch. Returns (words, from where
    on the next batch needs the points).
    """
    words: Whole = 0
    keep_from: Whole = 0
    for s in range(len(segments_S4)):
        first = words
        start, stop = segments_S4[s, START], segments_S4[s, STOP]
        word = np.uint64(words)
        for i in range(np.uint64(start), np.uint64(stop)):
            # No branch: a word is ended at every point until it is a blank.
            ends[word] = i
            word += np.uint64(points[i] == BLANK)
        words = np.int64(word)
        starts[first] = start
        for k in range(first, words):
            starts[k + 1] = ends[k] + 1
        begin = starts[words]
        if segments_S4[s, ENDS] and begin < stop:
            ends[words] = stop
            words += 1
        windows_S3[s, 0] = segments_S4[s, ROW]
        windows_S3[s, 1] = first
        windows_S3[s, 2] = max(first, words - size + 1)
        kept_word = windows_S3[s, 2]
        keep_from = starts[kept_word] if kept_word < words else begin
    return words, keep_from


@kernel
def count_shingles(windows_S3: I64, continues: bool, shingles_N: U32) -> None:
    """Add up the shingles of every document; one that does not continue begins at 0."""
    for s in range(len(windows_S3)):
        row = windows_S3[s, 0]
        if s > 0 or not continues:
            shingles_N[row] = 0
        shingles_N[row] += windows_S3[s, 2] - windows_S3[s, 1]


class Shingler:
    """Finds and hashes the shingles of a batch.

    After `windows`: count shingle starts in the batch; hashes (count,) uint64, polynomials not yet
    mixed; starts, ends int64: where in the batch's points each word lies (word shingles only).
    """

    def __init__(self, recipe: Preset) -> None:
        self.size = recipe.size
        self.is_word = recipe.unit == "word"
        self.count = 0
        self.hashes: U64 = np.empty(0, np.uint64)
        self._windows = np.empty((SEGMENTS, 3), np.int64)

    def windows(self, batch: TextBatch) -> I64:
        """(segments, 3) int64: row, first shingle and end of the shingles of every segment.

        Sets what the batch keeps for the next one. The result is valid until the next call.
        """
        if len(self.hashes) < len(batch.points):
            self._make_room(len(batch.points))
        windows_S3 = self._windows[: len(batch.segments)]
        if self.is_word:
            words, keep_from = word_windows(
                batch.points, batch.segments, self.size, self.starts, self.ends, windows_S3
            )
            self.count, batch.keep_from = int(words), int(keep_from)
            prefix_sums(batch.points, batch.filled, powers(INVERSE), self._scratch)
            word_hashes(
                self._scratch,
                self.starts,
                self.ends,
                self.count,
                self.size,
                powers(BASE),
                self.hashes,
            )
        else:
            batch.keep_from = char_windows(batch.segments, self.size, windows_S3)
            self.count = batch.filled
            char_hashes(batch.points, self.count, self.size, self._scratch, self.hashes)
        return windows_S3

    def _make_room(self, points: int) -> None:
        self.hashes = np.empty(points, np.uint64)
        # A text of n code points has at most (n + 1) / 2 words.
        words = (points + SEGMENTS) // 2 + 2 if self.is_word else 0
        self.starts: I64 = np.empty(words, np.int64)
        self.ends: I64 = np.empty(words, np.int64)
        scratch = points + 1 if self.is_word else 2 * (BLOCK + self.size)
        self._scratch: U64 = np.empty(scratch, np.uint64)
