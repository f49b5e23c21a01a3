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
   stays. Expected once in 10^9 windows with a chance of 3 %, some have equal hashes and different
   bytes; the later repeats of these can be missed.
3. Matches are made of them and compared byte by byte (`dedup.matches`); what differs is not cut.

A place is a byte in the data of all texts, counted from that of the first one. Windows of two texts
never have neighbouring places.

Legend: N texts, S seeds, W windows, F the first of equal ones, R runs of others.
"""

from dataclasses import dataclass

import numpy as np

from dedup.arrays import I64, U8, U32, U64, Mask
from dedup.compiled import kernel
from dedup.lsh import sort_run
from dedup.polynomial import fmix64
from dedup.presets import BASE
from dedup.text import Texts

LEAST_BYTES = 32
"""Shortest window."""
_SPARE = 1 << 10
_WORD = 1 << 64
_BASE, _ONE, _ZERO = np.uint64(BASE), np.uint64(1), np.uint64(0)
_STRIDE = 256
"""Places for each of which it is known which text it is in."""


@dataclass(frozen=True)
class Seeds:
    """Seeds of N texts, ascending by place: digest (S,) uint64; place (S,) int64: the first byte,
    in the data of all texts."""

    digest: U64
    place: I64

    def __len__(self) -> int:
        return len(self.digest)


@dataclass(frozen=True, kw_only=True)
class TextWindows:
    """Windows of N texts. The first of equal ones, ascending by digest: digest (F,) uint64; row,
    place (F,) uint32: the text, and the first byte. The others, ascending by place: runs of
    neighbours, the first ones of which are neighbours too: later, first, count (R,) uint32: the
    places of both, and how many they are."""

    digest: U64
    row: U32
    place: U32
    later: U32
    first: U32
    count: U32


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


def hash_candidates(texts: Texts, seeds: Seeds, is_shared_S: Mask, least: int) -> tuple[U64, U32]:
    """Digest and place of the windows that no seed rules out, (W,) uint64 and uint32. is_shared_S:
    whether there is a second of each seed, in these or other texts."""
    size = seed_size(least)
    alone = seeds.place[~is_shared_S]
    starts, stops = np.empty((2, len(alone) + len(texts)), np.int64)
    count = _leave_open(texts.offsets, alone, size, least, starts, stops)
    starts, stops = starts[:count], stops[:count]
    total = int((stops - starts).sum())
    digest, place = np.empty(total, np.uint64), np.empty(total, np.uint32)
    power = np.uint64(pow(BASE, least, _WORD))
    _hash_windows(texts.data, texts.offsets[0], starts, stops, least, power, digest, place)
    return digest, place


def group_windows(texts: Texts, digest_W: U64, place_W: U32) -> TextWindows:
    """The windows of `hash_candidates`, equal ones together."""
    digest, place = sort_run(digest_W, place_W)
    span = int(texts.offsets[-1] - texts.offsets[0])
    first_of = np.zeros(span, np.uint32)
    firsts = _split_groups(digest, place, first_of)
    row = np.empty(firsts, np.uint32)
    _find_rows(texts.offsets, place[:firsts], row)
    runs = np.empty((3, _count_runs(first_of)), np.uint32)
    _fill_runs(first_of, runs)
    later, first, count = runs
    return TextWindows(
        digest=digest[:firsts],
        row=row,
        place=place[:firsts],
        later=later,
        first=first,
        count=count,
    )


def is_among(digest_S: U64, known_K: U64) -> Mask:
    """Whether each digest is one of those that are known, in any order; both are uniform."""
    slots = np.zeros(1 << max(4, (2 * len(known_K)).bit_length()), np.uint64)
    is_known_S = np.zeros(len(digest_S), np.bool_)
    _look_up(digest_S, known_K, slots, is_known_S)
    return is_known_S


def first_of_groups(group_M: U32, key_M2: U64) -> I64:
    """The index of the smallest key of each entry's group, (M,). group_M ascends; key_M2: two
    numbers a key, of which the first counts more; keys of a group differ."""
    first_M = np.empty(len(group_M), np.int64)
    _find_first(group_M, key_M2, first_M)
    return first_M


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
def _leave_open(offsets_N1: I64, alone: I64, size: int, least: int, starts: I64, stops: I64) -> int:
    """First bytes [start, stop) of the windows that hold no seed of those that are alone; the
    arrays hold len(alone) + N."""
    count, i = 0, 0
    for row in range(len(offsets_N1) - 1):
        start, end = offsets_N1[row], offsets_N1[row + 1]
        stop = end - least + 1
        while i < len(alone) and alone[i] < end:
            before = alone[i] + size - least
            if start < before:
                starts[count], stops[count] = start, before
                count += 1
            start = alone[i] + 1
            i += 1
        if start < stop:
            starts[count], stops[count] = start, stop
            count += 1
    return count


@kernel
def _hash_windows(
    data: U8,
    origin: int,
    starts: I64,
    stops: I64,
    least: int,
    power: np.uint64,
    digest_W: U64,
    place_W: U32,
) -> None:
    """Digest and place of all windows that begin in [start, stop). power: BASE^least."""
    count = 0
    for k in range(len(starts)):
        at = starts[k]
        value = _ZERO
        for i in range(at, at + least):
            value = value * _BASE + (np.uint64(data[i]) + _ONE)
        while True:
            digest_W[count], place_W[count] = fmix64(value), at - origin
            count += 1
            if at + 1 == stops[k]:
                break
            value = value * _BASE + _step(data, at, least, power)
            at += 1


@kernel
def _split_groups(digest_W: U64, place_W: U32, first_of: U32) -> int:
    """Of windows in order, move the first of equal ones to the front; of every other one, its place
    in `first_of` gets the place of the first, and 1. Returns how many are first."""
    count = 0
    for i in range(len(digest_W)):
        if count and digest_W[i] == digest_W[count - 1]:
            first_of[place_W[i]] = place_W[count - 1] + np.uint32(1)
        else:
            digest_W[count], place_W[count] = digest_W[i], place_W[i]
            count += 1
    return count


@kernel
def _find_rows(offsets_N1: I64, place_F: U32, row_F: U32) -> None:
    """The text of each place."""
    origin, row = offsets_N1[0], 0
    row_at = np.empty((offsets_N1[-1] - origin) // _STRIDE + 1, np.uint32)
    for i in range(len(row_at)):
        while row + 2 < len(offsets_N1) and offsets_N1[row + 1] - origin <= i * _STRIDE:
            row += 1
        row_at[i] = row
    for k in range(len(place_F)):
        row = row_at[place_F[k] // _STRIDE]
        while offsets_N1[row + 1] - origin <= place_F[k]:
            row += 1
        row_F[k] = row


@kernel
def _begins_run(first_of: U32, place: int) -> bool:
    return place == 0 or first_of[place - 1] == 0 or first_of[place - 1] + 1 != first_of[place]


@kernel
def _count_runs(first_of: U32) -> int:
    count = 0
    for place in range(len(first_of)):
        if first_of[place]:
            count += _begins_run(first_of, place)
    return count


@kernel
def _fill_runs(first_of: U32, runs_3R: U32) -> None:
    """Later, first and count of every run."""
    k = -1
    for place in range(len(first_of)):
        if not first_of[place]:
            continue
        if _begins_run(first_of, place):
            k += 1
            runs_3R[0, k], runs_3R[1, k], runs_3R[2, k] = place, first_of[place] - 1, 0
        runs_3R[2, k] += 1


@kernel
def _look_up(digest_S: U64, known_K: U64, slots: U64, is_known_S: Mask) -> None:
    """slots: zeros, a power of two of them and more than known digests."""
    knows_zero, mask = False, len(slots) - 1
    for digest in known_K:
        knows_zero |= digest == _ZERO
        slots[_slot_of(digest, slots, mask)] = digest
    for k in range(len(digest_S)):
        digest = digest_S[k]
        is_here = slots[_slot_of(digest, slots, mask)] == digest
        is_known_S[k] = is_here and (digest != _ZERO or knows_zero)


@kernel
def _slot_of(digest: np.uint64, slots: U64, mask: int) -> int:
    """Where a digest is, or would be."""
    slot = digest & np.uint64(mask)
    while slots[slot] and slots[slot] != digest:
        slot = (slot + _ONE) & np.uint64(mask)
    return int(slot)


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
        for m in range(start, stop):
            first_M[m] = first
        start = stop
