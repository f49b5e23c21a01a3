"""SlimPajama's low-length rule for whole arrays: `dedup.normalize.is_short`, stopped early.

`normalize` lower-cases, drops ASCII punctuation, strips, and makes one blank of every run of white
space. For its length alone the letters do not matter: every character counts one, or two if its
lower case is that long (U+0130), or nothing if it is dropped, and a run of white space counts one
if something that counts is on both sides of it. How a capital sigma is lower-cased depends on its
neighbours, but either way it is one character.
"""

import re
import string
from functools import cache

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64, U8
from dedup.text import TextArray
from pipeline.cleaning.characters import every_character
from pipeline.cleaning.compiled import kernel
from pipeline.cleaning.encoded import encoded

CASED = 0x20000
"""Code points from here on have no case and are no white space."""
_DROPPED, _ONE, _TWO, _BLANK = range(4)
_0, _1, _2, _3, _4 = (np.uint64(n) for n in range(5))
_TAIL, _6, _12 = (np.uint32(n) for n in (0x3F, 6, 12))


def short_mask(texts: TextArray, min_length: int) -> npt.NDArray[np.bool_]:
    """Which texts have fewer than `min_length` characters after `dedup.normalize.normalize`.

    texts: as for `clean_texts`. Returns (documents,) bool.

    >>> short_mask(["a" * 199 + ".", "a" * 200, "İ" * 100], 200).tolist()
    [True, False, False]
    """
    masks = [np.zeros(0, np.bool_)]
    for chunk in encoded(texts):
        mask = np.zeros(len(chunk), np.bool_)
        _judge(chunk.data, chunk.offsets, min_length, _counts(), mask)
        masks.append(mask)
    return np.concatenate(masks)


@cache
def _counts() -> U8:
    """(CASED,) uint8: what a character counts."""
    every = every_character()[:CASED]
    counts = np.fromiter((len(character.lower()) for character in every), np.uint8, CASED)
    counts[[match.start() for match in re.finditer(r"\s", every)]] = _BLANK
    counts[[ord(mark) for mark in string.punctuation]] = _DROPPED
    return counts


@kernel
def _judge(
    data: U8, offsets: I64, min_length: int, counts: U8, short: npt.NDArray[np.bool_]
) -> None:
    """short: (documents,) bool; filled."""
    for index in range(len(short)):
        i, end = np.uint64(offsets[index]), np.uint64(offsets[index + 1])
        held = blank = np.int64(0)
        while i < end and held < min_length:
            first = np.uint32(data[i])
            if first < 0x80:
                count = counts[first]
                i += _1
            elif first < 0xE0:
                count = counts[(first & np.uint32(0x1F)) << _6 | np.uint32(data[i + _1]) & _TAIL]
                i += _2
            elif first < 0xF0:
                point = (first & np.uint32(0x0F)) << _12 | (np.uint32(data[i + _1]) & _TAIL) << _6
                count = counts[point | np.uint32(data[i + _2]) & _TAIL]
                i += _3
            elif first == 0xF0 and data[i + _1] < 0xA0:
                second = np.uint32(data[i + _1]) & np.uint32(0x1F)
                point = second << _12 | (np.uint32(data[i + _2]) & _TAIL) << _6
                count = counts[point | np.uint32(data[i + _3]) & _TAIL]
                i += _4
            else:
                count = np.uint8(_ONE)
                i += _4
            if count == _BLANK:
                blank = np.int64(held > 0)
            elif count != _DROPPED:
                held += blank + count
                blank = np.int64(0)
        short[index] = held < min_length
