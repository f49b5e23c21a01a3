"""What FineWeb's own rules look at (Penedo et al. 2024, arXiv:2406.17557, 3.6), for signals.

Lines are those with anything but white space, as they stand; words are those of `str.split`.
"""

import numpy as np

from dedup.arrays import F64, I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.text import TextArray, code_point, view_texts
from pipeline.filters.rule import NEWLINE, SPACE, STOP, absorb, character_table, entry_of

MEASURES = ("punctuated_lines", "short_lines", "repeated_line_characters", "newlines_per_word")
"""Share of lines that end in a sentence end, share of lines of at most 30 characters, share of
characters in lines that stood before, line feeds per word."""
SHORT = 30


def measure(texts: TextArray) -> F64:
    """(N, 4) float64 as `MEASURES` names it; 0 without lines. Raises as `dedup.text.view_texts`."""
    table = character_table()
    parts = [_measure(t.data, t.offsets, table) for t in view_texts(texts)]
    return np.concatenate([np.zeros((0, len(MEASURES))), *parts])


@kernel
def _measure(data: U8, offsets_N1: I64, table: U32) -> F64:
    values = np.zeros((len(offsets_N1) - 1, 4))
    for row in range(len(offsets_N1) - 1):
        _measure_one(data, offsets_N1[row], offsets_N1[row + 1], table, values[row])
    return values


@kernel
def _measure_one(data: U8, start: int, end: int, table: U32, values: F64) -> None:
    most = 1
    for i in range(start, end):
        most += data[i] == np.uint8(10)
    hashes, lengths = np.empty(most, np.uint64), np.empty(most, np.int64)
    lines = punctuated = short = words = characters = 0
    value, length, blank, in_word, last = np.uint64(0), 0, True, False, np.uint32(0)
    position = start
    while position <= end:
        if position < end:
            c, position = code_point(data, position)
        else:
            c, position = NEWLINE, end + 1
        if c == NEWLINE:
            words += in_word
            if not blank:
                hashes[lines], lengths[lines] = value, length
                lines += 1
                punctuated += (last & STOP) != 0
                short += length <= SHORT
            value, length, blank, in_word, last = np.uint64(0), 0, True, False, np.uint32(0)
            continue
        entry = entry_of(c, table)
        characters += 1
        length += 1
        value = absorb(value, np.uint64(c))
        last = entry
        if entry & SPACE:
            words += in_word
            in_word = False
        else:
            in_word, blank = True, False
    if lines:
        values[0], values[1] = punctuated / lines, short / lines
        values[2], values[3] = _repeated(hashes, lengths, lines) / characters, (most - 1) / words


@kernel
def _repeated(hashes: U64, lengths: I64, lines: int) -> int:
    """Characters of lines that are the same as an earlier one."""
    order = np.argsort(hashes[:lines], kind="mergesort")
    repeated = 0
    for i in range(1, lines):
        if hashes[order[i]] == hashes[order[i - 1]]:
            repeated += lengths[order[i]]
    return repeated
