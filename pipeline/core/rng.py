"""Randomness as a function of identity: every choice is keyed by (seed, purpose, identity).

A keyed bijection of [0, size) in O(1) memory: a Feistel network with cycle walking.

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), the generalised-Feistel
and cycle-walking constructions. Round function: fmix64 of (half + round key). It is a shuffle, not
a cipher. Golden vectors in tests/pipeline/core pin it: training order depends on it.
"""

import numpy as np
import numpy.typing as npt
import xxhash

from dedup.arrays import U64

_MASK64 = (1 << 64) - 1


def key(seed: int, *parts: str | int | bytes) -> int:
    """A 128-bit key for (seed, parts); parts of different types or borders never collide."""
    digest = xxhash.xxh3_128()
    for part in (seed, *parts):
        kind, data = _encode(part)
        digest.update(kind + len(data).to_bytes(8, "little") + data)
    return digest.intdigest()


def _encode(part: str | int | bytes) -> tuple[bytes, bytes]:
    if isinstance(part, str):
        return b"s", part.encode()
    if isinstance(part, int):
        return b"i", part.to_bytes(32, "little", signed=True)
    return b"b", part


def generator(seed: int, *parts: str | int | bytes) -> np.random.Generator:
    """A counter-based (Philox) generator for one identity."""
    return np.random.Generator(np.random.Philox(key=key(seed, *parts)))


def mix64(x: U64) -> U64:
    """MurmurHash3's 64-bit finalizer (fmix64) on every element; wrapping arithmetic."""
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xFF51AFD7ED558CCD)
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def rank(keys_N2: U64, seed: int, purpose: str) -> U64:
    """Pseudo-random 64-bit rank of each 128-bit identity; keys_N2 is (N, 2) uint64, result (N,).

    Depends on seed, purpose and the identity alone, so adding rows never changes another row's
    rank.
    """
    k = key(seed, "rank", purpose)
    low, high = np.uint64(k & _MASK64), np.uint64(k >> 64)
    mixed = mix64(keys_N2[:, 0] ^ low)
    return mix64(mix64(mixed + keys_N2[:, 1]) ^ high)


def unit_interval(ranks: U64) -> npt.NDArray[np.float64]:
    """Map 64-bit ranks to [0, 1) with 53 bits."""
    return (ranks >> np.uint64(11)).astype(np.float64) * 2.0**-53


ROUNDS = 6


def permute(indices: npt.NDArray[np.integer], size: int, permutation_key: int) -> U64:
    """Map each index in [0, size) to its image, (N,) uint64. Raises ValueError out of range."""
    return _walk(_check_indices(indices, size), size, permutation_key, inverse=False)


def invert(images: npt.NDArray[np.integer], size: int, permutation_key: int) -> U64:
    """The inverse of `permute`: which index maps to each image, (N,) uint64."""
    return _walk(_check_indices(images, size), size, permutation_key, inverse=True)


def _check_indices(indices: npt.NDArray[np.integer], size: int) -> U64:
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= size):
        raise ValueError(f"index outside [0, {size})")
    return indices.astype(np.uint64)


def _walk(x: U64, size: int, permutation_key: int, inverse: bool) -> U64:
    if size <= 1 or x.size == 0:
        return x.copy()
    # Half of an even number of bits whose power covers `size`: at most 4 values per target.
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    secret = permutation_key.to_bytes(16, "little")
    keys = [np.uint64(key(0, "feistel", secret, r) & _MASK64) for r in range(ROUNDS)]
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
