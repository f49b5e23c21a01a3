"""Randomness as a function of identity: every choice is keyed by (seed, purpose, identity)."""

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
