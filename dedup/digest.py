"""A strong 64-bit hash of a whole normalised text, for exact duplicates.

Within a block of BLOCK code points: the sum of key[i] * (point[i] + 1) modulo 2^64, a multilinear
hash (Lemire and Kaser, "Strongly universal string hashing is fast", The Computer Journal 2014),
which vectorises. From block to block, and with the length at the end, the sums are mixed in a
chain. Two different texts agree with probability 2^-64, or 2^(t - 64) if wherever they differ, code
points differ by multiples of 2^t. The keys are public: somebody who wants to can make texts agree.
"""

from functools import cache

import numpy as np

from dedup.arrays import I64, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.shingle import BASE
from dedup.shingle import fmix64 as plain_fmix64
from dedup.stream import ENDS, ROW, START, STOP
from dedup.text import Whole

BLOCK = 1024

_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_ONE = np.uint64(1)
_CHAIN, _SUM, _COUNT = range(3)


@cache
def keys() -> U64:
    """(BLOCK,) uint64: a fixed random number for each place in a block."""
    values = [plain_fmix64((i + 1) * BASE % (1 << 64)) for i in range(BLOCK)]
    return np.array(values, np.uint64)


def new_state() -> U64:
    """For `digest_segments`: chain, sum of the block, code points so far of an open document."""
    return np.zeros(3, np.uint64)


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
    points: U32, segments_S4: I64, continues: bool, fresh: int, key_B: U64, state: U64,
    digests_N: U64,
) -> None:  # fmt: skip
    """Digest the documents of a batch; digests_N[row] is set where a document ends."""
    for s in range(len(segments_S4)):
        start, stop = segments_S4[s, START], segments_S4[s, STOP]
        if s == 0 and continues:
            start = fresh
        else:
            state[:] = np.uint64(0)
        while start < stop:
            place = np.int64(state[_COUNT]) % BLOCK
            taken = min(stop - start, BLOCK - place)
            state[_SUM] += _sum(points, start, start + taken, key_B, place)
            state[_COUNT] += np.uint64(taken)
            start += taken
            if place + taken == BLOCK:
                state[_CHAIN] = _chain(state[_CHAIN], state[_SUM])
                state[_SUM] = np.uint64(0)
        if segments_S4[s, ENDS]:
            last = _chain(state[_CHAIN], state[_SUM])
            digests_N[segments_S4[s, ROW]] = _chain(last, state[_COUNT])
