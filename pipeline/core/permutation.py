"""A keyed bijection of [0, size) in O(1) memory: a Feistel network with cycle walking.

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), the generalised-Feistel
and cycle-walking constructions. Round function: fmix64 of (half + round key). It is a shuffle, not
a cipher. Golden vectors in tests/pipeline/core pin it: training order depends on it.
"""

import numpy as np
import numpy.typing as npt

from dedup.arrays import U64
from pipeline.core.rng import key, mix64

ROUNDS = 6


def permute(indices: npt.NDArray[np.integer], size: int, permutation_key: int) -> U64:
    """Map each index in [0, size) to its image, (N,) uint64. Raises ValueError out of range."""
    return _walk(_checked(indices, size), size, permutation_key, inverse=False)


def invert(images: npt.NDArray[np.integer], size: int, permutation_key: int) -> U64:
    """The inverse of `permute`: which index maps to each image, (N,) uint64."""
    return _walk(_checked(images, size), size, permutation_key, inverse=True)


def _checked(indices: npt.NDArray[np.integer], size: int) -> U64:
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= size):
        raise ValueError(f"index outside [0, {size})")
    return indices.astype(np.uint64)


def _half_bits(size: int) -> int:
    """Half of an even number of bits whose power covers `size`: at most 4 values per target."""
    return max(1, ((size - 1).bit_length() + 1) // 2)


def _walk(x: U64, size: int, permutation_key: int, inverse: bool) -> U64:
    if size <= 1 or x.size == 0:
        return x.copy()
    half = _half_bits(size)
    secret, low = permutation_key.to_bytes(16, "little"), (1 << 64) - 1
    keys = [np.uint64(key(0, "feistel", secret, r) & low) for r in range(ROUNDS)]
    out = _rounds(x, half, keys, inverse)
    outside = np.flatnonzero(out >= np.uint64(size))
    while outside.size:
        out[outside] = _rounds(out[outside], half, keys, inverse)
        outside = outside[out[outside] >= np.uint64(size)]
    return out


def _rounds(x: U64, half: int, keys: list[np.uint64], inverse: bool) -> U64:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = x >> bits, x & mask
    if inverse:
        for k in reversed(keys):
            left, right = right ^ (mix64(left + k) & mask), left
    else:
        for k in keys:
            left, right = right, left ^ (mix64(right + k) & mask)
    return (left << bits) | right
