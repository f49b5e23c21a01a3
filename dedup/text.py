"""Texts as flat buffers, the UTF-8 decoder of all compiled code, and normalisation as a kernel.

The normalisation is that of `dedup.presets.normalize`, lower-cased code point by code point. For
one capital that is not enough: the lower case of U+03A3, the Greek sigma, depends on the letters
around it. Python lower-cases a text that holds one, as a whole, before the kernel sees it
(`to_lower_case`). Arrow's strings are valid UTF-8, so the decoder checks nothing.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel

Index = TypeVar("Index", int, np.int64, np.uint64)

_STEP_1, _STEP_2, _STEP_3, _STEP_4 = (np.uint8(n) for n in (1, 2, 3, 4))
_TAIL, _6, _12, _18 = (np.uint32(n) for n in (0x3F, 6, 12, 18))


@kernel
def code_point(data: U8, at: Index) -> tuple[np.uint32, Index]:
    """The code point that begins at byte `at`, and where the next one does."""
    first = np.uint32(data[at])
    if first < 0x80:
        return first, at + _STEP_1  # type: ignore[return-value]
    return after_ascii(data, at)


@kernel
def after_ascii(data: U8, at: Index) -> tuple[np.uint32, Index]:
    """The same for a code point that is known not to be ASCII."""
    first, second = np.uint32(data[at]), np.uint32(data[at + _STEP_1]) & _TAIL
    if first < 0xE0:
        return ((first & np.uint32(0x1F)) << _6) | second, at + _STEP_2  # type: ignore[return-value]
    third = np.uint32(data[at + _STEP_2]) & _TAIL
    if first < 0xF0:
        point = ((first & np.uint32(0x0F)) << _12) | (second << _6) | third
        return point, at + _STEP_3  # type: ignore[return-value]
    fourth = np.uint32(data[at + _STEP_3]) & _TAIL
    point = ((first & np.uint32(7)) << _18) | (second << _12) | (third << _6) | fourth
    return point, at + _STEP_4  # type: ignore[return-value]


Number = TypeVar("Number", np.uint8, np.int64)

CASED = 0x20000
"""Code points from here on have no case and are no white space."""
BLANK = np.uint32(0x20)
DROPPED = np.uint32(0xFFFFFFFF)
SPECIAL = np.uint32(0xFFFFFFFE)
_DOTTED, _SIGMA = "\u0130", "\u03a3"
_SPECIALS = [ord(_DOTTED), ord(_SIGMA)]
_SIGMA_BYTE = np.uint8(_SIGMA.encode()[0])
_I, _DOT = (np.uint32(ord(c)) for c in _DOTTED.lower())
_1, _8, _61, _63 = (np.uint64(n) for n in (1, 8, 61, 63))


@dataclass(frozen=True)
class Texts:
    """UTF-8 of N texts end to end: text i is data[offsets[i]:offsets[i + 1]].

    data (bytes,) uint8, read-only; offsets (N + 1,) int64, not necessarily from 0.
    """

    data: U8
    offsets: I64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def one(cls, data: U8, start: int, end: int) -> "Texts":
        """The single text data[start:end]."""
        return cls(_read_only(data[:]), _read_only(np.array([start, end], np.int64)))

    def text(self, index: int) -> str:
        """One text as a str."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()


Whole: TypeAlias = int | np.int64
TextArray: TypeAlias = Sequence[str] | pa.Array | pa.ChunkedArray | Texts


def view_texts(texts: TextArray) -> list[Texts]:
    """The buffers of a list of str, or of a pyarrow array of strings: one Texts per chunk.

    large_string arrays, memory-mapped ones too, are not copied. ValueError for a null and for
    invalid UTF-8; TypeError for anything but strings.
    """
    if isinstance(texts, Texts):
        return [texts]
    if not isinstance(texts, pa.Array | pa.ChunkedArray):
        return [_of_list(texts)]
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    return [_of_array(chunk) for chunk in chunks]


def join_texts(texts: TextArray) -> Texts:
    """All texts as one Texts; chunks are copied together if there are several."""
    parts = view_texts(texts)
    if len(parts) == 1:
        return parts[0]
    lengths = [np.diff(part.offsets) for part in parts]
    content = [part.data[part.offsets[0] : part.offsets[-1]] for part in parts]
    return _end_to_end(content, lengths)


def to_lower_case(text: str) -> Texts:
    """The one text in lower case, which normalises to the same and holds no capital sigma."""
    return _of_list([text.lower()])


def without_sigma(text: Texts) -> Texts:
    """A single text that kernels can read from end to end: `to_lower_case` if it holds U+03A3."""
    content = text.data[text.offsets[0] : text.offsets[1]].tobytes()
    return to_lower_case(content.decode()) if _SIGMA.encode() in content else text


