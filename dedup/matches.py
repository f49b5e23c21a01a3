"""Matches of repeated passages: neighbouring windows (`dedup.substrings`) whose first occurrences
are neighbours too, compared byte by byte.

Texts are in blocks, and a place is a byte of the block's texts, counted from the first one.

Legend: M matches, R runs of windows, F windows, K spans.
"""

from dataclasses import dataclass

import numpy as np

from dedup.arrays import I64, U8, U32, Mask
from dedup.compiled import kernel

_MOST_TAIL = 3
"""Bytes of a character behind its first."""
_CONTINUES, _TOP_TWO = np.uint8(0x80), np.uint8(0xC0)


@dataclass(frozen=True)
class Matches:
    """Runs of bytes that repeat, ascending by start: start, end (M,) int64: half-open places;
    block, first (M,) int64: where they are first."""

    start: I64
    end: I64
    block: I64
    first: I64

    def __len__(self) -> int:
        return len(self.start)

    def take(self, chosen: I64 | Mask) -> "Matches":
        """Some of them."""
        columns = (self.start, self.end, self.block, self.first)
        return Matches(*(column[chosen] for column in columns))


@dataclass(frozen=True)
class MovedWindows:
    """The first windows of a block that are first in another: place (F,) uint32; block, first (F,)
    uint32: where that is."""

    place: U32
    block: U32
    first: U32


def chain_matches(
    block: int, span: int, least: int, moved: MovedWindows, runs: tuple[U32, U32, U32]
) -> Matches:
    """The matches of a block of `span` bytes. runs: `later`, `first` and `count` of TextWindows.
    Without those whose bytes others cover, of which text that repeats itself has one at every
    byte."""
    block_at, first_at = np.zeros(span, np.uint32), np.empty(span, np.uint32)
    block_at[moved.place] = moved.block + np.uint32(1)
    first_at[moved.place] = moved.first
    _place_later(*runs, block, least, block_at, first_at)
    found = np.empty((4, _count_chains(block_at, first_at)), np.int64)
    _fill_chains(block_at, first_at, least, found)
    needed = np.zeros(found.shape[1], np.bool_)
    _cover(found[0], found[1], needed)
    return Matches(*found).take(needed)


def verify_matches(
    later: U8, start_M: I64, end_M: I64, earlier: U8, first_M: I64, least: int
) -> tuple[I64, I64, I64]:
    """Where later[start:end] of each match agrees with as many bytes of `earlier` for `least` bytes
    or more: the match, and half-open bytes of `later` without incomplete characters at the ends,
    (K,) each, ascending by match and start.

    later, earlier: UTF-8 of texts end to end; no match reaches into another text.

    >>> text, three, seven = np.frombuffer("_-één x".encode(), np.uint8), *np.array([[3], [7]])
    >>> [column.tolist() for column in verify_matches(text, three, seven, text, three, 3)]
    [[0], [4], [7]]
    """
    spans = np.empty((3, int(((end_M - start_M) // least + 1).sum())), np.int64)
    match, low, high = spans[:, : _verify(later, start_M, end_M, earlier, first_M, least, spans)]
    return match, low, high


@kernel
def _place_later(
    later_R: U32,
    first_R: U32,
    count_R: U32,
    block: int,
    least: int,
    block_at: U32,
    first_at: U32,
) -> None:
    """Fill in, by place, where later windows are first: block and 1, and place."""
    for run in range(len(later_R)):
        for k in range(count_R[run]):
            at, first = later_R[run] + k, first_R[run] + k
            if block_at[first]:
                block_at[at], first_at[at] = block_at[first], first_at[first]
            elif at - first >= least:
                block_at[at], first_at[at] = block + 1, first


@kernel
def _goes_on(block_at: U32, first_at: U32, place: int) -> bool:
    """Whether a window continues the match of the one before."""
    return (
        place > 0
        and block_at[place - 1] == block_at[place]
        and first_at[place - 1] + 1 == first_at[place]
    )


@kernel
def _count_chains(block_at: U32, first_at: U32) -> int:
    count = 0
    for place in range(len(block_at)):
        if block_at[place]:
            count += not _goes_on(block_at, first_at, place)
    return count


@kernel
def _fill_chains(block_at: U32, first_at: U32, least: int, found_4M: I64) -> None:
    """Start, end, block and first of every match."""
    k = -1
    for place in range(len(block_at)):
        if not block_at[place]:
            continue
        if not _goes_on(block_at, first_at, place):
            k += 1
            found_4M[0, k] = place
            found_4M[2, k], found_4M[3, k] = block_at[place] - 1, first_at[place]
        found_4M[1, k] = place + least


@kernel
def _cover(start_M: I64, end_M: I64, needed_M: Mask) -> None:
    """Mark matches that cover the bytes of all: of those that begin before the last one ends, the
    one that reaches furthest. They overlap enough to hold the characters at their ends."""
    i = 0
    while i < len(start_M):
        best, reach = i, end_M[i]
        j = i + 1
        while True:
            needed_M[best] = True
            covered = reach
            while j < len(start_M) and start_M[j] + _MOST_TAIL <= covered:
                if end_M[j] > reach:
                    best, reach = j, end_M[j]
                j += 1
            if reach == covered:
                break
        i = j


@kernel
def _verify(
    later: U8, start_M: I64, end_M: I64, earlier: U8, first_M: I64, least: int, spans_3K: I64
) -> int:
    """Fill the spans, of which there are no more than (end - start) // least + 1 a match; returns
    how many there are."""
    count = 0
    for match in range(len(start_M)):
        low, end, shift = start_M[match], end_M[match], first_M[match] - start_M[match]
        for i in range(low, end + 1):
            if i < end and later[i] == earlier[i + shift]:
                continue
            if i - low >= least:
                first, stop = low, i
                while first < stop and (later[first] & _TOP_TWO) == _CONTINUES:
                    first += 1
                while stop > first and stop < len(later) and (later[stop] & _TOP_TWO) == _CONTINUES:
                    stop -= 1
                spans_3K[0, count], spans_3K[1, count], spans_3K[2, count] = match, first, stop
                count += 1
            low = i + 1
    return count
