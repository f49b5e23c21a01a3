"""Sketches of many hashes: datasketch's permutations, and FastSimilaritySketch.

Permutations: each with its running minimum, over the hashes of many shingles. Shingles are taken
eight at a time and the inner loop runs over the permutations: so it vectorises for short documents
too and needs no reduction across lanes. A minimum does not mind a shingle seen twice, which fills
up the last eight. Source of the schemes and of their parameters: datasketch 2.0, `minhash.py`. The
parameters are made here, because importing datasketch costs half a second in every worker; tests
hold them equal. numpy keeps the streams of RandomState frozen (NEP 19). Every kernel takes hashes
(base hashes, mixed as the scheme wants), segments_S3 (row, first hash, end of one stretch of a
document), a and b of `permutations`, and signatures_NP, whose rows it lowers; the padding beyond P
is not stored.

FastSimilaritySketch: one hash per shingle in place of one per shingle and cell. Source: Dahlgaard,
Knudsen, Thorup, "Fast Similarity Sketching", FOCS 2017. In round r every shingle throws its value
into one cell chosen by its hash; an earlier round beats a later one, the smaller value wins. A
large set fills every cell in the first round. Cells that are still empty after ROUNDS take the
smallest value of all shingles under a hash of their own. As with MinHash, two sketches agree in a
cell with probability J, and the cells can be cut into bands. A cell is a uint32: 4 bits of round,
28 bits of value; all ones for a set without shingles.
"""

from functools import cache
from typing import Any

import numpy as np

from dedup.arrays import I64, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.presets import BASE

PADDING = 16
"""Permutations in a vector register, so that none is left over for a slow loop."""

_MERSENNE_PRIME = (1 << 61) - 1


