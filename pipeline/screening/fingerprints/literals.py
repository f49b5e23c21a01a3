"""Where texts hold short texts: many literals without ASCII case, or one text with few edits.

Of every literal the three bytes that are rarest in English are its anchor. A byte's class is its
last five bits; a table says for each three classes whether an anchor ends there, and only there
literals are compared. A literal has two bytes or more.

With up to E edits (a word replaced, added or left out), one of E + 1 pieces of the words is intact,
so pieces are looked for, and around each the fewest edits are found (Sellers 1980). Shapes: W words
of the query, D of a document, M matches, B = 2 E + 1 diagonals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dedup.arrays import I32, I64, U8, U64, Mask
from dedup.compiled import kernel
from dedup.text import TextArray, Texts, Whole, view_texts
from pipeline.screening.fingerprints.alphabet import Alphabet, make_alphabet
from pipeline.screening.fingerprints.words import find_words_between, make_rows

PLACES = 64
"""How many places of one literal in one text are reported by default: enough for
evidence, and a bound on what a hostile text can cost."""

_RARITY = {byte: place for place, byte in enumerate(b" etaoinshrdlcumwfgypbvkjxqz")}
_CLASSES = 32
_KEYS = _CLASSES**3
_LEAST_ROOM = 1 << 12
_5, _CLASS, _KEY = np.uint64(5), np.uint64(_CLASSES - 1), np.uint64(_KEYS - 1)


@dataclass(frozen=True)
class LiteralHits:
    """N places: text (N,), needle (N,) and offset (N,) int64, in order of text, offset and needle.
    The offset is in bytes, from the beginning of the text.
    """

    text: I64
    needle: I64
    offset: I64

    def __len__(self) -> int:
        return len(self.text)


def find_literals(texts: TextArray, needles: Sequence[str], places: int = PLACES) -> LiteralHits:
    """The first `places` places of each of the M `needles` in each text; they may overlap.

    Raises ValueError for a needle of less than two bytes.

    >>> found = find_literals(["© THE Eye, the eye", "", "isbn"], ["the eye", "©", "ISBN"])
    >>> found.text.tolist(), found.needle.tolist(), found.offset.tolist()
    ([0, 0, 0, 2], [1, 0, 0, 2], [0, 3, 12, 0])
    """
    index = _make_index(tuple(needles))
    parts, before = [], 0
    for chunk in view_texts(texts):
        text, needle, offset = _sweep_chunk(chunk, index, places)
        order = np.lexsort((needle, offset, text))
        parts.append((text[order] + before, needle[order], offset[order]))
        before += len(chunk)
    if not parts:
        parts = [(np.zeros(0, np.int64),) * 3]
    return LiteralHits(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def warm_up_literals() -> None:
    """Compile the kernel, so that workers find it cached."""
    find_literals(["warm"], ["up"])


class _Index(NamedTuple):
    """gate (32768,) uint8: does an anchor end with this key; entries of key k are members and tails
    (E,) int32 [starts[k]:starts[k + 1]]: the needle, and the place of the anchor's last byte in it;
    needles (bytes,) uint8 in lower case end to end, and their ends (M + 1,) int64."""

    gate: U8
    starts: I32
    members: I32
    tails: I32
    needles: U8
    ends: I64


@lru_cache(maxsize=4)
def _make_index(needles: tuple[str, ...]) -> _Index:
    lower = [needle.encode().lower() for needle in needles]
    short = next((needle for needle in lower if len(needle) < 2), None)
    if short is not None:
        raise ValueError(f"the needle {short.decode()!r} is too short; give two bytes or more")
    entries = sorted(
        (key, number, tail)
        for number, needle in enumerate(lower)
        for key, tail in _find_anchor(needle)
    )
    keys, members, tails = np.array(entries, np.int32).reshape(-1, 3).T.copy()
    gate = np.zeros(_KEYS, np.uint8)
    gate[keys] = 1
    starts = np.searchsorted(keys, np.arange(_KEYS + 1)).astype(np.int32)
    ends = np.cumsum([0, *map(len, lower)], dtype=np.int64)
    return _Index(gate, starts, members, tails, np.frombuffer(b"".join(lower), np.uint8), ends)


def _find_anchor(needle: bytes) -> list[tuple[int, int]]:
    """The keys of its rarest three bytes, and where these end; of two bytes, one key for every
    class of byte before them."""
    if len(needle) == 2:
        return [(_pack_key(bytes([before, *needle])), 1) for before in range(_CLASSES)]
    rarity = [_RARITY.get(byte, len(_RARITY)) for byte in needle]
    tail = max(range(2, len(needle)), key=lambda end: sum(rarity[end - 2 : end + 1]))
    return [(_pack_key(needle[tail - 2 : tail + 1]), tail)]


def _pack_key(three: bytes) -> int:
    first, second, third = (byte % _CLASSES for byte in three)
    return (first * _CLASSES + second) * _CLASSES + third


def _sweep_chunk(chunk: Texts, index: _Index, places: int) -> tuple[I64, I64, I64]:
    """text, needle, offset (N,) int64 each, in order of the places where anchors end."""
    needles = len(index.ends) - 1
    last, count = np.full(needles, -1, np.int64), np.zeros(needles, np.int64)
    room = max(_LEAST_ROOM, len(index.members))
    parts, at, end = [], int(chunk.offsets[0]), int(chunk.offsets[-1])
    while at < end:
        out = np.empty((3, room), np.int64)
        stopped, filled = _find_places(
            chunk.data, chunk.offsets, at, index, places, last, count, out
        )
        at = int(stopped)
        parts.append(out[:, :filled])
        room *= 2
    text, needle, offset = np.concatenate([np.empty((3, 0), np.int64), *parts], axis=1)
    return text, needle, offset


@kernel
def _find_places(
    data: U8,
    offsets: I64,
    at: int,
    index: _Index,
    places: int,
    last: I64,
    count: I64,
    out: I64,
) -> tuple[Whole, int]:
    """Fill out (3, R) with text, needle and offset; returns (where to go on, how many were filled).

    It stops at the end of the texts, or where the needles of one key might not find room in `out`:
    R is at least the number of entries. last (M,) and count (M,) int64 go from call to call: the
    text in which a needle was last found, and how often it was found there.
    """
    first, end = offsets[0], offsets[-1]
    key = np.uint64(0)
    for i in range(max(first, at - 2), at):
        key = (key << _5) | (np.uint64(data[i]) & _CLASS)
    text = np.searchsorted(offsets, at, side="right") - 1
    filled = 0
    for i in range(np.uint64(at), np.uint64(end)):
        key = ((key << _5) | (np.uint64(data[i]) & _CLASS)) & _KEY
        if index.gate[key] == 0:
            continue
        entries, after = index.starts[key], index.starts[key + np.uint64(1)]
        if filled + after - entries > out.shape[1]:
            return np.int64(i), filled
        while offsets[text + 1] <= np.int64(i):
            text += 1
        for entry in range(entries, after):
            needle = index.members[entry]
            start = np.int64(i) - index.tails[entry]
            size = index.ends[needle + 1] - index.ends[needle]
            if start < offsets[text] or start + size > offsets[text + 1]:
                continue
            if not _is_at(data, start, index.needles, index.ends[needle], size):
                continue
            if last[needle] != text:
                last[needle], count[needle] = text, 0
            if count[needle] < places:
                count[needle] += 1
                out[0, filled], out[1, filled] = text, needle
                out[2, filled] = start - offsets[text]
                filled += 1
    return end, filled


@kernel
def _is_at(data: U8, start: int, needles: U8, begin: int, size: int) -> bool:
    for k in range(size):
        byte = data[start + k]
        if 65 <= byte <= 90:
            byte |= np.uint8(0x20)
        if byte != needles[begin + k]:
            return False
    return True


_GATE = 1 << 12
_LOW = np.uint64(_GATE - 1)


class NearMatches(NamedTuple):
    """By row and place, int64 (M,): row of the texts; start, stop: bytes, half-open in its UTF-8;
    edits. Matches of one row do not overlap."""

    row: I64
    start: I64
    stop: I64
    edits: I64


def find_near(chunk: Texts, rows: I64, query_W: U64, edits: int) -> NearMatches:
    """Where these rows hold the words of `query_W`, with so many edits at most, fewer than W."""
    gate = np.zeros(_GATE, np.bool_)
    pieces = np.arange(edits + 1) * (len(query_W) // (edits + 1))
    gate[(query_W[pieces] >> np.uint64(1)) & _LOW] = True
    matches = _find_matches(chunk.data, chunk.offsets, rows, make_alphabet(), query_W, edits, gate)
    return NearMatches(*np.ascontiguousarray(matches.T))


@kernel
def _find_matches(
    data: U8, offsets_N1: I64, rows: I64, tables: Alphabet, query_W: U64, edits: int, gate: Mask
) -> I64:
    """Row, first byte, byte after the last, and edits of every match, (M, 4)."""
    size = len(query_W) // (edits + 1)
    matches, used = np.empty((64, 4), np.int64), 0
    for row in rows:
        begin = offsets_N1[row]
        words = find_words_between(data, begin, offsets_N1[row + 1], tables)
        at, free = 0, np.int64(0)
        while at + size <= len(words.hashes):
            piece, after = 0, at + 1
            is_first = gate[(words.hashes[at] >> np.uint64(1)) & _LOW]
            while is_first and piece <= edits:
                if _is_nearly_at(words.hashes, at, query_W, piece * size, size):
                    first, stop, count = _find_best(words.hashes, at - piece * size, query_W, edits)
                    if count <= edits and first >= free:
                        matches = make_rows(matches, used, 1)
                        matches[used, 0], matches[used, 3] = row, count
                        matches[used, 1] = words.starts[first] - begin
                        matches[used, 2] = words.ends[stop - 1] - begin
                        used += 1
                        free, after = np.int64(stop), max(after, int(stop))
                        break
                piece += 1
            at = after
    return matches[:used]


@kernel
def _is_nearly_at(words_D: U64, at: int, query_W: U64, first: int, size: int) -> bool:
    i = 0
    while i < size and words_D[at + i] == query_W[first + i]:
        i += 1
    return i == size


@kernel
def _find_best(words_D: U64, at: int, query_W: U64, edits: int) -> tuple[Whole, Whole, Whole]:
    """(first word, word after the last, edits) of the best match on the `edits` diagonals to both
    sides of the one on which the query begins at word `at`; more than `edits` when there is none.
    """
    if (
        at >= 0
        and at + len(query_W) <= len(words_D)
        and _is_nearly_at(words_D, at, query_W, 0, len(query_W))
    ):
        return at, at + len(query_W), 0
    width, never = 2 * edits + 1, edits + 1
    cost_B, first_B = np.full(width, never, np.int64), np.zeros(width, np.int64)
    for band in range(width):
        first_B[band] = at + band - edits
        if 0 <= first_B[band] <= len(words_D):
            cost_B[band] = 0
    for i in range(len(query_W)):
        best = never
        for band in range(width):
            place = at + i + band - edits
            is_word = 0 <= place < len(words_D)
            cost, first = never, first_B[band]
            if is_word:
                cost = cost_B[band] + (words_D[place] != query_W[i])
            if band + 1 < width and cost_B[band + 1] + 1 < cost:
                cost, first = cost_B[band + 1] + 1, first_B[band + 1]
            if band > 0 and is_word and cost_B[band - 1] + 1 < cost:
                cost, first = cost_B[band - 1] + 1, first_B[band - 1]
            cost_B[band], first_B[band] = cost, first
            best = min(best, cost)
        if best > edits:
            break
    closest = np.argmin(cost_B)
    stop = at + len(query_W) + closest - edits
    return first_B[closest], stop, cost_B[closest]
