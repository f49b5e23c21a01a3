"""The first place of each literal in each text, without case, in one pass over the bytes.

A table over pairs of bytes says where a literal may begin; only there are its bytes compared.
Literals are ASCII, so the places are the same in UTF-8 bytes as in characters that are ASCII.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dedup.compiled import kernels_of
from dedup.text import I64, U8, TextArray, texts_of

_NONE = -1
_CASE = np.uint8(0x20)
_A, _Z = (np.uint8(ord(letter)) for letter in "AZ")

I32 = npt.NDArray[np.int32]

kernel = kernels_of(Path(__file__).parent)


@dataclass(frozen=True)
class Found:
    """N literals found: text (N,), literal (N,) and offset (N,) int64; in order of text and
    literal. The offset is in bytes, from the beginning of the text.
    """

    text: I64
    literal: I64
    offset: I64


def first_places(texts: TextArray, literals: Sequence[str]) -> Found:
    """Where each of the ASCII `literals`, of two characters and more, first occurs in each text.

    >>> found = first_places(["a The-Eye b THE-EYE", "", "libgen the-eye"], ["the-eye", "libgen"])
    >>> found.text.tolist(), found.literal.tolist(), found.offset.tolist()
    ([0, 2, 2], [0, 0, 1], [2, 7, 0])
    """
    tables = _tables([literal.lower().encode("ascii") for literal in literals])
    parts, before = [], 0
    for chunk in texts_of(texts):
        places = np.full((len(chunk), len(literals)), _NONE, np.int64)
        _search(chunk.data, chunk.offsets, *tables, places)
        text, literal = np.nonzero(places != _NONE)
        parts.append((text + before, literal, places[text, literal]))
        before += len(chunk)
    if not parts:
        parts = [(np.zeros(0, np.int64),) * 3]
    return Found(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _tables(literals: Sequence[bytes]) -> tuple[I32, I32, U8, I64]:
    """Per pair of lower-case bytes the first literal that begins so; per literal the next one of
    the same pair; all literals end to end, and their ends."""
    first = np.full(1 << 16, _NONE, np.int32)
    following = np.full(len(literals), _NONE, np.int32)
    for number, literal in enumerate(literals):
        pair = literal[0] << 8 | literal[1]
        following[number] = first[pair]
        first[pair] = number
    ends = np.cumsum([0, *map(len, literals)], dtype=np.int64)
    return first, following, np.frombuffer(b"".join(literals), np.uint8), ends


@kernel
def _search(
    data: U8, offsets: I64, first: I32, following: I32, literals: U8, ends: I64, places: I64
) -> None:
    """places (texts, literals) int64, filled with -1: the first place of each literal is set."""
    for text in range(len(offsets) - 1):
        start, end = offsets[text], offsets[text + 1]
        byte = _lower(data[start]) if start < end else np.uint8(0)
        for i in range(start, end):
            after = _lower(data[i + 1]) if i + 1 < end else np.uint8(0)
            number = first[np.int64(byte) << 8 | np.int64(after)]
            byte = after
            while number >= 0:
                if places[text, number] < 0:
                    begin, stop = ends[number], ends[number + 1]
                    if i + stop - begin <= end:
                        k = begin
                        while k < stop and _lower(data[i + k - begin]) == literals[k]:
                            k += 1
                        if k == stop:
                            places[text, number] = i - start
                number = following[number]


@kernel
def _lower(byte: np.uint8) -> np.uint8:
    return byte | _CASE if _A <= byte <= _Z else byte