@cache
def permutations(scheme: str, num_perm: int, seed: int) -> tuple[Any, Any]:
    """Parameters a and b of scheme affine32 (uint32), affine64 or legacy (uint64).

    Each is padded with zeros to a multiple of PADDING.
    """
    random = np.random.RandomState(seed)
    if scheme == "legacy":
        parameters = np.empty((2, num_perm), np.uint64)
        for p in range(num_perm):
            parameters[0, p] = random.randint(1, _MERSENNE_PRIME, dtype=np.uint64)
            parameters[1, p] = random.randint(0, _MERSENNE_PRIME, dtype=np.uint64)
    else:
        width: Any = np.uint32 if scheme == "affine32" else np.uint64
        bits = 8 * np.dtype(width).itemsize
        odd = random.randint(0, 1 << (bits - 1), num_perm, dtype=width) * width(2) + width(1)
        parameters = np.array([odd, random.randint(0, 1 << bits, num_perm, dtype=width)])
    padded = np.zeros((2, -(-num_perm // PADDING) * PADDING), parameters.dtype)
    padded[:, :num_perm] = parameters
    return padded[0], padded[1]


GROUP = 8
_PRIME = np.uint64((1 << 61) - 1)
_LOW = np.uint64(0xFFFFFFFF)
_S61 = np.uint64(61)
_ONE = np.uint64(1)
_ALL32 = np.uint32(0xFFFFFFFF)
_ALL64 = np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def _affine32_group(group: U32, a: U32, b: U32, minima: U32) -> None:
    h0, h1, h2, h3 = group[0], group[1], group[2], group[3]
    h4, h5, h6, h7 = group[4], group[5], group[6], group[7]
    for p in range(len(minima)):
        x, y = a[p], b[p]
        m = min(np.uint32(x * h0 + y), np.uint32(x * h1 + y))
        n = min(np.uint32(x * h2 + y), np.uint32(x * h3 + y))
        o = min(np.uint32(x * h4 + y), np.uint32(x * h5 + y))
        q = min(np.uint32(x * h6 + y), np.uint32(x * h7 + y))
        minima[p] = min(minima[p], min(min(m, n), min(o, q)))


@kernel
def affine32(hashes: U32, segments_S3: I64, a: U32, b: U32, signatures_NP: U32) -> None:
    """Permutation: a * h + b modulo 2^32."""
    group = np.empty(GROUP, np.uint32)
    minima = np.empty(len(a), np.uint32)
    for s in range(len(segments_S3)):
        row, start, end = segments_S3[s, 0], segments_S3[s, 1], segments_S3[s, 2]
        minima[:] = _ALL32
        for i in range(start, end, GROUP):
            for k in range(GROUP):
                group[k] = hashes[min(i + k, end - 1)]
            _affine32_group(group, a, b, minima)
        for p in range(signatures_NP.shape[1]):
            signatures_NP[row, p] = min(signatures_NP[row, p], minima[p])


@kernel
def _affine64_group(group: U64, a: U64, b: U64, minima: U64) -> None:
    h0, h1, h2, h3 = group[0], group[1], group[2], group[3]
    h4, h5, h6, h7 = group[4], group[5], group[6], group[7]
    for p in range(len(minima)):
        x, y = a[p], b[p]
        m = min(min(x * h0 + y, x * h1 + y), min(x * h2 + y, x * h3 + y))
        n = min(min(x * h4 + y, x * h5 + y), min(x * h6 + y, x * h7 + y))
        minima[p] = min(minima[p], min(m, n))


@kernel
def affine64(hashes: U64, segments_S3: I64, a: U64, b: U64, signatures_NP: U64) -> None:
    """Permutation: a * h + b modulo 2^64."""
    group = np.empty(GROUP, np.uint64)
    minima = np.empty(len(a), np.uint64)
    for s in range(len(segments_S3)):
        row, start, end = segments_S3[s, 0], segments_S3[s, 1], segments_S3[s, 2]
        minima[:] = _ALL64
        for i in range(start, end, GROUP):
            for k in range(GROUP):
                group[k] = hashes[min(i + k, end - 1)]
            _affine64_group(group, a, b, minima)
        for p in range(signatures_NP.shape[1]):
            signatures_NP[row, p] = min(signatures_NP[row, p], minima[p])


@kernel
def _mersenne(value: np.uint64) -> np.uint64:
    """The lower 32 bits of value modulo 2^61 - 1.

    The quotient q is value >> 61, or one more when the remainder would reach the prime; and as the
    prime is -1 modulo 2^32, the lower bits of value - q * prime are those of value + q.
    """
    quotient = value >> _S61
    quotient += ((value & _PRIME) + quotient + _ONE) >> _S61
    return (value + quotient) & _LOW


@kernel
def _legacy_group(group: U64, a: U64, b: U64, minima: U32) -> None:
    h0, h1, h2, h3 = group[0], group[1], group[2], group[3]
    h4, h5, h6, h7 = group[4], group[5], group[6], group[7]
    for p in range(len(minima)):
        x, y = a[p], b[p]
        m = min(_mersenne(x * h0 + y), _mersenne(x * h1 + y))
        n = min(_mersenne(x * h2 + y), _mersenne(x * h3 + y))
        o = min(_mersenne(x * h4 + y), _mersenne(x * h5 + y))
        q = min(_mersenne(x * h6 + y), _mersenne(x * h7 + y))
        minima[p] = min(minima[p], np.uint32(min(min(m, n), min(o, q))))


@kernel
def legacy(hashes: U32, segments_S3: I64, a: U64, b: U64, signatures_NP: U32) -> None:
    """Permutation: (a * h + b modulo 2^64) modulo 2^61 - 1, lower 32 bits, as in datasketch 1."""
    group = np.empty(GROUP, np.uint64)
    minima = np.empty(len(a), np.uint32)
    for s in range(len(segments_S3)):
        row, start, end = segments_S3[s, 0], segments_S3[s, 1], segments_S3[s, 2]
        minima[:] = _ALL32
        for i in range(start, end, GROUP):
            for k in range(GROUP):
                group[k] = np.uint64(hashes[min(i + k, end - 1)])
            _legacy_group(group, a, b, minima)
        for p in range(signatures_NP.shape[1]):
            signatures_NP[row, p] = min(signatures_NP[row, p], minima[p])


ROUNDS = 15
BLOCK = 1024
"""Shingles hashed at once: the first loop vectorises, the second one stays in the first cache."""

EMPTY = np.uint32(0xFFFFFFFF)
_LAST = np.uint32(0xFFFFFFFE)
_CLOSING = np.uint32(0xF0000000)
_ROUND_BITS = np.uint32(28)
_VALUE = np.uint32(4)
_HALF = np.uint64(32)
_GOLDEN = np.uint64(BASE)


@kernel
def _key(seed: int, number: int) -> np.uint64:
    """A key for each seed and round, or seed and closing cell."""
    return fmix64(fmix64(np.uint64(seed) + _GOLDEN) + np.uint64(number + 1) * _GOLDEN)


@kernel
def _throw(
    hashes: U64, start: int, stop: int, key: np.uint64, top: np.uint32, mixed: U64, cells: U32
) -> None:
    """One round of hashes[start:stop]; `top` is the round in the upper 4 bits; mixed (BLOCK,)."""
    mask = np.uint64(len(cells) - 1)
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        block = hashes[first : first + count]
        for i in range(count):
            mixed[i] = fmix64(block[i] ^ key)
        for i in range(count):
            cell = (mixed[i] >> _HALF) & mask
            value = top | (np.uint32(mixed[i]) >> _VALUE)
            cells[cell] = min(cells[cell], value)


@kernel
def _close(hashes: U64, start: int, stop: int, seed: int, cells: U32) -> None:
    """Fill each cell that is still empty with the smallest value under its own key."""
    for cell in range(len(cells)):
        if cells[cell] != EMPTY:
            continue
        key = _key(seed, ROUNDS + cell)
        least = _LAST
        for i in range(start, stop):
            least = min(least, _CLOSING | (np.uint32(fmix64(hashes[i] ^ key)) >> _VALUE))
        cells[cell] = least


@kernel
def _count_empty(cells: U32) -> int:
    empty = 0
    for cell in range(len(cells)):
        empty += 1 if cells[cell] == EMPTY else 0
    return empty


@kernel
def fast_sketch(
    hashes: U64, windows_S3: I64, continues: bool, is_open: bool, seed: int, signatures_NP: U32
) -> None:
    """Sketch each document of a batch into its row, which begins as all EMPTY.

    windows_S3: row, first hash, end; hashes: polynomials, not mixed. Of a document that began
    earlier (`continues`, the first) or goes on (`is_open`, the last) only the first round is run:
    enough unless cells stay empty, as in a long text that repeats
    itself; then the caller sketches the distinct shingles together.
    """
    mixed = np.empty(BLOCK, np.uint64)
    last = len(windows_S3) - 1
    for s in range(last + 1):
        start, stop = windows_S3[s, 1], windows_S3[s, 2]
        if start == stop:
            continue
        cells = signatures_NP[windows_S3[s, 0]]
        _throw(hashes, start, stop, _key(seed, 0), np.uint32(0), mixed, cells)
        if (s == 0 and continues) or (s == last and is_open):
            continue
        for number in range(1, ROUNDS):
            if _count_empty(cells) == 0:
                break
            top = np.uint32(number) << _ROUND_BITS
            _throw(hashes, start, stop, _key(seed, number), top, mixed, cells)
        _close(hashes, start, stop, seed, cells)
