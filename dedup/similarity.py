"""Exact Jaccard similarity of two texts: by sets of shingles, and faster by hash tables."""

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


class PairJaccard:
    """`jaccard` for many pairs of texts given as UTF-8, up to collisions of 64-bit hashes.

    One object serves one thread. Memory does not grow with the texts: of long ones, shingles are
    compared in several rounds, each over one part of the hash values.
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
        pair = Texts.one(data_a, start_a, end_a), Texts.one(data_b, start_b, end_b)
        if end_a - start_a + end_b - start_b > self._most_slots // 2:
            pair = without_sigma(pair[0]), without_sigma(pair[1])
        most = 2 * (end_a - start_a + end_b - start_b)
        while len(self._keys) < min(most, self._most_slots):
            self._make_table(2 * len(self._keys))
        while (sizes := self._sizes(pair, most)) is None:
            self._make_table(2 * len(self._keys))
        union, both = sizes
        return both / union if union else 0.0

    def _sizes(self, pair: tuple[Texts, Texts], most: int) -> tuple[int, int] | None:
        """Sizes of union and intersection; None when too many hashes fall into one part."""
        slots = 64
        while slots < min(most, len(self._keys)):
            slots *= 2
        parts = max(1, -(-most // slots))
        sizes = np.zeros(3, np.int64)
        for part in range(parts):
            self._epoch += 1
            if self._epoch == _EPOCHS:
                self._make_table(len(self._keys))
                self._epoch = 1
            sizes[2] = 0
            for text, mark in zip(pair, (_FIRST, _SECOND), strict=True):
                if not self._enter_text(text, mark, part, parts, slots, sizes):
                    return None
        return int(sizes[0]), int(sizes[1])

    def _enter_text(
        self, text: Texts, mark: np.uint32, part: int, parts: int, slots: int, sizes: I64
    ) -> bool:
        keys, marks = self._keys[:slots], self._marks[:slots]
        for batch in self._stream.batches(text):
            windows_S3 = self._shingler.windows(batch)
            if not _enter(
                self._shingler.hashes,
                windows_S3,
                part,
                parts,
                mark,
                keys,
                marks,
                np.uint32(self._epoch),
                sizes,
            ):
                return False
        return True
