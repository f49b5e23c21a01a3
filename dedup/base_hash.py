"""Base hashes of the shingles of a batch: what datasketch's `hashfunc` returns, ready to permute.

datasketch's affine schemes first send the base hash through a finaliser of MurmurHash3 of their
width; that is done here.
"""

import numpy as np

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.presets import Preset
from dedup.sha1 import MARGIN, encode, sha1_hashes
from dedup.shingler import Shingler
from dedup.stream import Batch

_HALF = np.uint64(32)


@kernel
def fmix32(value: np.uint32) -> np.uint32:
    """MurmurHash3's 32-bit finaliser."""
    value ^= value >> np.uint32(16)
    value = np.uint32(value * np.uint32(0x85EBCA6B))
    value ^= value >> np.uint32(13)
    value = np.uint32(value * np.uint32(0xC2B2AE35))
    return value ^ (value >> np.uint32(16))


@kernel
def _upper32(polynomials: U64, count: int, hashes: U32) -> None:
    """The hash `poly64`."""
    for i in range(count):
        hashes[i] = np.uint32(fmix64(polynomials[i]) >> _HALF)


@kernel
def _lower32(digests: U64, count: int, hashes: U32) -> None:
    """The hash `sha1`."""
    for i in range(count):
        hashes[i] = np.uint32(digests[i])


@kernel
def _finalise32(hashes: U32, count: int) -> None:
    for i in range(count):
        hashes[i] = fmix32(hashes[i])


@kernel
def _finalise64(values: U64, count: int, hashes: U64) -> None:
    """`hashes` may be `values`."""
    for i in range(count):
        hashes[i] = fmix64(values[i])


@kernel
def _word_bytes(
    at: I64, starts: I64, ends: I64, count: int, size: int, first: I64, last: I64
) -> None:
    """Where in UTF-8 the shingle of words i to i + size - 1 begins and ends."""
    for i in range(count):
        first[i] = at[starts[i]]
        last[i] = at[ends[i + size - 1]]


class BaseHasher:
    """Hashes the shingles that a shingler found, one batch after another."""

    def __init__(self, recipe: Preset, shingler: Shingler) -> None:
        self._recipe = recipe
        self._shingler = shingler
        self._h32: U32 = np.empty(0, np.uint32)

    def hashes(self, batch: Batch) -> U32 | U64:
        """(shingles,) uint32, or uint64 for scheme affine64; valid until the next call."""
        recipe, count = self._recipe, self._shingler.count
        if len(self._h32) < len(self._shingler.hashes):
            self._make_room(len(self._shingler.hashes))
        is_sha1 = recipe.hash.startswith("sha1")
        values = self._sha1(batch) if is_sha1 else self._shingler.hashes
        if recipe.hash == "poly64_full":
            _finalise64(values, count, self._h64)
        elif recipe.hash == "sha1_full":
            self._h64[:count] = values[:count]
        elif is_sha1:
            _lower32(values, count, self._h32)
        else:
            _upper32(values, count, self._h32)
        if recipe.scheme == "affine64":
            if not recipe.hash.endswith("_full"):
                self._h64[:count] = self._h32[:count]
            _finalise64(self._h64, count, self._h64)
            return self._h64
        if recipe.scheme == "affine32":
            _finalise32(self._h32, count)
        return self._h32

    def _make_room(self, points: int) -> None:
        """Scratch for a batch of so many code points."""
        self._h32 = np.empty(points, np.uint32)
        if self._recipe.scheme == "affine64":
            self._h64: U64 = np.empty(points, np.uint64)
        if self._recipe.hash.startswith("sha1"):
            self._text: U8 = np.empty(4 * points + MARGIN, np.uint8)
            self._at: I64 = np.empty(points + 1, np.int64)
            self._digests: U64 = np.empty(points, np.uint64)

    def _sha1(self, batch: Batch) -> U64:
        shingler = self._shingler
        encode(batch.points, batch.filled, self._text, self._at)
        count = shingler.count - shingler.size + 1
        if shingler.is_word:
            first, last = np.empty((2, max(count, 0)), np.int64)
            _word_bytes(self._at, shingler.starts, shingler.ends, count, shingler.size, first, last)
        else:
            first, last = self._at, self._at[shingler.size :]
        sha1_hashes(self._text, first, last, count, self._digests)
        return self._digests
