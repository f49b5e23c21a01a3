"""MinHash signatures and digests of many texts, in one pass of compiled kernels over each.

Every signature is bit for bit the sketch of `datasketch.MinHash(num_perm, seed=seed, scheme=scheme,
hashfunc=...)` updated with `dedup.shingles(text)` under `dedup.shingle_hash`; `fss` is our own
(`dedup.sketches`). Texts may be split into calls in any way.

The digest is a strong 64-bit hash of a whole normalised text, for exact duplicates. Within a block
of BLOCK code points: the sum of key[i] * (point[i] + 1) modulo 2^64, a multilinear hash (Lemire and
Kaser, "Strongly universal string hashing is fast", The Computer Journal 2014), which vectorises.
From block to block, and with the length at the end, the sums are mixed in a chain. Two different
texts agree with probability 2^-64, or 2^(t - 64) if wherever they differ, code points differ by
multiples of 2^t. The keys are public: somebody who wants to can make texts agree.

Limits: with word shingles, a run of as many words as a shingle has costs 28 bytes a character,
which matters for text without any blanks; everything else runs in a few megabytes, whatever the
length of the documents.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from dedup.arrays import I64, U32, U64
from dedup.base_hash import BaseHasher
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.presets import BASE, Preset, resolve_preset
from dedup.presets import fmix64_integer as plain_fmix64
from dedup.sketches import EMPTY, affine32, affine64, fast_sketch, legacy, permutations
from dedup.stream import (
    CAPACITY,
    ENDS,
    ROW,
    START,
    STOP,
    Shingler,
    Stream,
    TextBatch,
    count_shingles,
)
from dedup.text import TextArray, Texts, Whole, view_texts

BLOCK = 1024

_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_ONE = np.uint64(1)
_CHAIN, _SUM, _COUNT = range(3)


@cache
def digest_keys() -> U64:
    """(BLOCK,) uint64: a fixed random number for each place in a block."""
    values = [plain_fmix64((i + 1) * BASE % (1 << 64)) for i in range(BLOCK)]
    return np.array(values, np.uint64)


@kernel
def _sum(points: U32, start: Whole, stop: Whole, key_B: U64, place: Whole) -> np.uint64:
    """The part of a block's sum that points[start:stop] are, the first of them at `place`."""
    total = np.uint64(0)
    first, key = np.uint64(start), np.uint64(place)
    for i in range(np.uint64(stop - start)):
        total += key_B[key + i] * (np.uint64(points[first + i]) + _ONE)
    return total


@kernel
def _chain(chain: np.uint64, value: np.uint64) -> np.uint64:
    return fmix64(chain ^ value) * _MULTIPLIER


@kernel
def digest_segments(
    points: U32,
    segments_S4: I64,
    continues: bool,
    fresh: int,
    key_B: U64,
    state: U64,
    digests_N: U64,
) -> None:
    """Digest the documents of a batch; digests_N[row] is set where a document ends."""
    for s in range(len(segments_S4)):
        start, stop = segments_S4[s, START], segments_S4[s, STOP]
        if s == 0 and continues:
            start = fresh
        else:
            state[:] = np.uint64(0)
        while start < stop:
            place = np.int64(state[_COUNT]) % BLOCK
            size = min(stop - start, BLOCK - place)
            state[_SUM] += _sum(points, start, start + size, key_B, place)
            state[_COUNT] += np.uint64(size)
            start += size
            if place + size == BLOCK:
                state[_CHAIN] = _chain(state[_CHAIN], state[_SUM])
                state[_SUM] = np.uint64(0)
        if segments_S4[s, ENDS]:
            last = _chain(state[_CHAIN], state[_SUM])
            digests_N[segments_S4[s, ROW]] = _chain(last, state[_COUNT])


@dataclass(frozen=True)
class Sketches:
    """What one pass over N texts gives.

    signatures (N, num_perm) uint32, or uint64 for scheme affine64; all ones for a text without a
    shingle. shingles (N,) uint32: number of shingles, repeated ones too; 0 = never clusters.
    text_digest (N,) uint64: a strong hash of the normalised text.
    """

    signatures: U32 | U64
    shingles: U32
    text_digest: U64

    def rows(self, start: int, stop: int) -> "Sketches":
        """A part of the texts; writing to it writes here."""
        own = slice(start, stop)
        return Sketches(self.signatures[own], self.shingles[own], self.text_digest[own])


_PERMUTE: dict[str, Callable[..., None]] = {
    "affine32": affine32,
    "affine64": affine64,
    "legacy": legacy,
}


