"""Words of texts as 64-bit hashes, with the bytes where they are (see `alphabet`).

A hyphen between a letter and a line end is dropped with the line end when a letter follows. Each
letter of a script without spaces is a word; the lowest bit of a hash tells these (1) from words
(0).
"""

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.text import Texts, Whole, after_ascii
from pipeline.screening.fingerprints import alphabet as classes

Number = TypeVar("Number", np.uint32, np.uint64, np.int64)


@kernel
def make_room(values: npt.NDArray[Number], used: Whole, more: Whole) -> npt.NDArray[Number]:
    """The values, in an array at least twice as long if `more` do not fit behind the used ones."""
    if used + more <= len(values):
        return values
    longer = np.empty(max(2 * len(values), used + more), values.dtype)
    for i in range(used):
        longer[i] = values[i]
    return longer


@kernel
def make_rows(rows: I64, used: Whole, more: Whole) -> I64:
    """The same of rows."""
    if used + more <= len(rows):
        return rows
    longer = np.empty((max(2 * len(rows), used + more), rows.shape[1]), np.int64)
    for row in range(used):
        for column in range(rows.shape[1]):
            longer[row, column] = rows[row, column]
    return longer


BASE = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: of the polynomials over letters and over words."""
ROOM = 32
"""Places that must be free in the arrays of `append_words`: one code point makes 18 words at
most."""

_BASE, _ZERO, _ONE = np.uint64(BASE), np.uint64(0), np.uint64(1)
_NOT_ONE = ~np.uint64(1)
_ONE_OF_MANY = ~np.uint32(classes.EXPANDED)
_LETTERS = np.uint32(0xFFFFFF)
_CR, _LF = np.uint8(13), np.uint8(10)


class Words(NamedTuple):
    """Words in a row: hash uint64, first byte int64, byte after the last int64."""

    hashes: U64
    starts: I64
    ends: I64


def find_words(text: Texts) -> Words:
    """All words of the first text of `text`; bytes count from its beginning."""
    start, end = int(text.offsets[0]), int(text.offsets[1])
    words = find_words_between(text.data, start, end, classes.make_alphabet())
    return Words(words.hashes.copy(), words.starts - start, words.ends - start)


@kernel
def mix_bits(value: np.uint64) -> np.uint64:
    """MurmurHash3's 64-bit finaliser."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@kernel
def _decode(data: U8, at: int, points: U32) -> tuple[np.uint32, int]:
    """What the code point of several bytes at byte `at` is, and where the next one is."""
    c, after = after_ascii(data, at)
    if c < classes.LIMIT:
        return points[c], after
    if c < classes.IDEOGRAPHS:
        return c | classes.UNSPACED, after
    return (classes.DROPPED if c >> np.uint32(12) == classes.TAGS >> 12 else classes.BREAK), after


@kernel
def _read_class(data: U8, at: int, tables: classes.Alphabet) -> tuple[np.uint32, int]:
    """What is at byte `at`, of several letters the first, and where the next one is."""
    c = tables.ascii[data[at]]
    following = at + 1
    if c == classes.WIDE:
        c, following = _decode(data, at, tables.points)
        if c < classes.SPECIAL and c >= classes.EXPANDED:
            c = tables.expansions[(c & _ONE_OF_MANY) + np.uint32(1)]
    return c, following


@kernel
def _skip_line_end(data: U8, at: int, end: int, tables: classes.Alphabet) -> int:
    """Where a word goes on whose hyphen ends before byte `at`; -1 if it does not: only one line end
    may lie between, and blanks."""
    lines = 0
    while at < end:
        c, following = _read_class(data, at, tables)
        if c == classes.NEWLINE:
            lines += 1
            if data[at] == _CR and following < end and data[following] == _LF:
                following += 1
        elif c != classes.BLANK and c != classes.DROPPED:
            return at if lines == 1 and c < classes.UNSPACED else -1
        if lines > 1:
            return -1
        at = following
    return -1


@kernel
def _put(words: Words, count: int, value: np.uint64, begin: Whole, stop: Whole) -> int:
    words.hashes[count], words.starts[count], words.ends[count] = value, begin, stop
    return count + 1


