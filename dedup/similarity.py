"""Exact Jaccard similarity of two texts: by sets of shingles, and faster by hash tables."""

from collections.abc import Iterator

import numpy as np

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.presets import Preset, resolve_preset, shingles
from dedup.stream import Shingler, Stream
from dedup.text import Texts, without_sigma

SLOTS = 1 << 22
"""Slots of the hash table at most, 12 bytes each."""

_FIRST = np.uint32(1)
_SECOND = np.uint32(2)
_BOTH = np.uint32(3)
_HALF = np.uint64(32)
_CACHED = 1 << 16
"""Slots of a table that a second-level cache of 1 MB holds."""
_EPOCHS = 1 << 30


def jaccard(a: str, b: str, preset: str | Preset = "slimpajama") -> float:
    """Jaccard similarity of the sets of shingles of texts `a` and `b`, |A & B| / |A | B|; 0.0 if
    either is empty. Raises ValueError for an unknown `preset`.

    >>> jaccard("The same words here", "the same words, here!")
    1.0
    >>> jaccard("too short", "too short")
    0.0
    """
    first, second = set(shingles(a, preset)), set(shingles(b, preset))
    if not first or not second:
        return 0.0
    return len(first & second) / len(first | second)


@kernel
def _enter(
    hashes: U64,
    windows_S3: I64,
    part: int,
    parts: int,
    text: np.uint32,
    keys: U64,
    marks: U32,
    epoch: np.uint32,
    sizes: I64,
) -> bool:
    """Enter the shingles of the first or second `text` whose hash falls into this part.

    marks: epoch * 4 + the texts a key is in; slots of older epochs are free. sizes: distinct
    shingles of the union, of the intersection, and of this epoch, counted on. Returns False when
    the table gets too full.
    """
    mask = np.uint64(len(keys) - 1)
    limit = len(keys) - len(keys) // 4
    share, chosen = np.uint64(parts), np.uint64(part)
    tag = epoch << np.uint32(2)
    for s in range(len(windows_S3)):
        for i in range(windows_S3[s, 1], windows_S3[s, 2]):
            key = hashes[i]
            mixed = fmix64(key)
            if ((mixed >> _HALF) * share) >> _HALF != chosen:
                continue
            slot = mixed & mask
            while (marks[slot] & ~_BOTH) == tag and keys[slot] != key:
                slot = (slot + np.uint64(1)) & mask
            mark = marks[slot]
            if (mark & ~_BOTH) != tag:
                keys[slot] = key
                marks[slot] = tag | text
                sizes[0] += 1
                sizes[2] += 1
                if sizes[2] > limit:
                    return False
            elif (mark & text) == 0:
                marks[slot] = mark | text
                sizes[1] += 1
    return True


@kernel
def _group(hashes_N: U64, bits: np.uint64, grouped_N: U64, ends: I64) -> None:
    """Put hashes into 2^bits groups by the uppermost bits of what their slots come from. ends:
    where each group ends, and a 0 before."""
    shift = np.uint64(64) - bits
    ends[:] = 0
    for h in hashes_N:
        ends[(fmix64(h) >> shift) + np.uint64(1)] += 1
    place, end = np.empty(len(ends), np.int64), 0
    for group in range(len(ends)):
        end += ends[group]
        ends[group] = place[group] = end
    for h in hashes_N:
        its = fmix64(h) >> shift
        grouped_N[place[its]] = h
        place[its] += 1


