"""Words and letters of a text with the bytes where they stand, for kernels that must know these.

As `dedup.presets.normalize` leaves them, but the two small Greek sigmas are one letter: which of
them `str.lower` makes of a capital depends on the letters around it.
"""

import numpy as np

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.presets import BASE
from dedup.text import BLANK, CASED, DROPPED, SPECIAL, Texts, after_ascii, case_table

DOTTED = SPECIAL
"""What `fold_character` makes of U+0130; it stands for two code points, DOTTED_1 and DOTTED_2."""
DOTTED_1, DOTTED_2 = np.uint32(0x69), np.uint32(0x307)

_CAPITAL_SIGMA, _FINAL_SIGMA, _SIGMA = np.uint32(0x3A3), np.uint32(0x3C2), np.uint32(0x3C3)
_BASE, _ZERO, _ONE = np.uint64(BASE), np.uint64(0), np.uint64(1)


def one_sigma(normal: str) -> str:
    """A text that `dedup.presets.normalize` made, as the kernels here see it.

    >>> one_sigma("ὀδυσσεύς")
    'ὀδυσσεύσ'
    """
    return normal.replace(chr(_FINAL_SIGMA), chr(_SIGMA))


def hash_text_words(chunks: list[Texts]) -> tuple[U64, I64]:
    """Hashes of the words of all texts end to end, (words,), and where those of each text begin,
    (N + 1,) int64."""
    by_chunk = [_words_of(chunk.data, chunk.offsets, case_table()) for chunk in chunks]
    lengths = [np.diff(starts) for _, starts in by_chunk]
    words = np.concatenate([np.zeros(0, np.uint64), *(words for words, _ in by_chunk)])
    return words, compute_starts(np.concatenate([np.zeros(0, np.int64), *lengths]))


def compute_starts(lengths_N: I64) -> I64:
    """Where things of these lengths begin when put end to end, (N + 1,) int64."""
    return np.concatenate([[0], np.cumsum(lengths_N)]).astype(np.int64)


@kernel
def fold_character(data: U8, at: int, table: U32) -> tuple[np.uint32, int]:
    """The code point at byte `at` as it stays: a letter, BLANK, DROPPED or DOTTED; and where the
    next one stands. `table` is `dedup.text.case_table()`; data must be UTF-8.
    """
    if data[at] < 0x80:
        return table[data[at]], at + 1
    c, after = after_ascii(data, at)
    if c in (_CAPITAL_SIGMA, _FINAL_SIGMA):
        return _SIGMA, after
    return table[c] if c < CASED else c, after


@kernel
def read_words(
    data: U8, position: int, end: int, table: U32, words: U64, starts: I64, ends: I64, count: int
) -> tuple[int, int]:
    """Append the words from byte `position` on to three arrays of one length, until these are full.

    Returns (words held, where to go on). A word is its 64-bit hash, the byte of its first letter,
    and the byte after its last.
    """
    value, begin, stop = _ZERO, -1, 0
    while position < end and count < len(words):
        at = position
        c, position = fold_character(data, at, table)
        if c == DROPPED:
            continue
        if c == BLANK:
            if begin >= 0:
                words[count], starts[count], ends[count] = fmix64(value), begin, stop
                count += 1
                begin = -1
            continue
        if begin < 0:
            value, begin = _ZERO, at
        if c == DOTTED:
            value = value * _BASE + np.uint64(DOTTED_1) + _ONE
            c = DOTTED_2
        value = value * _BASE + np.uint64(c) + _ONE
        stop = position
    if begin >= 0:
        words[count], starts[count], ends[count] = fmix64(value), begin, stop
        count += 1
    return count, position


@kernel
def _words_of(data: U8, offsets_N1: I64, table: U32) -> tuple[U64, I64]:
    """All words of all texts, and per text where its words begin, (N + 1,)."""
    room = (offsets_N1[-1] - offsets_N1[0]) // 2 + len(offsets_N1)
    words, starts = np.empty(room, np.uint64), np.empty(room, np.int64)
    ends = np.empty(room, np.int64)
    starts_N1 = np.zeros(len(offsets_N1), np.int64)
    count = 0
    for text in range(len(offsets_N1) - 1):
        start, end = offsets_N1[text], offsets_N1[text + 1]
        count, _ = read_words(data, start, end, table, words, starts, ends, count)
        starts_N1[text + 1] = count
    return words[:count], starts_N1
