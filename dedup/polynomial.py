"""Polynomial hashes of character and word shingles, modulo 2^64, without rolling.

The hash of a window of 2 L code points is that of its first half times BASE^L plus that of its
second half. So a few passes of multiply-add over arrays, which the compiler vectorises, hash every
window; a rolling hash would wait for each multiplication.
"""

from functools import cache

import numpy as np

from dedup.arrays import I64, U32, U64
from dedup.compiled import kernel
from dedup.presets import BASE

BLOCK = 1024
"""Windows hashed at once, so that scratch stays in the first-level cache."""
INVERSE = pow(BASE, -1, 1 << 64)
_BASE = np.uint64(BASE)
_SQUARE = np.uint64(BASE * BASE % (1 << 64))
_ONE = np.uint64(1)


@kernel
def fmix64(value: np.uint64) -> np.uint64:
    """MurmurHash3's 64-bit finaliser."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@kernel
def _single(points: U32, count: int, joined: U64) -> None:
    for i in range(count):
        joined[i] = np.uint64(points[i]) + _ONE


@kernel
def _pair(points: U32, second: U32, count: int, joined: U64) -> None:
    for i in range(count):
        first = np.uint64(points[i]) * _BASE
        joined[i] = first + np.uint64(second[i]) + (_BASE + _ONE)


@kernel
def _triple(points: U32, second: U32, third: U32, count: int, joined: U64) -> None:
    for i in range(count):
        first = np.uint64(points[i]) * _SQUARE + np.uint64(second[i]) * _BASE
        joined[i] = first + np.uint64(third[i]) + (_SQUARE + _BASE + _ONE)


@kernel
def _join(first: U64, second: U64, count: int, power: np.uint64, joined: U64) -> None:
    """Join neighbouring windows; `power` is BASE^(length of the second)."""
    for i in range(count):
        joined[i] = first[i] * power + second[i]


@kernel
def _extend(
    first: U64, second: U64, points: U32, count: int, power: np.uint64, joined: U64
) -> None:
    """Join neighbouring windows and one code point; `power` is of the second and the point."""
    for i in range(count):
        pair = first[i] * power + second[i] * _BASE
        joined[i] = pair + (np.uint64(points[i]) + _ONE)


@kernel
def _char_block(points: U32, count: int, size: int, near: U64, far: U64, hashes: U64) -> None:
    """`char_hashes` of one block; near and far hold a window each for count + size points."""
    top = 1
    while top * 2 <= size:
        top *= 2
    bit = top >> 1
    if bit == 0:
        _single(points, count, hashes)
        return
    # The upper two bits of the size come straight from the points.
    target = hashes if bit == 1 else near
    width = 3 if size & bit else 2
    power = _BASE * _SQUARE if size & bit else _SQUARE
    left = count + size - width
    if size & bit:
        _triple(points, points[1:], points[2:], left, target)
    else:
        _pair(points, points[1:], left, target)
    bit >>= 1
    while bit:
        odd = (size & bit) != 0
        target = hashes if bit == 1 else far
        left = count + size - 2 * width - (1 if odd else 0)
        if odd:
            _extend(near, near[width:], points[2 * width :], left, power * _BASE, target)
        else:
            _join(near, near[width:], left, power, target)
        near, far = far, near
        power *= power
        width *= 2
        if odd:
            power *= _BASE
            width += 1
        bit >>= 1


@kernel
def char_hashes(points: U32, count: int, size: int, scratch: U64, hashes: U64) -> None:
    """hashes[i] = polynomial of points[i:i + size] for every i below `count`.

    points must hold count + size - 1, scratch 2 * (BLOCK + size), hashes `count`.
    """
    near, far = scratch[: BLOCK + size], scratch[BLOCK + size :]
    for start in range(0, count, BLOCK):
        windows = min(BLOCK, count - start)
        _char_block(points[start:], windows, size, near, far, hashes[start:])


@kernel
def prefix_sums(points: U32, count: int, falling: U64, sums: U64) -> None:
    """sums[i] = sum of (points[k] + 1) * BASE^-k over k < i, for i up to and with `count`.

    So the polynomial of points[s:e] is BASE^(e - 1) * (sums[e] - sums[s]): the only chain from one
    code point to the next is an addition. falling: BASE^-k, (BLOCK,).
    """
    sums[0] = np.uint64(0)
    scale = _ONE
    for start in range(0, count, BLOCK):
        block = points[start : min(start + BLOCK, count)]
        after = sums[start + 1 :]
        base = sums[start]
        for i in range(len(block)):
            after[i] = (np.uint64(block[i]) + _ONE) * falling[i]
        total = np.uint64(0)
        for i in range(len(block)):
            total += after[i]
            after[i] = total
        for i in range(len(block)):
            after[i] = base + after[i] * scale
        scale *= falling[BLOCK - 1] * falling[1]


@kernel
def word_hashes(
    sums: U64, starts: I64, ends: I64, count: int, size: int, rising: U64, hashes: U64
) -> None:
    """hashes[i] = polynomial of words i to i + size - 1 joined by one blank.

    Word i is points[starts[i]:ends[i]], i below `count`; the last size - 1 words begin no shingle.
    sums: of `prefix_sums`; rising: BASE^k, (BLOCK,).
    """
    block = 0
    scale = _ONE
    for i in range(count - size + 1):
        end = ends[i + size - 1]
        while block < (end - 1) // BLOCK:
            block += 1
            scale *= rising[BLOCK - 1] * _BASE
        power = rising[(end - 1) % BLOCK] * scale
        hashes[i] = power * (sums[end] - sums[starts[i]])


@cache
def powers(base: int) -> U64:
    """base^k modulo 2^64 for k below BLOCK: (BLOCK,) uint64."""
    return np.cumprod(np.r_[1, [base] * (BLOCK - 1)].astype(np.uint64), dtype=np.uint64)
