"""The join of one band: documents with equal digests, from slices of many sorted runs.

Most digests occur once. So the key range is walked in windows that fit the cache: every entry of a
window leaves a mark in a small table, and only entries whose place was marked twice go on. These
few are sorted, and equal neighbours form buckets: exact, whatever the digests are.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dedup.arrays import I64, U32, U64
from dedup.compiled import kernel
from dedup.lsh import bit_length, check_entries, sort_entries

ENTRY_BYTES = 28
"""Memory of one entry in `buckets` when all digests are shared: its place in a run (digest and
document, 12 bytes, mapped or loaded), and in the result twice. A batch comes on top: 40 bytes for
each of 131,072 entries, or 256 entries of each run if that is more."""
_BATCH = 1 << 17
"""Entries copied and joined at once, so that scratch stays in the second-level cache."""
_BATCH_PER_RUN = 256
_WINDOW = 4096
"""Entries of a window; more when there are many runs."""
_WINDOW_PER_RUN = 32
_SLOT_BITS = 3
"""log2 of the places per entry in the table, at least: an eighth of the entries meet by chance."""
_NONE, _ONCE, _NEW = np.uint8(0), np.uint8(1), np.uint8(4)
_SHARED = np.uint8(2 + 4)
_UNSORTED = "a run is not in ascending order of digest; write runs with sorted_run"


def buckets(digests: Sequence[U64], documents: Sequence[U32], new_from: int = 0) -> tuple[U32, U32]:
    """Documents that share a digest, from slices of sorted runs.

    digests: uint64 arrays, each ascending; documents: uint32 arrays of the same lengths, the
    document of each entry; no document twice under one digest. Returns (members (M,) uint32: the
    documents of all buckets of two and more; bucket (M,) uint32 numbered from 0), in ascending
    order of (digest, document), whatever the order of the runs. With `new_from`, only buckets with
    at least one document >= new_from, all their members included. ValueError for a run that is not
    sorted and for arrays that do not fit each other.
    """
    batches = _Batches(digests, documents)
    members, numbers, count = [np.empty(0, np.uint32)], [np.empty(0, np.uint32)], 0
    for number in range(batches.count):
        member, bucket = batches.join(number, new_from)
        members.append(member)
        numbers.append(bucket + np.uint32(count))
        count += int(bucket[-1]) + 1 if len(bucket) else 0
    return np.concatenate(members), np.concatenate(numbers)


def merge(digests: Sequence[U64], documents: Sequence[U32]) -> tuple[U64, U32]:
    """All entries of sorted runs, given as for `buckets`, in ascending order of (digest, document).
    ValueError for a run that is not sorted and for arrays that do not fit each other."""
    batches = _Batches(digests, documents)
    merged = np.empty(batches.entries, np.uint64), np.empty(batches.entries, np.uint32)
    stop = 0
    for number in range(batches.count):
        ordered, owners = batches.sort(number)
        start, stop = stop, stop + len(ordered)
        merged[0][start:stop], merged[1][start:stop] = ordered, owners
    return merged


class _Batches:
    """The entries of all runs in batches of consecutive digests, with scratch for one batch.
    ValueError as for `buckets`."""

    def __init__(self, digests: Sequence[U64], documents: Sequence[U32]) -> None:
        if len(digests) != len(documents):
            raise ValueError(f"{len(digests)} arrays of digests, {len(documents)} of documents")
        runs = list(zip(digests, documents, strict=True))
        for run in runs:
            check_entries(*run)
        runs = [run for run in runs if len(run[0])]
        low = min((int(run[0][0]) for run in runs), default=0)
        high = max((low, *(int(run[0][-1]) for run in runs)))
        self.entries = entries = sum(len(digests) for digests, _ in runs)
        batches = max(1, entries // max(_BATCH, _BATCH_PER_RUN * len(runs)))
        self._runs = runs
        self._cuts = [low + (high - low + 1) * i // batches for i in range(batches + 1)]
        inner = np.array(self._cuts[1:-1], np.uint64)
        self._places = np.array(
            [[0, *np.searchsorted(digests, inner), len(digests)] for digests, _ in runs], np.int64
        ).reshape(-1, batches + 1)
        """Row r: where each batch of run r starts, and the end."""
        sizes = np.diff(self._places)
        if (sizes < 0).any():
            raise ValueError(_UNSORTED)
        largest = int(sizes.sum(axis=0).max())
        self._digests = np.empty((2, largest), np.uint64)
        self._documents = np.empty((2, largest), np.uint32)

    @property
    def count(self) -> int:
        return len(self._cuts) - 1

    def _copy(self, number: int) -> tuple[U64, U32, list[int]]:
        """Digests and documents of one batch, each in two rows: the entries of every run, one after
        the other, and scratch; where those of each run start, and the end."""
        begins, ends = self._places[:, number].tolist(), self._places[:, number + 1].tolist()
        starts = [0]
        for (digests, documents), begin, end in zip(self._runs, begins, ends, strict=True):
            start, stop = starts[-1], starts[-1] + end - begin
            self._digests[0, start:stop] = digests[begin:end]
            self._documents[0, start:stop] = documents[begin:end]
            starts.append(stop)
        return self._digests[:, : starts[-1]], self._documents[:, : starts[-1]], starts

    def sort(self, number: int) -> tuple[U64, U32]:
        """The entries of one batch, in order, until the next one is asked for."""
        digests, documents, _ = self._copy(number)
        ordered, owners = sort_entries(
            digests[0], documents[0], digests[1], documents[1], digests[0], documents[0]
        )
        low, stop = self._cuts[number], self._cuts[number + 1]
        if len(ordered) and not low <= int(ordered[0]) <= int(ordered[-1]) < stop:
            raise ValueError(_UNSORTED)
        return ordered, owners

    def join(self, number: int, new_from: int) -> tuple[U32, U32]:
        """Buckets of one batch, numbered from 0."""
        digests, documents, starts = self._copy(number)
        size, low = starts[-1], self._cuts[number]
        span = max(0, self._cuts[number + 1] - 1 - low)
        count = keep_shared(
            digests[0],
            documents[0],
            np.array(starts),
            np.uint64(low),
            np.uint64(span),
            _window_shift(span, size, len(self._runs)),
            new_from,
            digests[1],
            documents[1],
        )
        if count < 0:
            raise ValueError(_UNSORTED)
        digests, documents = digests[:, :count], documents[:, :count]
        # The copied entries have served: their place is the scratch of the sort.
        ordered, members = sort_entries(
            digests[1], documents[1], digests[0], documents[0], digests[1], documents[1]
        )
        return _group(ordered, members, new_from)


def key_ranges(count: int, bytes_per_entry: int, memory: int) -> list[tuple[int, int]]:
    """Key ranges [low, high], both included, that part all uint64 digests evenly.

    As many as `count` entries of `bytes_per_entry` need for `memory` bytes each; digests are
    uniform, so a range holds its share. Nothing else counts, workers least of all. ValueError when
    not even one entry fits.

    >>> [(hex(low), hex(high)) for low, high in key_ranges(100, 8, 400)]
    [('0x0', '0x7fffffffffffffff'), ('0x8000000000000000', '0xffffffffffffffff')]
    """
    if count < 0 or bytes_per_entry < 1 or memory < bytes_per_entry:
        raise ValueError(
            f"{memory} bytes of memory are too few for one entry of {bytes_per_entry} bytes "
            f"(count {count}); raise the memory of the join"
        )
    parts = max(1, -(-count * bytes_per_entry // memory))
    cuts = [(part << 64) // parts for part in range(parts + 1)]
    return [(low, high - 1) for low, high in pairwise(cuts)]


def _window_shift(span: int, entries: int, runs: int) -> int:
    """The bit (below 64) from which digests of one window are equal."""
    windows = max(1, entries // max(_WINDOW, _WINDOW_PER_RUN * runs))
    return min(63, max(0, span.bit_length() - (windows - 1).bit_length()))


@kernel
def keep_shared(
    digests: U64,
    documents: U32,
    starts: I64,
    low: np.uint64,
    span: np.uint64,
    shift: int,
    new_from: int,
    shared: U64,
    owners: U32,
) -> int:
    """Copy every entry that may share its digest, and a few others, to `shared` and `owners`.

    Run r is digests[starts[r]:starts[r + 1]]; its digests are from low to low + span, and their
    windows (digest - low) >> shift ascend. `documents`, `shared` and `owners` are as long as
    `digests`. Entries that share their digest with no document >= new_from may be left out. Returns
    the number of entries copied, or -1 when a run is not like that.
    """
    runs = len(starts) - 1
    window_bits = np.uint64(shift)
    windows = int(span >> window_bits) + 1
    slot_bits = _SLOT_BITS + bit_length(np.uint64(len(digests) // windows))
    slot_shift = np.uint64(max(0, shift - slot_bits))
    last = np.uint64((1 << slot_bits) - 1)
    marks = np.empty(1 << slot_bits, np.uint8)
    begins, ends = starts[:-1].copy(), starts[:-1].copy()
    count = 0
    for window in range(windows):
        number = np.uint64(window)
        marks[:] = 0
        for run in range(runs):
            i, stop = ends[run], starts[run + 1]
            begins[run] = i
            while i < stop:
                key = digests[i] - low
                if key > span or key >> window_bits != number:
                    break
                slot = (key >> slot_shift) & last
                mark = marks[slot]
                new = _NEW if documents[i] >= new_from else _NONE
                marks[slot] = mark | ((mark & _ONCE) << 1) | _ONCE | new
                i += 1
            ends[run] = i
        for run in range(runs):
            for i in range(begins[run], ends[run]):
                shared[count] = digests[i]
                owners[count] = documents[i]
                slot = ((digests[i] - low) >> slot_shift) & last
                count += 1 if (marks[slot] & _SHARED) == _SHARED else 0
    for run in range(runs):
        if ends[run] != starts[run + 1]:
            return -1
    return count


@kernel
def _group(digests: U64, documents: U32, new_from: int) -> tuple[U32, U32]:
    """Members and bucket numbers of equal neighbours; `documents` is overwritten."""
    count = len(digests)
    bucket = np.empty(count, np.uint32)
    kept = number = start = 0
    while start < count:
        stop = start + 1
        while stop < count and digests[stop] == digests[start]:
            stop += 1
        if stop - start > 1 and documents[stop - 1] >= new_from:
            for i in range(start, stop):
                documents[kept] = documents[i]
                bucket[kept] = number
                kept += 1
            number += 1
        start = stop
    return documents[:kept].copy(), bucket[:kept].copy()
