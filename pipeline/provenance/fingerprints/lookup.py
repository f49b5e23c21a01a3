"""Looking up hashes: a filter that turns most of them away, and search in ascending ones."""

import numpy as np

from dedup.arrays import U64
from dedup.compiled import kernel


@kernel
def find_first(hashes: U64, key: np.uint64) -> int:
    """The first place in ascending hashes that is not below the key."""
    low, high = 0, len(hashes)
    while low < high:
        middle = (low + high) // 2
        if hashes[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def filter_bits(key: np.uint64) -> np.uint64:
    """Three bits of a word of the filter; the word is chosen by bits above 20."""
    one, low = np.uint64(1), np.uint64(63)
    bits = (one << (key & low)) | (one << ((key >> np.uint64(6)) & low))
    return bits | (one << ((key >> np.uint64(12)) & low))


@kernel
def filter_of(hashes: U64, size: int) -> U64:
    """A blocked Bloom filter over the hashes, (size,) uint64; size is a power of two."""
    filled = np.zeros(size, np.uint64)
    room = np.uint64(size - 1)
    for key in hashes:
        filled[(key >> np.uint64(20)) & room] |= filter_bits(key)
    return filled