@kernel
def _expand(
    units: U32,
    words: Words,
    count: int,
    value: np.uint64,
    begin: Whole,
    stop: Whole,
    at: int,
    after: int,
) -> tuple[int, np.uint64, Whole, Whole]:
    """The units of one code point, bytes [at, after): (count, value, begin, stop) after them."""
    for unit in units:
        if unit < classes.UNSPACED:
            if begin < 0:
                value, begin = _ZERO, at
            value = value * _BASE + np.uint64(unit)
            stop = after
            continue
        if begin >= 0:
            count = _put(words, count, mix_bits(value) & _NOT_ONE, begin, stop)
            begin = -1
        if unit != classes.BREAK:
            count = _put(words, count, mix_bits(np.uint64(unit & _LETTERS)) | _ONE, at, after)
    return count, value, begin, stop


@kernel
def append_words(
    data: U8,
    position: int,
    end: int,
    tables: classes.Alphabet,
    words: Words,
    count: int,
    opened: U64,
) -> tuple[int, int]:
    """Append the words from byte `position` on until the arrays have less than ROOM places left.

    opened (3,) keeps the word that is not complete yet between two calls for one text: zeros before
    the first. Returns (the new `count`, where to go on); the text is read when that is `end`.
    """
    full = len(words.hashes) - ROOM
    value = opened[0]
    begin: Whole = np.int64(opened[1]) - 1
    stop: Whole = np.int64(opened[2])
    while position < end and count <= full:
        at = position
        c = tables.ascii[data[position]]
        position += 1
        if c < classes.UNSPACED:
            if begin < 0:
                value, begin = _ZERO, at
            while c < classes.UNSPACED:
                value = value * _BASE + np.uint64(c)
                if position == end:
                    c, position = classes.BREAK, position + 1
                    break
                c = tables.ascii[data[position]]
                position += 1
            at = position - 1
            stop = at
        if c == classes.WIDE:
            c, position = _decode(data, at, tables.points)
            if c < classes.UNSPACED:
                if begin < 0:
                    value, begin = _ZERO, at
                value = value * _BASE + np.uint64(c)
                stop = position
                continue
        if c < classes.SPECIAL:
            if c >= classes.EXPANDED:
                place = np.int64(c & _ONE_OF_MANY) + 1
                units = tables.expansions[place : place + np.int64(tables.expansions[place - 1])]
                count, value, begin, stop = _expand(
                    units, words, count, value, begin, stop, at, position
                )
                continue
            if begin >= 0:
                count = _put(words, count, mix_bits(value) & _NOT_ONE, begin, stop)
                begin = -1
            count = _put(words, count, mix_bits(np.uint64(c & _LETTERS)) | _ONE, at, position)
            continue
        if c == classes.DROPPED or begin < 0:
            continue
        if c in (classes.HYPHEN, classes.SOFT):
            following = _skip_line_end(data, position, end, tables)
            if following >= 0:
                position = following
                continue
            if c == classes.SOFT:
                continue
        count = _put(words, count, mix_bits(value) & _NOT_ONE, begin, stop)
        begin = -1
    position = min(position, end)
    if position == end and begin >= 0:
        count = _put(words, count, mix_bits(value) & _NOT_ONE, begin, stop)
        begin = -1
    opened[0], opened[1], opened[2] = value, np.uint64(begin + 1), np.uint64(stop)
    return count, position


@kernel
def find_words_between(data: U8, start: int, end: int, tables: classes.Alphabet) -> Words:
    """All words of the text data[start:end]; bytes count from the beginning of the data."""
    room = (end - start) // 4 + 2 * ROOM
    words = Words(np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64))
    opened = np.zeros(3, np.uint64)
    position, count = start, 0
    while position < end:
        words = Words(
            make_room(words.hashes, count, 2 * ROOM),
            make_room(words.starts, count, 2 * ROOM),
            make_room(words.ends, count, 2 * ROOM),
        )
        count, position = append_words(data, position, end, tables, words, count, opened)
    return Words(words.hashes[:count], words.starts[:count], words.ends[:count])
