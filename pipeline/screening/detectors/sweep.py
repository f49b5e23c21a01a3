"""One pass over the texts for the phrases of all detectors, and one over the metadata for chosen
keys.

A detector brings needles, literal strings of which one is in every place it cares for. The
stage sweeps once for all of them; `SweepHits.hits` gives the places of a group, `SweepHits.cut` the
bytes around them. `find_fields` reads raw JSON: it knows strings and keys and no depth, so a key is
found wherever it is, an array gives all its strings, and broken JSON gives what is before the
break.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, U8
from dedup.compiled import kernel
from dedup.text import TextArray, Texts, join_texts, view_texts
from pipeline.screening.fingerprints.literals import PLACES, LiteralHits, find_literals

_AT_ONCE = 1 << 16


class Hit(NamedTuple):
    """A needle at a byte offset of the text in a row."""

    row: int
    needle: str
    offset: int


@dataclass(frozen=True)
class SweepHits:
    """The texts and what a sweep found in them, by group of needles."""

    chunks: tuple[Texts, ...]
    first_rows: tuple[int, ...]
    needles: tuple[str, ...]
    literals: LiteralHits
    groups: Mapping[str, Mapping[int, str]]

    def hits(self, group: str) -> Iterator[Hit]:
        """Places of the needles of one group, in order of row and offset; needles as the group
        spells them. At one place the longest needle comes first."""
        spellings = self.groups[group]
        of_group = np.isin(self.literals.needle, list(spellings))
        columns = (self.literals.text, self.literals.needle, self.literals.offset)
        text, needle, offset = (column[of_group] for column in columns)
        length = np.array([len(n.encode()) for n in self.needles], np.int64)[needle]
        order = np.lexsort((-length, offset, text))
        for begin in range(0, len(order), _AT_ONCE):
            some = order[begin : begin + _AT_ONCE]
            lists = (text[some].tolist(), needle[some].tolist(), offset[some].tolist())
            for row, number, place in zip(*lists, strict=True):
                yield Hit(row, spellings[number], place)

    def size(self, row: int) -> int:
        """Bytes of the text in a row."""
        chunk, begin = self._place(row)
        return int(chunk.offsets[begin + 1] - chunk.offsets[begin])

    def cut(self, row: int, start: int, end: int) -> bytes:
        """text[start:end] in bytes; bounds beyond the text are moved to it."""
        chunk, begin = self._place(row)
        first, last = chunk.offsets.item(begin), chunk.offsets.item(begin + 1)
        return chunk.data[first + max(start, 0) : min(last, first + max(end, 0))].tobytes()

    def _place(self, row: int) -> tuple[Texts, int]:
        number = bisect_right(self.first_rows, row) - 1
        return self.chunks[number], row - self.first_rows[number]


def sweep_all(
    texts: TextArray, groups: Mapping[str, Sequence[str]], places: int = PLACES
) -> SweepHits:
    """One pass over the texts for the needles of all groups; a needle may be in several.

    >>> swept = sweep_all(["a © bc"], {"notice": ["©"], "other": ["BC"]})
    >>> list(swept.hits("other")), swept.cut(0, -5, 4).decode()
    ([Hit(row=0, needle='BC', offset=5)], 'a ©')
    """
    numbers: dict[str, int] = {}
    spellings = {
        group: {numbers.setdefault(_fold(needle), len(numbers)): needle for needle in needles}
        for group, needles in groups.items()
    }
    chunks = [chunk for chunk in view_texts(texts) if len(chunk)]
    first_rows = np.cumsum([0, *map(len, chunks)]).tolist()[: len(chunks)]
    literals = find_literals(texts, tuple(numbers), places)
    return SweepHits(tuple(chunks), tuple(first_rows), tuple(numbers), literals, spellings)


def _fold(needle: str) -> str:
    return needle.encode().lower().decode()


_QUOTE, _BACKSLASH, _COLON, _COMMA, _MINUS, _ZERO, _NINE = (np.uint8(ord(c)) for c in '"\\:,-09')
_OPEN, _CLOSE, _BRACE, _CLOSED = (np.uint8(ord(c)) for c in "[]{}")
_BLANK, _CASE, _A, _Z = np.uint8(0x20), np.uint8(0x20), np.uint8(ord("A")), np.uint8(ord("Z"))


@dataclass(frozen=True)
class Fields:
    """N values found in M metadata slices, in order of row and place.

    texts: the M slices; row (N,), key (N,) int64: the place of the key in the list asked for;
    start, end (N,) int64: bytes of `texts.data`, without quotation marks.
    """

    texts: Texts
    row: I64
    key: I64
    start: I64
    end: I64

    def __len__(self) -> int:
        return len(self.row)

    def select(self, numbers: I64) -> "Fields":
        """These values only, by their numbers."""
        columns = (self.row, self.key, self.start, self.end)
        return Fields(self.texts, *(column[numbers] for column in columns))

    def raw(self) -> pa.LargeStringArray:
        """(N,) large_string: the values as written, still escaped."""
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), self.end - self.start]))
        data = np.empty(ends[-1], np.uint8)
        _gather(self.texts.data, self.start, ends, data)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.LargeStringArray.from_buffers(len(self), *buffers[1:])

    def values(self) -> pa.LargeStringArray:
        """(N,) large_string: the values without escapes; a broken escape stays as it is."""
        raw = self.raw()
        escaped = np.flatnonzero(pc.match_substring(raw, "\\").to_numpy(zero_copy_only=False))
        if not len(escaped):
            return raw
        plain = [unescape(value) for value in raw.take(pa.array(escaped)).to_pylist()]
        mask = np.zeros(len(raw), bool)
        mask[escaped] = True
        return pc.replace_with_mask(raw, pa.array(mask), pa.array(plain, pa.large_string()))


def find_fields(meta: TextArray, keys: Sequence[str]) -> Fields:
    """The strings and numbers under `keys`, which are ASCII and match without case.

    >>> found = find_fields(['{"Title": "A", "by": ["B", "C"], "n": {"year": 1901}}'],
    ...                     ["title", "by", "year"])
    >>> found.key.tolist(), found.values().to_pylist()
    ([0, 1, 1, 2], ['A', 'B', 'C', '1901'])
    """
    texts = join_texts(meta)
    names = [key.lower().encode("ascii") for key in keys]
    ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
    flat = np.frombuffer(b"".join(names) or b"\0", np.uint8)
    count = _scan(texts.data, texts.offsets, flat, ends, np.empty((4, 0), np.int64))
    columns = np.empty((4, count), np.int64)
    _scan(texts.data, texts.offsets, flat, ends, columns)
    return Fields(texts, *columns)


def unescape(value: str) -> str:
    """What the inside of a JSON string means; itself where an escape is broken.

    >>> unescape("caf\\\\u00e9"), unescape("a\\\\x")
    ('café', 'a\\\\x')
    """
    if "\\" not in value:
        return value
    try:
        text = json.loads(f'"{value}"', strict=False)
    except ValueError:
        return value
    return str(text).encode("utf-8", "replace").decode()


@kernel
def _scan(data: U8, offsets: I64, keys: U8, ends: I64, out: I64) -> int:
    """out (4, N): row, key, start, end of every value; only counts where N is 0."""
    count = 0
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        key, in_list = -1, False
        while i < end:
            c = data[i]
            if c == _QUOTE:
                stop = _find_string_end(data, i + 1, end)
                if stop == end:
                    break
                after = stop + 1
                while after < end and data[after] <= _BLANK:
                    after += 1
                if after < end and data[after] == _COLON:
                    key, in_list = _find_key(data, i + 1, stop, keys, ends), False
                    i = after + 1
                    continue
                count = _note(out, count, row, key, i + 1, stop)
                if not in_list:
                    key = -1
                i = stop + 1
                continue
            if key >= 0 and (c == _MINUS or _ZERO <= c <= _NINE):
                stop = i
                while stop < end and _in_number(data[stop]):
                    stop += 1
                count = _note(out, count, row, key, i, stop)
                i = stop
                continue
            if c == _OPEN:
                in_list = key >= 0
            elif c in (_CLOSE, _BRACE, _CLOSED) or (c == _COMMA and not in_list):
                key, in_list = -1, False
            i += 1
    return count


@kernel
def _note(out: I64, count: int, row: int, key: int, start: int, end: int) -> int:
    if key < 0:
        return count
    if out.shape[1]:
        out[0, count], out[1, count], out[2, count], out[3, count] = row, key, start, end
    return count + 1


@kernel
def _find_string_end(data: U8, i: int, end: int) -> int:
    """Where the string that begins at byte i has its closing mark; `end` if it has none."""
    while i < end and data[i] != _QUOTE:
        i += 2 if data[i] == _BACKSLASH else 1
    return min(i, end)


@kernel
def _find_key(data: U8, start: int, stop: int, keys: U8, ends: I64) -> int:
    for key in range(len(ends) - 1):
        if ends[key + 1] - ends[key] == stop - start:
            k = 0
            while k < stop - start and _lower(data[start + k]) == keys[ends[key] + k]:
                k += 1
            if k == stop - start:
                return key
    return -1


@kernel
def _lower(byte: np.uint8) -> np.uint8:
    return byte | _CASE if _A <= byte <= _Z else byte


@kernel
def _in_number(byte: np.uint8) -> bool:
    return bool(byte > _BLANK) and byte not in (_COMMA, _CLOSE, _CLOSED, _QUOTE)


@kernel
def _gather(data: U8, start: I64, ends: I64, out: U8) -> None:
    for i in range(len(start)):
        for k in range(ends[i + 1] - ends[i]):
            out[ends[i] + k] = data[start[i] + k]
