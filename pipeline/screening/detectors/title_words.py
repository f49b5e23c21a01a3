"""Words of titles and names as 64-bit hashes, in one pass over UTF-8 or raw JSON; and common words.

Words are folded as `registry.names` folds them: no case, accents or apostrophes; what is neither
letter, digit nor mark ends one. Escapes of JSON count as what they mean.
"""

import unicodedata
from functools import cache
from pathlib import Path

import numpy as np

from dedup.arrays import U8, U64
from dedup.compiled import kernel, source_digest
from dedup.text import Whole
from dedup.user_cache import kept_arrays
from pipeline.screening.registry import names
from pipeline.screening.registry.names import list_words, normalise_title

COMMON_WORDS = list_words(
    "a about after again against age all am american among an ancient and animals another",
    "anthology are art as at autobiography baby back bad be beautiful beauty become before",
    "beginning being beside best better between beyond bible big biography birth black blood",
    "blue body bone book books born boy boys bride brother brothers business by call can case",
    "cat century change child children christmas church city club cold collected collection",
    "color come complete country court crime critical culture dance dark daughter day days dead",
    "dear death deep desire devil diary do dog dont door down dragon dream dreams early earth",
    "east edition education eight end england english essays ever every eyes face faith fall",
    "family father fifty fire first five flowers for forever four free friend friends from game",
    "garden ghost gift girl girls god gods going gold golden good great green guide hand happy",
    "has have he heart heaven hell her here hidden high his history home hope house how human i",
    "ii iii illustrated im in inside into introduction is island it its journey just key kids",
    "killer king kingdom kiss know lady land language last law learning leaves letters lie life",
    "light like lion little live lives living london long lord lost love lovers made magic make",
    "making man manual many master me memoir memoirs memories men mind miss modern money moon",
    "more mother mountain moving mr mrs murder music my mystery name nature never new night",
    "nine no north not notes nothing novel novels ocean of off old on once one only or other",
    "our out over own paper paradise part past path peace people perfect place play plays poems",
    "poetry politics power practice prince princess promise queen quest question race rain red",
    "report return rise river road room rose rules running sea season second secret secrets",
    "selected series seven sex shadow she short sister sisters six sky sleep small snow society",
    "some son song songs soul south space spirit star stars state still stone stories storm",
    "story strange street study summer sun survival sweet sword tale tales teaching ten than",
    "that thats the their them then there these they thing things this those thousand three",
    "through time times to today touch trail tree trouble true truth twelve two under",
    "understanding united universe unknown until up us vol volume voyage walk war was watch",
    "water way we wedding west what when where which whisper white who why wild will wind",
    "winter witch with within without wolf woman women wonder wood word words work works world",
    "worlds writing writings year years you young your",
)
"""Words of titles at large. Not stop words: they count, only for less."""

NOISE_WORDS = list_words(
    "annas annotated archive author azw3 book by djvu ebook ed edition editions epub fb2",
    "illustrated isbn lib libgen library mobi novel ocr org pdf press publisher retail scan txt",
    "unabridged vol volume z zlib",
)
"""Words that files and lists add to titles."""


_POINTS = 0x20000
_HANGUL = range(0xAC00, 0xD7A4)
_ENDS, _DROPPED = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_MOST_EXPANDED = 3
_SHIFT, _MASK = np.uint64(21), np.uint64(0x1FFFFF)
_FACTOR, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_BACKSLASH, _U = np.uint8(ord("\\")), np.uint8(ord("u"))


@cache
def fold_table() -> U64:
    """(131072,) uint64: what a code point becomes: up to three points of 21 bits, the first lowest;
    0 ends a word; all ones is dropped. Made once on a machine."""
    sources = (source_digest(Path(source).parent) for source in (__file__, names.__file__))
    name = f"{'-'.join(sources)}-{unicodedata.unidata_version}.npz"
    return kept_arrays(lambda: {"points": _make_fold_table()}, "titles", name)["points"]


def _make_fold_table() -> U64:
    table = np.zeros(_POINTS, np.uint64)
    for point in range(_POINTS):
        character = chr(point)
        if point in _HANGUL:
            table[point] = point
            continue
        if 0xD800 <= point < 0xE000:
            continue
        folded = _folded(character)
        if folded is None:
            table[point] = _DROPPED
        elif folded and len(folded) <= _MOST_EXPANDED:
            table[point] = sum(ord(c) << 21 * place for place, c in enumerate(folded))
    return table


def _folded(character: str) -> str | None:
    """What a character becomes within a word; None if it is dropped, "" if it ends the word."""
    if character.isascii() and character.isalnum():
        return character.lower()
    if character.isalnum() and unicodedata.normalize("NFKD", character.casefold()) == character:
        return character
    between = normalise_title(f"x{character}x")
    if between == "xx":
        return None
    inner = between.removeprefix("x").removesuffix("x")
    return "" if " " in inner else inner


def hash_word(word: str) -> int:
    """The hash of one word that is folded already."""
    value = 0
    for character in word:
        value = (value + ord(character) + 1) * int(_FACTOR) & int(_DROPPED)
        value ^= value >> 32
    return value


@kernel
def hash_words(
    data: U8, start: int, end: int, is_json: bool, table: U64, out: U64, filled: int
) -> int:
    """Hashes of the words of data[start:end] to out[filled:] until `out` is full; returns how much
    of `out` is filled. A word that the end cuts counts as far as it goes."""
    value = _ZERO
    i: Whole = start
    while i < end and filled < len(out):
        if is_json and data[i] == _BACKSLASH and i + 1 < end:
            point, i = _escaped(data, i, end)
        else:
            point, i = _decoded(data, i, end)
        folded = table[point] if point < _POINTS else np.uint64(point)
        if folded == _DROPPED:
            continue
        if folded == _ENDS:
            if value != _ZERO:
                out[filled] = value
                filled += 1
            value = _ZERO
            continue
        while folded != _ZERO:
            value = (value + (folded & _MASK) + _ONE) * _FACTOR
            value ^= value >> _HALF
            folded >>= _SHIFT
    if value != _ZERO and filled < len(out):
        out[filled] = value
        filled += 1
    return filled


@kernel
def _decoded(data: U8, i: Whole, end: Whole) -> tuple[Whole, Whole]:
    """The code point at byte i, and where the next one begins."""
    first = np.int64(data[i])
    if first < 0x80:
        return first, i + 1
    width = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    point = first & (0xFF >> (width + 1))
    for k in range(1, width):
        if i + k < end:
            point = (point << 6) | (np.int64(data[i + k]) & 0x3F)
    return point, i + width


@kernel
def _escaped(data: U8, i: Whole, end: Whole) -> tuple[Whole, Whole]:
    """The same for an escape of JSON. Halves of pairs of surrogates end a word."""
    if data[i + 1] != _U:
        return 0x20, i + 2
    point = np.int64(0)
    for k in range(i + 2, min(i + 6, end)):
        digit = np.int64(data[k])
        if 0x30 <= digit <= 0x39:
            point = point << 4 | (digit - 0x30)
        elif 0x41 <= (digit & 0xDF) <= 0x46:
            point = point << 4 | ((digit & 0xDF) - 0x37)
        else:
            return 0x20, i + 2
    return point, min(i + 6, end)
