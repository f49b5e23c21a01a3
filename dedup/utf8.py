"""The decoder of UTF-8 that all compiled code reads texts with. Arrow's strings are valid UTF-8, so
nothing is checked."""

from typing import TypeVar

import numpy as np

from dedup.arrays import U8
from dedup.compiled import kernel

Index = TypeVar("Index", int, np.int64, np.uint64)

_1, _2, _3, _4 = (np.uint8(n) for n in (1, 2, 3, 4))
_TAIL, _6, _12, _18 = (np.uint32(n) for n in (0x3F, 6, 12, 18))


@kernel
def code_point(data: U8, at: Index) -> tuple[np.uint32, Index]:
    """The code point that begins at byte `at`, and where the next one does."""
    first = np.uint32(data[at])
    if first < 0x80:
        return first, at + _1  # type: ignore[return-value]
    return after_ascii(data, at)


@kernel
def after_ascii(data: U8, at: Index) -> tuple[np.uint32, Index]:
    """The same for a code point that is known not to be ASCII."""
    first, second = np.uint32(data[at]), np.uint32(data[at + _1]) & _TAIL
    if first < 0xE0:
        return ((first & np.uint32(0x1F)) << _6) | second, at + _2  # type: ignore[return-value]
    third = np.uint32(data[at + _2]) & _TAIL
    if first < 0xF0:
        point = ((first & np.uint32(0x0F)) << _12) | (second << _6) | third
        return point, at + _3  # type: ignore[return-value]
    fourth = np.uint32(data[at + _3]) & _TAIL
    point = ((first & np.uint32(7)) << _18) | (second << _12) | (third << _6) | fourth
    return point, at + _4  # type: ignore[return-value]