class PairJaccard:
    """`jaccard` for many pairs of texts given as UTF-8, up to collisions of 64-bit hashes.

    One object serves one thread. Memory does not grow with the texts. Hashes of a pair whose table
    no cache holds are first sorted into groups, which takes about 50 MB at most; those of a longer
    pair, of over SLOTS / 2 bytes, are compared in several rounds, each over one part of the values.
    """

    def __init__(self, preset: str | Preset = "slimpajama", slots: int = SLOTS) -> None:
        recipe = resolve_preset(preset)
        self._shingler = Shingler(recipe)
        self._stream = Stream(recipe.size)
        self._most_slots = slots
        self._make_table(64)

    def _make_table(self, slots: int) -> None:
        self._keys = np.empty(slots, np.uint64)
        self._marks = np.zeros(slots, np.uint32)
        self._epoch = 0

    def of(
        self, data_a: U8, start_a: int, end_a: int, data_b: U8, start_b: int, end_b: int
    ) -> float:
        """Similarity of the texts data_a[start_a:end_a] and data_b[start_b:end_b].

        The buffers are those of `dedup.text.Texts`.
        """
        union, both = self._compare(
            Texts.one(data_a, start_a, end_a), Texts.one(data_b, start_b, end_b)
        )
        return both / union if union else 0.0

    def containment(self, a: U8, b: U8) -> tuple[float, float]:
        """The share of the shingles of text `a` that text `b` has, too, and their similarity.

        >>> text = np.frombuffer(b"the same words, and others", np.uint8)
        >>> PairJaccard().containment(text[:14], text)
        (1.0, 0.15384615384615385)
        """
        first, second = (Texts.one(text, 0, len(text)) for text in (a, b))
        union, both = self._compare(first, second)
        own, _ = self._compare(first, Texts.one(a, 0, 0))
        return (both / own, both / union) if own else (0.0, 0.0)

    def _compare(self, a: Texts, b: Texts) -> tuple[int, int]:
        """Sizes of union and intersection."""
        size = int(sum(text.offsets[-1] - text.offsets[0] for text in (a, b)))
        pair = (without_sigma(a), without_sigma(b)) if size > self._most_slots // 2 else (a, b)
        most = 2 * size
        while len(self._keys) < min(most, self._most_slots):
            self._make_table(2 * len(self._keys))
        while (sizes := self._sizes(pair, most)) is None:
            self._make_table(2 * len(self._keys))
        return sizes

    def _sizes(self, pair: tuple[Texts, Texts], most: int) -> tuple[int, int] | None:
        """Sizes of union and intersection; None when too many hashes fall into one part."""
        slots = 64
        while slots < min(most, len(self._keys)):
            slots *= 2
        parts = max(1, -(-most // slots))
        if parts == 1 and slots > _CACHED and (sizes_by_group := self._sizes_by_group(pair, slots)):
            return sizes_by_group
        sizes = np.zeros(3, np.int64)
        for part in range(parts):
            self._begin(sizes)
            for text, mark in zip(pair, (_FIRST, _SECOND), strict=True):
                for windows_S3 in self._windows(text):
                    hashes, chosen = self._shingler.hashes, (part, parts)
                    if not self._enter_windows(hashes, windows_S3, mark, slots, sizes, chosen):
                        return None
        return int(sizes[0]), int(sizes[1])

    def _sizes_by_group(self, pair: tuple[Texts, Texts], slots: int) -> tuple[int, int] | None:
        """As `_sizes`, group by group of all hashes, so that each table stays in the cache."""
        sizes = np.zeros(3, np.int64)
        groups = 2 * slots // _CACHED
        ends_2G = np.empty((2, groups + 1), np.int64)
        grouped_2 = [
            self.group_hashes(text, ends) for text, ends in zip(pair, ends_2G, strict=True)
        ]
        for group in range(groups):
            self._begin(sizes)
            for hashes, ends, mark in zip(grouped_2, ends_2G, (_FIRST, _SECOND), strict=True):
                window = np.array([[0, ends[group], ends[group + 1]]])
                if not self._enter_windows(hashes, window, mark, _CACHED, sizes):
                    return None
        return int(sizes[0]), int(sizes[1])

    def group_hashes(self, text: Texts, ends: I64) -> U64:
        """The hashes of a text's shingles in groups by their uppermost bits; ends (G + 1,) int64
        gets where each of the G groups ends, G a power of two, after a 0."""
        hashes = self.hashes(text)
        grouped = np.empty_like(hashes)
        _group(hashes, np.uint64((len(ends) - 1).bit_length() - 1), grouped, ends)
        return grouped

    def hashes(self, text: Texts) -> U64:
        """The hash of every shingle of a text, in order."""
        found = [np.zeros(0, np.uint64)]
        for windows_S3 in self._windows(text):
            found += [self._shingler.hashes[start:end].copy() for _, start, end in windows_S3]
        return np.concatenate(found)

    def _windows(self, text: Texts) -> Iterator[I64]:
        """Of every batch; the hashes are the shingler's."""
        return map(self._shingler.windows, self._stream.batches(text))

    def _begin(self, sizes: I64) -> None:
        """Empty the table."""
        sizes[2] = 0
        self._epoch += 1
        if self._epoch == _EPOCHS:
            self._make_table(len(self._keys))
            self._epoch = 1

    def _enter_windows(
        self,
        hashes: U64,
        windows_S3: I64,
        mark: np.uint32,
        slots: int,
        sizes: I64,
        chosen: tuple[int, int] = (0, 1),
    ) -> bool:
        """Of the part that is chosen of so many; False when the table gets too full."""
        keys, marks = self._keys[:slots], self._marks[:slots]
        epoch, (part, parts) = np.uint32(self._epoch), chosen
        return bool(_enter(hashes, windows_S3, part, parts, mark, keys, marks, epoch, sizes))
