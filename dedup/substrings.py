"""Repeated passages: runs of bytes, of a length and more, that occur earlier, and where they do.

As Lee et al. (2022, "Deduplicating Training Data Makes Language Models Better", ExactSubstr) cut
them, but found by hashes of windows rather than a suffix array, so that no task needs more than a
part of the corpus. A window is `least` bytes. One that occurs earlier, without an overlap of the
two, is repeated; what repeated windows cover is cut. Neighbouring windows whose first occurrences
are neighbours too form a match.

1. Seeds: every window of `seed_size` bytes whose hash begins with zeros, about one in `least` / 16
   to `least` / 8. A repeated window is the same text in both places and has the same seeds in both;
   so one that holds a seed of which there is no second anywhere is not repeated, and is never
   looked at again. That rules out nearly all text that does not repeat.
2. The windows that are left are joined by a 64-bit hash of all their bytes: the first of equal ones
   stays.
3. Matches are compared byte by byte; what differs is not cut.

So nothing is cut that does not occur earlier. Of windows with equal hashes and different bytes the
later repeats can be missed: expected once in 10^9 windows with a chance of 3 %.

Legend: N texts, S seeds, W windows, M matches.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64, U8, U32, U64, Mask
from dedup.compiled import kernel
from dedup.lsh import sort_run
from dedup.polynomial import fmix64
from dedup.presets import BASE
from dedup.text import Texts

__all__ = [
    "LEAST_BYTES",
    "RepeatedBytes",
    "Seeds",
    "TextWindows",
    "chain_matches",
    "find_seeds",
    "first_of_groups",
    "keep_candidates",
    "seed_size",
    "verify_match",
]

LEAST_BYTES = 32
"""Shortest window."""
_SPARE = 1 << 10
_WORD = 1 << 64
_BASE, _ONE, _ZERO = np.uint64(BASE), np.uint64(1), np.uint64(0)
_MOST_TAIL = 3
"""Bytes of a character behind its first."""
_CONTINUES, _TOP_TWO = np.uint8(0x80), np.uint8(0xC0)


@dataclass(frozen=True)
class Seeds:
    """Seeds of N texts, ascending by place: digest (S,) uint64; place (S,) int64: the first byte,
    in the data of all texts."""

    digest: U64
    place: I64

    def __len__(self) -> int:
        return len(self.digest)


@dataclass(frozen=True)
class TextWindows:
    """Windows of N texts, ascending by digest, then by row and start: digest (W,) uint64; row,
    byte_start (W,) uint32: the text, and the window's first byte in it."""

    digest: U64
    row: U32
    byte_start: U32

    def __len__(self) -> int:
        return len(self.digest)


@dataclass(frozen=True)
class RepeatedBytes:
    """Runs of neighbouring repeated windows, ascending by row and start: row, byte_start, byte_end
    (M,) int64: their bytes, half-open; first (M,) int64: an index of the first window of each."""

    row: I64
    byte_start: I64
    byte_end: I64
    first: I64

    def __len__(self) -> int:
        return len(self.row)


def seed_size(least: int) -> int:
    """Bytes of a seed for windows of `least` bytes.

    >>> seed_size(200)
    50
    """
    return least // 4


