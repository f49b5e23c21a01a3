"""Where the shingles of a batch begin and end.

Shingle i of a batch starts at unit i: a code point, or a word. Hashes are made for every i, also
where a shingle would reach into the next document; the windows of a document say which are real.
"""

import numpy as np

from dedup.arrays import I64, U32
from dedup.compiled import kernel
from dedup.stream import ENDS, ROW, START, STOP
from dedup.text import BLANK, Whole


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
