"""datasketch's permutations, each with its running minimum, over the hashes of many shingles.

Shingles are taken eight at a time and the inner loop runs over the permutations: so it vectorises
for short documents too and needs no reduction across lanes. A minimum does not mind a shingle seen
twice, which fills up the last eight. Source of the schemes: datasketch 2.0, `minhash.py`.

Every kernel takes hashes (base hashes, mixed as the scheme wants), segments_S3 (row, first
hash, end of one stretch of a document), a and b of `dedup.permutations`,
and signatures_NP, whose rows it lowers; the padding beyond P is not stored.
"""

import numpy as np

from dedup.arrays import I64, U32, U64
from dedup.compiled import kernel

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
