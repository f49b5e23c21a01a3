"""What the filters must know of a character, in one table, and how kernels read it.

A character is white space as `str.isspace` says and alphabetic as `str.isalpha` says, so words are
those of `str.split`.
"""

from functools import cache
from typing import Any, TypeAlias

import numpy as np

from dedup.arrays import U32
from dedup.compiled import kernel

Whole: TypeAlias = int | np.int64

KNOWN = 0x40000
"""Code points from here on are neither white space nor alphabetic, up to Unicode 17."""

BULLETS = "-*•‣⁃◦▪▫■□●○"
"""Characters that make a line an item of a list when it begins with one."""
SENTENCE_ENDS = ".!?…。！？؟۔।"
"""Characters that end a sentence: Latin, CJK, Arabic, Urdu and Devanagari."""
QUOTES = "\"'”’»)]"
"""What may come between the end of a sentence and the white space after it."""

LOWER = np.uint32(0x1FFFFF)
"""The bits of an entry that hold the lower case of its code point, where that is one other."""
SPACE, ALPHA, ALNUM, BULLET, STOP, QUOTE = (np.uint32(1 << bit) for bit in range(21, 27))
"""Flags of an entry."""

NEWLINE, HASH, DOT, ELLIPSIS = (np.uint32(ord(c)) for c in "\n#.…")


@cache
def character_table() -> U32:
    """(KNOWN,) uint32: the lower case of each code point and its flags."""
    table = np.empty(KNOWN, np.uint32)
    for point in range(KNOWN):
        c = chr(point)
        lower = c.lower()
        entry = ord(lower) if len(lower) == 1 else point
        if c.isalnum():
            entry |= int(ALNUM) | (int(ALPHA) if c.isalpha() else 0)
        elif c.isspace():
            entry |= int(SPACE)
        table[point] = entry
    for characters, flag in ((BULLETS, BULLET), (SENTENCE_ENDS, STOP), (QUOTES, QUOTE)):
        table[[ord(c) for c in characters]] |= flag
    table.flags.writeable = False
    return table


@kernel
def entry_of(c: np.uint32, table: U32) -> np.uint32:
    """Lower case and flags of a code point."""
    return table[c] if c < KNOWN else c


@kernel
def absorb(value: np.uint64, other: np.uint64) -> np.uint64:
    """One step of a hash over numbers; each is a bijection of `value`."""
    value = (value ^ (other + np.uint64(1))) * np.uint64(0xD6E8FEB86659FD93)
    return value ^ (value >> np.uint64(32))


def hash_numbers(numbers: Any) -> np.uint64:
    """`absorb` over several numbers, from 0."""
    value = np.uint64(0)
    for number in numbers:
        value = np.uint64(absorb(value, np.uint64(number)))
    return value