def _sampling_shift(least: int) -> int:
    """Bits of a hash but for those that are zero for seeds. Of windows of 200 bytes about six in
    100,000 hold no seed, and of those of any length less than three in a thousand: nothing rules
    these out."""
    return 64 - ((least // 8).bit_length() - 1)


def find_seeds(texts: Texts, least: int) -> Seeds:
    """The seeds of every text of `least` bytes or more. Raises ValueError for a `least` below
    LEAST_BYTES."""
    if least < LEAST_BYTES:
        raise ValueError(f"windows have {least} bytes; give {LEAST_BYTES} or more")
    size, shift = seed_size(least), _sampling_shift(least)
    span = int(texts.offsets[-1] - texts.offsets[0])
    room = (span >> (64 - shift)) * 5 // 4 + _SPARE
    power = np.uint64(pow(BASE, size, _WORD))
    while True:
        digests, places = np.empty(room, np.uint64), np.empty(room, np.int64)
        count = _sample(
            texts.data, texts.offsets, size, least, np.uint64(shift), power, digests, places
        )
        if count <= room:
            return Seeds(digests[:count], places[:count])
        room = count


def keep_candidates(texts: Texts, seeds: Seeds, is_shared_S: Mask, least: int) -> TextWindows:
    """The windows that no seed rules out. is_shared_S: whether there is a second of each seed, in
    these or other texts."""
    size = seed_size(least)
    alone = seeds.place[~is_shared_S]
    room = len(alone) + len(texts)
    rows, starts, stops = (
        np.empty(room, np.uint32),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
    )
    count = _leave_open(texts.offsets, alone, size, least, rows, starts, stops)
    rows, starts, stops = rows[:count], starts[:count], stops[:count]
    total = int((stops - starts).sum())
    digest = np.empty(total, np.uint64)
    row, byte = np.empty(total, np.uint32), np.empty(total, np.uint32)
    power = np.uint64(pow(BASE, least, _WORD))
    _hash_windows(texts.data, texts.offsets, rows, starts, stops, least, power, digest, row, byte)
    ordered, order = sort_run(digest, np.arange(total, dtype=np.uint32))
    return TextWindows(ordered, row[order], byte[order])


def first_of_groups(group_M: U32, key_M2: U64) -> I64:
    """The index of the smallest key of each entry's group, (M,). group_M ascends; key_M2: two
    numbers a key, of which the first counts more; keys of a group differ."""
    first_M = np.empty(len(group_M), np.int64)
    _find_first(group_M, key_M2, first_M)
    return first_M


def chain_matches(
    row_W: U32, byte_W: U32, first_text_W: npt.NDArray[np.integer], first_byte_W: U32, least: int
) -> RepeatedBytes:
    """Matches of repeated windows, given in any order; no window twice. first_text_W, first_byte_W:
    the text of the first occurrence of each, as any number, and its first byte there. Without those
    whose bytes others cover, of which text that repeats itself has one at every byte."""
    key = row_W.astype(np.uint64) << np.uint64(32) | byte_W
    ordered, order = sort_run(key, np.arange(len(key), dtype=np.uint32))
    text, byte = first_text_W[order].astype(np.int64), first_byte_W[order].astype(np.int64)
    goes_on = (np.diff(ordered) == 1) & (np.diff(text) == 0) & (np.diff(byte) == 1)
    starts = np.flatnonzero(np.r_[True, ~goes_on][: len(key)])
    stops = np.r_[starts[1:], len(key)][: len(starts)]
    row = (ordered[starts] >> np.uint64(32)).astype(np.int64)
    start = (ordered[starts] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    end = start + (stops - starts) + least - 1
    needed = np.zeros(len(row), np.bool_)
    _cover(row, start, end, needed)
    chosen = np.flatnonzero(needed)
    first = order[starts[chosen]].astype(np.int64)
    return RepeatedBytes(row[chosen], start[chosen], end[chosen], first)


def verify_match(
    later: U8, start: int, end: int, earlier: U8, earlier_start: int, least: int
) -> I64:
    """Where later[start:end] agrees with as many bytes of `earlier` for `least` bytes or more:
    (K, 2) int64, half-open bytes of `later`, ascending, without incomplete characters at the ends.

    later, earlier: UTF-8 of two texts, read-only.

    >>> text = np.frombuffer("_-één x".encode(), np.uint8)
    >>> verify_match(text, 3, 7, text, 3, 3).tolist()
    [[4, 7]]
    """
    spans = np.empty(((end - start) // least + 1, 2), np.int64)
    return spans[: _verify(later, start, end, earlier, earlier_start, least, spans)]


@kernel
def _sample(
    data: U8,
    offsets_N1: I64,
    size: int,
    least: int,
    shift: np.uint64,
    power: np.uint64,
    digests: U64,
    places: I64,
) -> int:
    """Fill two arrays of one length with the seeds; returns how many there are, though no more
    than the arrays hold are written. power: BASE^size."""
    count = 0
    for row in range(len(offsets_N1) - 1):
        at, end = offsets_N1[row], offsets_N1[row + 1]
        if end - at < least:
            continue
        value = _ZERO
        for i in range(at, at + size):
            value = value * _BASE + (np.uint64(data[i]) + _ONE)
        while True:
            if value >> shift == _ZERO:
                if count < len(digests):
                    digests[count], places[count] = fmix64(value), at
                count += 1
            if at + size == end:
                break
            value = value * _BASE + _step(data, at, size, power)
            at += 1
    return count


@kernel
def _step(data: U8, at: int, size: int, power: np.uint64) -> np.uint64:
    """What a rolling hash gains, once multiplied, where byte `at` goes and another comes."""
    return np.uint64(data[at + size]) + _ONE - (np.uint64(data[at]) + _ONE) * power


@kernel
def _leave_open(
    offsets_N1: I64, alone: I64, size: int, least: int, rows: U32, starts: I64, stops: I64
) -> int:
    """First bytes [start, stop) of the windows that hold no seed of those that are alone, by row;
    the arrays hold len(alone) + N."""
    count, i = 0, 0
    for row in range(len(offsets_N1) - 1):
        start, end = offsets_N1[row], offsets_N1[row + 1]
        stop = end - least + 1
        while i < len(alone) and alone[i] < end:
            before = alone[i] + size - least
            if start < before:
                rows[count], starts[count], stops[count] = row, start, before
                count += 1
            start = alone[i] + 1
            i += 1
        if start < stop:
            rows[count], starts[count], stops[count] = row, start, stop
            count += 1
    return count


@kernel
def _hash_windows(
    data: U8,
    offsets_N1: I64,
    rows: U32,
    starts: I64,
    stops: I64,
    least: int,
    power: np.uint64,
    digest_W: U64,
    row_W: U32,
    byte_W: U32,
) -> None:
    """Digest, row and first byte of all windows that begin in [start, stop). power: BASE^least."""
    count = 0
    for k in range(len(rows)):
        at, row = starts[k], rows[k]
        value = _ZERO
        for i in range(at, at + least):
            value = value * _BASE + (np.uint64(data[i]) + _ONE)
        while True:
            digest_W[count] = fmix64(value)
            row_W[count], byte_W[count] = row, at - offsets_N1[row]
            count += 1
            if at + 1 == stops[k]:
                break
            value = value * _BASE + _step(data, at, least, power)
            at += 1


@kernel
def _find_first(group_M: U32, key_M2: U64, first_M: I64) -> None:
    start = 0
    while start < len(group_M):
        stop, first = start + 1, start
        while stop < len(group_M) and group_M[stop] == group_M[start]:
            high, low = key_M2[stop, 0], key_M2[stop, 1]
            if (high, low) < (key_M2[first, 0], key_M2[first, 1]):
                first = stop
            stop += 1
        first_M[start:stop] = first
        start = stop


@kernel
def _cover(row_M: I64, start_M: I64, end_M: I64, needed_M: Mask) -> None:
    """Mark matches that cover the bytes of all: of those that begin before the last one ends, the
    one that reaches furthest. They overlap enough to hold the characters at their ends."""
    i = 0
    while i < len(row_M):
        row, best, reach = row_M[i], i, end_M[i]
        j = i + 1
        while True:
            needed_M[best] = True
            covered = reach
            while j < len(row_M) and row_M[j] == row and start_M[j] + _MOST_TAIL <= covered:
                if end_M[j] > reach:
                    best, reach = j, end_M[j]
                j += 1
            if reach == covered:
                break
        i = j


@kernel
def _verify(
    later: U8, start: int, end: int, earlier: U8, earlier_start: int, least: int, spans_K2: I64
) -> int:
    """Fill the spans, which hold (end - start) // least + 1; returns how many there are."""
    count, low, shift = 0, start, earlier_start - start
    for i in range(start, end + 1):
        if i < end and later[i] == earlier[i + shift]:
            continue
        if i - low >= least:
            first, stop = low, i
            while first < stop and (later[first] & _TOP_TWO) == _CONTINUES:
                first += 1
            while stop > first and stop < len(later) and (later[stop] & _TOP_TWO) == _CONTINUES:
                stop -= 1
            spans_K2[count, 0], spans_K2[count, 1] = first, stop
            count += 1
        low = i + 1
    return count