def _read_only(array: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """As most of Arrow's buffers are: kernels are compiled for each kind of array."""
    array.flags.writeable = False
    return array


def _end_to_end(content: list[U8], lengths: list[I64]) -> Texts:
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))
    data = np.concatenate([np.empty(0, np.uint8), *content])
    return Texts(_read_only(data), _read_only(ends))


def _of_list(texts: Sequence[str]) -> Texts:
    if isinstance(texts, str):
        raise TypeError("texts are one str; give a list of them")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {row} is a {type(text).__name__}; give strings")
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(one) for one in encoded], np.int64)
    return _end_to_end([np.frombuffer(b"".join(encoded), np.uint8)], [lengths])


def _of_array(array: pa.Array) -> Texts:
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(is_kind(kind) for is_kind in kinds):
        raise TypeError(f"texts are an array of {array.type}; give strings")
    if not pa.types.is_large_string(array.type):
        array = array.cast(pa.large_string())
    if array.null_count:
        raise ValueError(f"{array.null_count} texts are null; fill or drop them first")
    array.validate(full=True)
    if not len(array):
        return _of_list([])
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data if data is not None else b"", np.uint8)
    return Texts(_read_only(content), _read_only(bounds))


@cache
def case_table() -> U32:
    """(CASED,) uint32: what a code point becomes.

    Its lower case; BLANK for white space; DROPPED for ASCII punctuation; SPECIAL for the capitals
    U+0130, which becomes two code points, and U+03A3.
    """
    points = np.arange(CASED, dtype="<u4")
    points[_SPECIALS] = 0
    every = points.tobytes().decode("utf-32-le", "surrogatepass")
    lower = every.lower().encode("utf-32-le", "surrogatepass")
    table = np.frombuffer(lower, "<u4").astype(np.uint32)
    table[[match.start() for match in re.finditer(r"\s", every)]] = BLANK
    table[[ord(mark) for mark in string.punctuation]] = DROPPED
    table[_SPECIALS] = SPECIAL
    return table


@kernel
def _decode(data: U8, i: np.uint64, table: U32) -> tuple[np.uint32, np.uint64]:
    """What the code point at byte i becomes, and where the next one begins."""
    if data[i] < 0x80:
        return table[data[i]], i + _1
    point, after = after_ascii(data, i)
    return table[point] if point < CASED else point, after


@cache
def ascii_steps() -> U64:
    """(128,) uint64: the code point that each ASCII byte becomes, and what it does.

    From the top: is a blank the last point that stayed, if it was not and if it was one before;
    does the byte stay, in the same two cases. So a shift by the state brings the right bits up.
    """
    points = case_table()[:128].astype(np.uint64)
    blank, dropped = points == BLANK, points == DROPPED
    flags = (blank, blank | dropped, ~dropped, ~dropped & ~blank)
    for bit, flag in zip((63, 62, 61, 60), flags, strict=True):
        points |= flag.astype(np.uint64) << np.uint64(bit)
    return points


@kernel
def normalize_part(
    data: U8,
    start: int,
    end: int,
    table: U32,
    steps: U64,
    out: U32,
    filled: int,
    capacity: int,
    blank: bool,
) -> tuple[Whole, Whole, Any]:
    """Normalise code points from data[start:end] into out[filled:] until `capacity` is reached.

    table, steps: `case_table` and `ascii_steps`. `blank`: whether white space is to be dropped,
    because the text begins or a blank came last. out must hold capacity + 2. Returns (where to go
    on, or -1 at a capital sigma; the new `filled`; `blank`). A blank at the very end of the text is
    left for the caller to drop.

    There is no branch on what stays: a code point that does not is overwritten by the next one.
    Indices are unsigned, because numba checks signed ones for being negative.
    """
    i, j = np.uint64(start), np.uint64(filled)
    last, room = np.uint64(end), np.uint64(capacity)
    after_blank = np.uint64(blank)
    while i < last and j < room:
        stop = min(last, i + (room - j))
        while i < stop:
            bits = data[i]
            if bits < 0x80 and i + _8 <= stop:
                for k in range(_8):
                    bits |= data[i + k]
                if bits < 0x80:
                    for k in range(_8):
                        step = steps[data[i + k]]
                        out[j] = np.uint32(step)
                        step <<= after_blank
                        after_blank = step >> _63
                        j += (step >> _61) & _1
                    i += _8
                    continue
            c, after = _decode(data, i, table)
            if c == SPECIAL:
                if data[i] == _SIGMA_BYTE:
                    return np.int64(-1), np.int64(j), after_blank != 0
                out[j] = _I
                j += _1
                c = _DOT
            out[j] = c
            is_blank, is_dropped = np.uint64(c == BLANK), np.uint64(c == DROPPED)
            j += (_1 - is_dropped) - (is_blank & after_blank)
            after_blank = is_blank | (after_blank & is_dropped)
            i = after
    return np.int64(i), np.int64(j), after_blank != 0
