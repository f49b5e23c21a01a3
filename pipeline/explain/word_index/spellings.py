"""The spellings of a text: its words as they are written, except for the case of ASCII letters.

A spelling is as many letters and digits in a row as there are; each letter of a script without
spaces is one of its own. Where a spelling begins and ends depends on the two characters there and
on nothing else. So whatever is a single spelling by itself is, wherever a text holds it, within one
spelling of that text: texts that hold it are those with a spelling that holds it.
"""

import unicodedata
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.text import Texts, Whole, after_ascii, join_texts
from pipeline.screening.fingerprints.alphabet import EXPANDED, IDEOGRAPHS, UNSPACED, make_alphabet

_BREAK, _LETTER, _SINGLE = np.uint8(0), np.uint8(1), np.uint8(2)
_ASCII = 128
_CASE = np.uint8(0x20)
_BASE, _ONE = np.uint64(0x9E3779B97F4A7C15), np.uint64(1)
_ROOM = 1 << 12
Number = TypeVar("Number", np.uint32, np.uint64, np.int64)
UNICODE = unicodedata.unidata_version
"""The version that says what a letter is."""


@cache
def _classes() -> U8:
    """What every code point below IDEOGRAPHS is, (IDEOGRAPHS,) uint8; all above break."""
    is_letter = np.array([chr(point).isalnum() for point in range(IDEOGRAPHS)])
    points = make_alphabet().points
    is_single = np.zeros(IDEOGRAPHS, np.bool_)
    is_single[: len(points)] = (points >= UNSPACED) & (points < EXPANDED)
    is_single[len(points) :] = True
    classes = np.where(is_letter, np.where(is_single, _SINGLE, _LETTER), _BREAK)
    classes.flags.writeable = False
    return classes


class Spellings(NamedTuple):
    """The S different spellings of some texts, in the order in which they come first, and the P
    pairs of a spelling and a text that holds it, by text: hashes (S,), texts (S,) large_string;
    spelling and row of every pair, (P,) uint32."""

    hashes: U64
    texts: pa.LargeStringArray
    spelling: U32
    row: U32


def find_spellings(texts: Texts) -> Spellings:
    """All spellings of N texts, N below 2^32."""
    known, used, spelling, row = _collect(texts.data, texts.offsets, _classes())
    hashes, starts, ends = known.hashes[:used], known.starts[:used], known.ends[:used]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
    data = _copy_lower(texts.data, starts, offsets)
    strings = pa.LargeStringArray.from_buffers(
        len(starts), pa.py_buffer(offsets), pa.py_buffer(data)
    )
    return Spellings(hashes, strings, spelling, row)


def is_one_spelling(word: str) -> bool:
    """Whether a word is a single spelling, so that those of a text tell whether it is there.

    >>> [is_one_spelling(word) for word in ("Été", "x86", "a-b", "東", "東京", "")]
    [True, True, False, True, False, False]
    """
    found = find_spellings(join_texts([word]))
    size = sum(len(text.as_py().encode()) for text in found.texts)
    return len(found.texts) == 1 and size == len(word.encode())


@kernel
def _read(data: U8, at: Whole, classes_C: U8) -> tuple[np.uint8, Whole]:
    """The class of the code point at a byte, and where the next one is."""
    if data[at] < _ASCII:
        return classes_C[data[at]], at + 1
    point, after = after_ascii(data, np.int64(at))
    if point < len(classes_C):
        return classes_C[point], after
    return _BREAK, after


@kernel
def _find_next(data: U8, at: Whole, stop: Whole, classes_C: U8) -> tuple[Whole, Whole]:
    """First byte and byte after the last of the first spelling of data[at:stop]; both are equal
    where there is none."""
    kind, begin = _BREAK, at
    while kind == _BREAK and at < stop:
        begin = at
        kind, at = _read(data, at, classes_C)
    if kind == _BREAK:
        return stop, stop
    end = at
    while kind == _LETTER and at < stop:
        kind, at = _read(data, at, classes_C)
        if kind == _LETTER:
            end = at
    return begin, end


@kernel
def _lower(byte: np.uint8) -> np.uint8:
    return byte | _CASE if 65 <= byte <= 90 else byte


@kernel
def _hash(data: U8, begin: Whole, end: Whole) -> np.uint64:
    value = np.uint64(0)
    for k in range(begin, end):
        value = value * _BASE + np.uint64(_lower(data[k])) + _ONE
    return fmix64(value)


@kernel
def _is_same(data: U8, first: Whole, second: Whole, size: Whole) -> bool:
    for k in range(size):  # noqa: SIM110 - a kernel has no generators
        if _lower(data[first + k]) != _lower(data[second + k]):
            return False
    return True


