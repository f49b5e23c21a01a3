"""Which characters can make a text differ from its NFC, by Python's own Unicode data.

The quick check of UAX 15 (section 9): a text is in NFC if no character of it has NFC_Quick_Check No
or Maybe, and no combining class is greater than the next one within a run of marks. From it: if the
classes are not in order but all characters have the value Yes, ordering each run by class, stably,
gives the NFC, because the ordered text is canonically equivalent and passes the check.

Maybe can often be settled. A character that has no decomposition can compose with the last starter
before it only (section 3.11 of the standard, D117), and it cannot if that one has no decomposition
either and the two are not what a primary composite decomposes to. Then it counts as Yes. So for
Indic vowel signs and nuktas, Arabic hamzas and maddas on most letters.
"""

import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt

from pipeline.cleaning.characters import ALL, every_character

_HANGUL_SECONDS = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}


def combining_classes() -> npt.NDArray[np.uint8]:
    """(0x110000,) uint8: the canonical combining class of every code point.

    >>> combining_classes()[[0x301, 0x41]].tolist()
    [230, 0]
    """
    return np.fromiter(map(unicodedata.combining, every_character()), np.uint8, ALL)


@cache
def decompositions() -> dict[int, list[int]]:
    """Every character with a canonical decomposition, one step of it; Hangul syllables have none.

    >>> [hex(code) for code in decompositions()[0xE9]]
    ['0x65', '0x301']
    """
    mappings = enumerate(map(unicodedata.decomposition, every_character()))
    canonical = {code: mapping for code, mapping in mappings if mapping and mapping[0] != "<"}
    return {code: [int(part, 16) for part in parts.split()] for code, parts in canonical.items()}


def may_change() -> set[int]:
    """Every character whose NFC_Quick_Check is not Yes; Hangul syllables are Yes.

    No: its own NFC is something else. Maybe: its decomposition begins with the second character of
    a composite, so a character before it may take it up.

    >>> [0x301 in may_change(), 0xE9 in may_change(), 0x212B in may_change()]
    [True, False, True]
    """
    seconds = {*joining(), *_HANGUL_SECONDS}
    begin = {c for c in decompositions() if ord(_full(c)[0]) in seconds}
    return _without_itself() | seconds | begin


def joining() -> dict[int, set[int]]:
    """The second characters of primary composites, each with the first ones that it may join.

    >>> sorted(map(chr, joining()[0x30C]))[:4]
    ['A', 'C', 'D', 'E']
    """
    found: dict[int, set[int]] = {}
    for code, parts in decompositions().items():
        if len(parts) == 2 and code not in _without_itself():
            found.setdefault(parts[1], set()).add(parts[0])
    return found


@cache
def _without_itself() -> set[int]:
    """The characters whose NFC is something else."""
    return {c for c in decompositions() if unicodedata.normalize("NFC", chr(c)) != chr(c)}


def _full(code: int) -> str:
    return unicodedata.normalize("NFD", chr(code))