def signatures(
    texts: TextArray,
    *,
    preset: str | Preset = "slimpajama",
    num_perm: int | None = None,
    scheme: str | None = None,
    hash: str | None = None,
    seed: int | None = None,
) -> U32 | U64:
    """MinHash signatures of `texts`: a list of str or a pyarrow array of strings.

    Returns (N, num_perm) uint32, for scheme affine64 uint64; a text without a shingle gets all
    ones, as datasketch's empty sketch. What is None comes from the preset; `slimpajama` means
    num_perm 128, scheme "affine32", hash "poly64", seed 1. ValueError for unknown or unfit names,
    nulls and text that is not UTF-8.
    """
    options = {"num_perm": num_perm, "scheme": scheme, "hash": hash, "seed": seed}
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    recipe = replace(resolve_preset(preset), bands=0, **values)
    return _sketch(texts, recipe, with_digest=False).signatures


def sketch_documents(texts: TextArray, preset: str | Preset) -> Sketches:
    """Signatures by a `preset`, numbers of shingles and digests of `texts`, taken as by
    `signatures`. ValueError for an unknown preset, nulls and text that is not UTF-8."""
    return _sketch(texts, resolve_preset(preset), with_digest=True)


def _sketch(
    texts: TextArray, recipe: Preset, *, with_digest: bool, capacity: int = CAPACITY
) -> Sketches:
    """`capacity`: code points in a batch, which changes nothing in the result."""
    chunks = view_texts(texts)
    count = sum(len(chunk) for chunk in chunks)
    cells: Any = np.uint64 if recipe.scheme == "affine64" else np.uint32
    sketches = Sketches(
        np.full((count, recipe.num_perm), np.iinfo(cells).max, cells),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint64),
    )
    sketcher = _Sketcher(recipe, with_digest, capacity)
    first = 0
    for chunk in chunks:
        sketcher.run(chunk, sketches.rows(first, first + len(chunk)))
        first += len(chunk)
    return sketches


class _Sketcher:
    """One pass over texts, batch by batch, with the scratch that all batches share."""

    def __init__(self, recipe: Preset, with_digest: bool, capacity: int) -> None:
        self._recipe = recipe
        self._with_digest = with_digest
        self._stream = Stream(recipe.size if recipe.unit == "char" else 1, capacity)
        self._shingler = Shingler(recipe)
        self._hasher = BaseHasher(recipe, self._shingler)

    def run(self, texts: Texts, sketches: Sketches) -> None:
        """Fill the rows of `sketches`, one for each text."""
        state = np.zeros(3, np.uint64)  # chain, sum of the block, code points so far
        for batch in self._stream.batches(texts):
            windows_S3 = self._shingler.windows(batch)
            count_shingles(windows_S3, batch.continues, sketches.shingles)
            if self._recipe.scheme == "fss":
                self._fast_sketch(texts, batch, windows_S3, sketches.signatures)
            else:
                recipe, hashes = self._recipe, self._hasher.hashes(batch)
                a, b = permutations(recipe.scheme, recipe.num_perm, recipe.seed)
                _PERMUTE[recipe.scheme](hashes, windows_S3, a, b, sketches.signatures)
            if self._with_digest:
                digest_segments(
                    batch.points,
                    batch.segments,
                    batch.continues,
                    batch.fresh,
                    digest_keys(),
                    state,
                    sketches.text_digest,
                )

    def _fast_sketch(
        self, texts: Texts, batch: TextBatch, windows_S3: I64, signatures_NP: Any
    ) -> None:
        fast_sketch(
            self._shingler.hashes,
            windows_S3,
            batch.continues,
            batch.is_open,
            self._recipe.seed,
            signatures_NP,
        )
        if batch.continues and batch.segments[0, ENDS]:
            row = int(windows_S3[0, 0])
            if (signatures_NP[row] == EMPTY).any():
                self._sketch_distinct(texts, row, signatures_NP)

    def _sketch_distinct(self, texts: Texts, row: int, signatures_NP: Any) -> None:
        """All rounds for a text longer than a batch that has few different shingles."""
        shingler = Shingler(self._recipe)
        alone = replace(texts, offsets=texts.offsets[row : row + 2])
        distinct: U64 = np.empty(0, np.uint64)
        for batch in Stream(self._recipe.size).batches(alone):
            for _, start, stop in shingler.windows(batch).tolist():
                distinct = np.union1d(distinct, shingler.hashes[start:stop])
        windows_S3 = np.array([[row, 0, len(distinct)]], np.int64)
        fast_sketch(distinct, windows_S3, False, False, self._recipe.seed, signatures_NP)