class _Known(NamedTuple):
    """Hash, first byte and byte after the last of every spelling where it comes first, and the
    last text that holds it."""

    hashes: U64
    starts: I64
    ends: I64
    last_rows: I64


@kernel
def _grow(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The values in an array of twice the length."""
    longer = np.empty(2 * len(values), values.dtype)
    for i in range(len(values)):
        longer[i] = values[i]
    return longer


@kernel
def _fill_slots(hashes: U64, capacity: int) -> U32:
    """An open hash table of so many slots, a power of two: the numbers of spellings, from 1."""
    slots = np.zeros(capacity, np.uint32)
    mask = np.uint64(capacity - 1)
    for number in range(len(hashes)):
        slot = hashes[number] & mask
        while slots[slot] != 0:
            slot = (slot + _ONE) & mask
        slots[slot] = np.uint32(number + 1)
    return slots


@kernel
def _find_slot(
    data: U8, known: _Known, slots: U32, value: np.uint64, begin: Whole, end: Whole
) -> np.uint64:
    """The slot of the spelling data[begin:end] with this hash, or a free one for it."""
    mask = np.uint64(len(slots) - 1)
    slot = value & mask
    while slots[slot] != 0:
        number = np.int64(slots[slot]) - 1
        size = known.ends[number] - known.starts[number]
        is_alike = known.hashes[number] == value and size == end - begin
        if is_alike and _is_same(data, known.starts[number], begin, size):
            break
        slot = (slot + _ONE) & mask
    return slot


@kernel
def _collect(data: U8, offsets_N1: I64, classes_C: U8) -> tuple[_Known, int, U32, U32]:
    """The spellings and how many there are; spelling and row of every pair."""
    known = _Known(
        np.empty(_ROOM, np.uint64),
        np.empty(_ROOM, np.int64),
        np.empty(_ROOM, np.int64),
        np.empty(_ROOM, np.int64),
    )
    spellings, rows = np.empty(_ROOM, np.uint32), np.empty(_ROOM, np.uint32)
    slots = np.zeros(4 * _ROOM, np.uint32)
    used, pairs = 0, 0
    for row in range(len(offsets_N1) - 1):
        stop = offsets_N1[row + 1]
        begin, end = _find_next(data, offsets_N1[row], stop, classes_C)
        while begin < end:
            value = _hash(data, begin, end)
            slot = _find_slot(data, known, slots, value, begin, end)
            number = np.int64(slots[slot]) - 1
            if number < 0:
                if used == len(known.hashes):
                    known = _Known(
                        _grow(known.hashes),
                        _grow(known.starts),
                        _grow(known.ends),
                        _grow(known.last_rows),
                    )
                    slots = _fill_slots(known.hashes[:used], 4 * len(known.hashes))
                    slot = _find_slot(data, known, slots, value, begin, end)
                number = np.int64(used)
                known.hashes[number], known.last_rows[number] = value, -1
                known.starts[number], known.ends[number] = begin, end
                used += 1
                slots[slot] = np.uint32(used)
            if known.last_rows[number] != row:
                known.last_rows[number] = row
                if pairs == len(rows):
                    spellings, rows = _grow(spellings), _grow(rows)
                spellings[pairs], rows[pairs] = np.uint32(number), np.uint32(row)
                pairs += 1
            begin, end = _find_next(data, end, stop, classes_C)
    return known, used, spellings[:pairs], rows[:pairs]


@kernel
def _copy_lower(data: U8, starts_S: I64, offsets_S1: I64) -> U8:
    """The spellings end to end, in lower case as far as they are ASCII."""
    out = np.empty(offsets_S1[-1], np.uint8)
    for number in range(len(starts_S)):
        first = offsets_S1[number]
        for k in range(offsets_S1[number + 1] - first):
            out[first + k] = _lower(data[starts_S[number] + k])
    return out


@kernel
def group_rows(spelling_P: U32, row_P: U32, ranks_S: I64, offsets_S1: I64) -> U32:
    """The rows of every spelling, (P,), by its rank and ascending; offsets (S + 1,) are those of
    the ranks."""
    free = offsets_S1[:-1].copy()
    rows = np.empty(len(row_P), np.uint32)
    for pair in range(len(row_P)):
        rank = ranks_S[spelling_P[pair]]
        rows[free[rank]] = row_P[pair]
        free[rank] += 1
    return rows


@kernel
def count_words(rows_R: U32, word: int, counts_N: U8, stamps_N: U8) -> None:
    """Add one to the count of each of these texts that was not yet counted for this word, a number
    from 1 to 255."""
    mark = np.uint8(word)
    for row in rows_R:
        if stamps_N[row] != mark:
            stamps_N[row] = mark
            counts_N[row] += np.uint8(1)
