"""SlimPajama's low-length rule for whole arrays: `dedup.presets.is_short`, stopped early.

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
from dedup.compiled import kernel
from dedup.text import TextArray, code_point
from pipeline.cleaning.characters import every_character
from pipeline.cleaning.encoded import encode_texts

CASED = 0x20000
"""Code points from here on have no case and are no white space."""
_DROPPED, _ONE, _TWO, _BLANK = range(4)


def short_mask(texts: TextArray, min_length: int) -> npt.NDArray[np.bool_]:
    """Which texts have fewer than `min_length` characters after `dedup.presets.normalize`.

    texts: as for `clean_texts`. Returns (documents,) bool.

    >>> short_mask(["a" * 199 + ".", "a" * 200, "İ" * 100], 200).tolist()
    [True, False, False]
    """
    masks = [np.zeros(0, np.bool_)]
    for chunk in encode_texts(texts):
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
            point, i = code_point(data, i)
            count = counts[point] if point < CASED else np.uint8(_ONE)
            if count == _BLANK:
                blank = np.int64(held > 0)
            elif count != _DROPPED:
                held += blank + count
                blank = np.int64(0)
        short[index] = held < min_length
