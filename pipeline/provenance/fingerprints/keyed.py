"""SipHash-2-4 of gram hashes: what a salted sketch publishes in their place.

Source: Aumasson, Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012. Without the key the
values tell nothing about the grams, nor about the key when some grams are known.
"""

import hashlib

import numpy as np

from dedup.arrays import U64
from dedup.compiled import kernel

_0, _1, _2, _3 = (
    np.uint64(n)
    for n in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
)
_LENGTH = np.uint64(8 << 56)
_LAST = np.uint64(0xFF)
_64 = np.uint64(64)
_13, _16, _17, _21, _32 = (np.uint64(n) for n in (13, 16, 17, 21, 32))


def key_of(salt: bytes) -> tuple[int, int]:
    """The key that a salt stands for: the first 16 bytes of its sha256, two 64-bit numbers."""
    digest = hashlib.sha256(salt).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def salt_hashes(hashes: U64, salt: bytes) -> U64:
    """The values that a sketch with this salt publishes, in the order of the hashes."""
    low, high = key_of(salt)
    return _keyed_hashes(hashes, np.uint64(low), np.uint64(high))


@kernel
def _turn(value: np.uint64, by: np.uint64) -> np.uint64:
    return (value << by) | (value >> (_64 - by))


@kernel
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0, v2 = v0 + v1, v2 + v3
    v1, v3 = _turn(v1, _13) ^ v0, _turn(v3, _16) ^ v2
    v0 = _turn(v0, _32)
    v2, v0 = v2 + v1, v0 + v3
    v1, v3 = _turn(v1, _17) ^ v2, _turn(v3, _21) ^ v0
    return v0, v1, _turn(v2, _32), v3


@kernel
def hash_with_key(value: np.uint64, low: np.uint64, high: np.uint64) -> np.uint64:
    """SipHash-2-4 of the 8 bytes of `value` (little end first) under the key (low, high)."""
    v0, v1, v2, v3 = low ^ _0, high ^ _1, low ^ _2, high ^ _3
    for block in (value, _LENGTH):
        v3 ^= block
        for _ in range(2):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= block
    v2 ^= _LAST
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@kernel
def _keyed_hashes(hashes: U64, low: np.uint64, high: np.uint64) -> U64:
    values = np.empty(len(hashes), np.uint64)
    for i in range(len(hashes)):
        values[i] = hash_with_key(hashes[i], low, high)
    return values
