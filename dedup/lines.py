"""Repeated lines and paragraphs: units of text that stand in many documents, and cutting them.

A unit is a line (up to a newline) or a paragraph (up to a newline, white space and another
newline). Units are compared by a 64-bit digest of the text that `dedup.presets.normalize` leaves of
them; those that it leaves shorter than a given number of characters are not looked at. Equal units
have equal digests; among 10^9 different ones one pair is expected to agree with a chance of 3 %.

Limits: units must be equal after normalisation, similar ones are not found; the text stays in
order, but what stands around a cut may lose its meaning, so code and tables are better left out.

Shapes: N documents, U units, M units that occur more than once, L units to cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.lsh import sort_run
from dedup.polynomial import fmix64
from dedup.text import BLANK, DROPPED, TextArray, case_table, view_texts
from dedup.words import DOTTED, DOTTED_1, DOTTED_2, fold_character

__all__ = ["UNITS", "Unit", "Units", "cut_column", "cut_spans", "later_occurrences", "units_of"]

Unit = Literal["line", "paragraph"]
UNITS: tuple[Unit, ...] = get_args(Unit)

_LARGEST = (1 << 32) - 1
_NEWLINE = np.uint8(0x0A)
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_HALF, _ONE = np.uint64(32), np.uint64(1)


@dataclass(frozen=True)
class Units:
    """Units of many documents, ascending by digest, then row, then start.

    digest uint64; row uint32: index of the document; byte_start, byte_end uint32: half-open
    in its UTF-8, what separates the unit from the next one included.
    """

    digest: U64
    row: U32
    byte_start: U32
    byte_end: U32

    def __len__(self) -> int:
        return len(self.digest)


def units_of(texts: TextArray, unit: Unit = "line", min_characters: int = 40) -> Units:
    """The units of N texts with `min_characters` normalised characters or more.

    Raises ValueError for an unknown unit, a min_characters below 1, a text of 4 GiB or more, and as
    `view_texts`.
    """
    if unit not in UNITS or min_characters < 1:
        raise ValueError(
            f"unit {unit!r}, min_characters {min_characters}: expected one of "
            f"{', '.join(UNITS)}, and 1 or more"
        )
    columns: list[tuple[U64, U32, U32, U32]] = []
    base = 0
    for chunk in view_texts(texts):
        if len(chunk) and int(np.diff(chunk.offsets).max()) > _LARGEST:
            raise ValueError("a text has 4 GiB or more; split it")
        digests, rows, starts, ends = _units(
            chunk.data, chunk.offsets, case_table(), unit == "paragraph", min_characters
        )
        columns.append((digests, rows + np.uint32(base), starts, ends))
        base += len(chunk)
    digests = np.concatenate([np.zeros(0, np.uint64), *(c[0] for c in columns)])
    rows, starts, ends = (
        np.concatenate([np.zeros(0, np.uint32), *(c[k] for c in columns)]) for k in (1, 2, 3)
    )
    ordered, order = sort_run(digests, np.arange(len(digests), dtype=np.uint32))
    return Units(ordered, rows[order], starts[order], ends[order])


def later_occurrences(
    bucket_M: U32, rank_M: npt.NDArray[np.integer], byte_start_M: U32, min_documents: int = 2
) -> tuple[I64, I64]:
    """Which occurrences of repeated units are cut, and which one stays for each.

    bucket_M: equal for equal units; rank_M: the document's place in the order of documents, equal
    within one document alone; byte_start_M: where the unit begins in it. A unit that stands in
    `min_documents` different documents or more stays where it comes first and is cut everywhere
    else, in that first document too. Returns indices into M by bucket, rank and start: cut (L,),
    first (L,).
    """
    if not len(bucket_M):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.lexsort((byte_start_M, rank_M, bucket_M))
    bucket, rank = bucket_M[order], rank_M[order]
    new_unit = np.r_[True, bucket[1:] != bucket[:-1]]
    new_document = new_unit | np.r_[True, rank[1:] != rank[:-1]]
    starts, number = np.flatnonzero(new_unit), np.cumsum(new_unit) - 1
    documents = np.add.reduceat(new_document, starts, dtype=np.int64)
    later = ~new_unit & (documents >= min_documents)[number]
    return order[later], order[starts][number[later]]


def cut_spans(text: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
    """The text without these byte spans, which ascend and do not overlap.

    >>> cut_spans(b"one\\ntwo\\nthree", [(4, 8)])
    b'one\\nthree'
    """
    pieces, position = [], 0
    for start, end in spans:
        pieces.append(text[position:start])
        position = end
    return b"".join([*pieces, text[position:]])


def cut_column(
    texts: TextArray,
    rows: npt.NDArray[np.integer],
    byte_starts: npt.NDArray[np.integer],
    byte_ends: npt.NDArray[np.integer],
) -> pa.LargeStringArray:
    """A column of texts without some byte spans: (S,) rows, starts and ends, ascending by (row,
    start), inside their text and without overlap.

    Raises ValueError when the spans are not so, or cut a character of more than one byte.
    """
    row_S, start_S, end_S = (np.asarray(a, np.int64) for a in (rows, byte_starts, byte_ends))
    chunks = view_texts(texts)
    lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(c.offsets) for c in chunks)])
    _check_spans(row_S, start_S, end_S, lengths)
    parts, base = [pa.array([], pa.large_string())], 0
    for chunk in chunks:
        first, stop = np.searchsorted(row_S, [base, base + len(chunk)])
        row = row_S[first:stop] - base
        start, end = (chunk.offsets[row] + a[first:stop] for a in (start_S, end_S))
        if _inside_character(chunk.data, start) or _inside_character(chunk.data, end):
            raise ValueError("a span begins or ends inside a character of several bytes")
        removed = np.concatenate([[0], np.cumsum(end - start)])
        before = removed[np.searchsorted(row, np.arange(len(chunk) + 1))]
        offsets = chunk.offsets - chunk.offsets[0] - before
        data = _without(chunk.data, int(chunk.offsets[0]), int(chunk.offsets[-1]), start, end)
        buffers = pa.py_buffer(offsets), pa.py_buffer(data)
        parts.append(pa.LargeStringArray.from_buffers(len(chunk), *buffers))
        base += len(chunk)
    return pa.concat_arrays(parts)


def _check_spans(row_S: I64, start_S: I64, end_S: I64, lengths_N: I64) -> None:
    if not len(row_S):
        return
    inside = 0 <= row_S.min() <= row_S.max() < len(lengths_N) and (start_S >= 0).all()
    ascending = (row_S[1:] > row_S[:-1]) | ((row_S[1:] == row_S[:-1]) & (start_S[1:] >= end_S[:-1]))
    if not (
        inside
        and ascending.all()
        and (start_S <= end_S).all()
        and (end_S <= lengths_N[row_S]).all()
    ):
        raise ValueError("spans must ascend by row and start, lie in their text and not overlap")


def _inside_character(data: U8, at: I64) -> bool:
    """Whether one of these bytes continues a character; the end of the data does not."""
    return bool(((data[at[at < len(data)]] & 0xC0) == 0x80).any())


def _without(data: U8, low: int, high: int, starts: I64, ends: I64) -> U8:
    """data[low:high] without [start, end) spans."""
    marks = np.zeros(high - low + 1, np.int8)
    np.add.at(marks, starts - low, np.int8(1))
    np.add.at(marks, ends - low, np.int8(-1))
    stays: U8 = data[low:high][np.cumsum(marks[:-1], dtype=np.int8) == 0]
    return stays


@kernel
def _units(
    data: U8, offsets_N1: I64, table: U32, paragraphs: bool, least: int
) -> tuple[U64, U32, U32, U32]:
    """Digest, row, start and end of every unit of `least` (1 or more) characters, in order."""
    room = (offsets_N1[-1] - offsets_N1[0]) // least + 1
    digests, rows = np.empty(room, np.uint64), np.empty(room, np.uint32)
    starts, ends = np.empty(room, np.uint32), np.empty(room, np.uint32)
    count = 0
    for row in range(len(offsets_N1) - 1):
        position, origin, end = offsets_N1[row], offsets_N1[row], offsets_N1[row + 1]
        while position < end:
            stop, characters, value = _read_unit(data, position, end, table, paragraphs)
            if characters >= least:
                digests[count] = fmix64(value + np.uint64(characters))
                rows[count], starts[count], ends[count] = row, position - origin, stop - origin
                count += 1
            position = stop
    return digests[:count], rows[:count], starts[:count], ends[:count]


@kernel
def _read_unit(
    data: U8, position: int, end: int, table: U32, paragraphs: bool
) -> tuple[int, int, np.uint64]:
    """Where the unit that begins here and its separator end; its characters and hash."""
    value, characters, blank = _ONE, 0, False
    while position < end:
        if data[position] == _NEWLINE:
            stop = _separator_end(data, position, end, table) if paragraphs else position + 1
            if stop > position:
                return stop, characters, value
        c, position = fold_character(data, position, table)
        if c == DROPPED:
            continue
        if c == BLANK:
            blank = characters > 0
            continue
        if blank:
            value, characters, blank = _absorb(value, np.uint64(BLANK)), characters + 1, False
        if c == DOTTED:
            value, characters = _absorb(value, np.uint64(DOTTED_1)), characters + 1
            c = DOTTED_2
        value, characters = _absorb(value, np.uint64(c)), characters + 1
    return end, characters, value


@kernel
def _absorb(value: np.uint64, c: np.uint64) -> np.uint64:
    """One step of the hash: a bijection of `value` that is no polynomial."""
    value = (value ^ (c + _ONE)) * _MULTIPLIER
    return value ^ (value >> _HALF)


@kernel
def _separator_end(data: U8, newline: int, end: int, table: U32) -> int:
    """After the last newline of the white space that begins with one; -1 if there is no other."""
    stop, position = -1, newline + 1
    while position < end:
        if data[position] == _NEWLINE:
            stop = position + 1
        c, position = fold_character(data, position, table)
        if c != BLANK:
            break
    return stop
