"""What every code point is to the fingerprints: letters, a break, nothing, or a hyphen.

A code point becomes the letters of its NFKD form, case folded, without combining marks: texts with
the same NFKC have the same words. Apostrophes, underscores and format characters are dropped; æ and
œ are two letters; Greek and Cyrillic letters that look like a Latin one become it; everything else
breaks words. A letter of a script without spaces is a word. Classes follow the interpreter's
Unicode version.
"""

import unicodedata
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dedup.arrays import U32
from dedup.compiled import source_digest
from dedup.user_cache import kept_arrays

LIMIT = 0x30000
"""Code points from here on need no table: ideographs up to IDEOGRAPHS, then nothing known."""
IDEOGRAPHS, TAGS = 0x40000, 0xE0000

UNSPACED = np.uint32(1 << 24)
"""Flag of a letter of a script without spaces between words."""
EXPANDED = np.uint32(1 << 25)
"""Flag of a code point that becomes several; the rest is its place in `Alphabet.expansions`."""
SPECIAL = np.uint32(1 << 26)
BREAK, BLANK, NEWLINE, DROPPED, HYPHEN, SOFT, WIDE = (np.uint32((1 << 26) + n) for n in range(7))
"""Classes: ends a word; and is white space; is a line end; is nothing; is a hyphen; is nothing but
a hyphen at a line end; is a byte that begins several."""

_APOSTROPHES = "'`´_‘’‚‛′‵ʹʻʼʽˈ＇"
_HYPHENS = "-\u2010"
_SOFT_HYPHEN = "\u00ad"
_NEWLINES = "\n\r"
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f"
_SELECTORS = (0xFE00, 0xFE0F)
_LIGATURES = {"æ": "ae", "œ": "oe"}
_LOOKALIKES = {
    **dict(zip("ıɑɡаветкмнорсухіјѕһԁԛԝү", "iagabetkmhopcyxijshdqwy", strict=True)),
    **dict(zip("αβεζηικμνορτυχ", "abezhikmvoptyx", strict=True)),
}
_FOLDED = {**_LIGATURES, **_LOOKALIKES}
_UNSPACED = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF),
    (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3031, 0x3035), (0x3038, 0x303C),
    (0x3041, 0x312F), (0x31A0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4CF),
    (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xF900, 0xFAFF), (0x1AFF0, 0x1B2FF), (0x20000, 0x3FFFF),
)  # fmt: skip
"""Thai, Lao, Burmese, Khmer, Tai scripts, Chinese, Japanese, Bopomofo, Yi."""


class Alphabet(NamedTuple):
    """Tables for kernels.

    ascii (256,) uint32: what each first byte is, WIDE from 0x80 on; points (LIMIT,) uint32: what
    each code point is; expansions uint32: at the place of an EXPANDED one its length, then so many
    letters and classes.
    """

    ascii: U32
    points: U32
    expansions: U32


def fold_letters(point: str) -> str:
    """What is left of one character: letters and marks that are not letters alike.

    >>> fold_letters("É"), fold_letters("ﬃ"), fold_letters("Æ"), fold_letters("½")
    ('e', 'ffi', 'ae', '1⁄2')
    """
    folded = _strip_marks(_strip_marks(point).casefold())
    return "".join(_FOLDED.get(letter, letter) for letter in folded)


def _strip_marks(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def find_class(letter: str) -> np.uint32:
    """What one character that `fold_letters` left is: itself, perhaps UNSPACED, or a class."""
    if letter in _HYPHENS:
        return HYPHEN
    if letter == _SOFT_HYPHEN:
        return SOFT
    if letter in _NEWLINES:
        return NEWLINE
    point, category = ord(letter), unicodedata.category(letter)
    is_filler = letter in _FILLERS or _SELECTORS[0] <= point <= _SELECTORS[1]
    if letter in _APOSTROPHES or category in ("Cf", "Me") or is_filler:
        return DROPPED
    if category[0] in "LN" or category in ("Mn", "Mc"):
        is_unspaced = any(first <= point <= last for first, last in _UNSPACED)
        return np.uint32(point) | (UNSPACED if is_unspaced else np.uint32(0))
    return BLANK if letter.isspace() else BREAK


def find_unit(point: str) -> list[np.uint32]:
    """What one character is: letters and breaks, or one class alone.

    Of several, those that are dropped are left out, and every other class is BREAK.
    """
    if point in _APOSTROPHES:
        return [DROPPED]
    classes = [find_class(letter) for letter in fold_letters(point)]
    letters = [c for c in classes if c != DROPPED]
    if len(letters) < 2:
        return letters or [DROPPED]
    return [BREAK if c >= SPECIAL else c for c in letters]


@cache
def make_alphabet() -> Alphabet:
    """The tables, which a quarter of a second is needed for, made once on a machine."""
    name = f"{source_digest(Path(__file__).parent)}-{unicodedata.unidata_version}.npz"
    return Alphabet(**kept_arrays(lambda: _make_tables()._asdict(), "alphabet", name))


def _make_tables() -> Alphabet:
    every = [chr(point) for point in range(LIMIT)]
    points = _find_unchanged_classes(every)
    expansions: list[np.uint32] = []
    for point in np.flatnonzero(_is_special(every)):
        unit = find_unit(every[point])
        if len(unit) == 1:
            points[point] = unit[0]
        else:
            points[point] = EXPANDED | np.uint32(len(expansions))
            expansions += [np.uint32(len(unit)), *unit]
    of_byte = np.full(256, WIDE, np.uint32)
    of_byte[:128] = points[:128]
    return Alphabet(of_byte, points, np.array(expansions, np.uint32))


def _find_unchanged_classes(every: list[str]) -> U32:
    """`find_class` of all characters, right for those that `fold_letters` leaves as they are and
    that nothing names."""
    categories = np.array([unicodedata.category(c) for c in every])
    points = np.arange(LIMIT, dtype=np.uint32)
    for first, last in _UNSPACED:
        points[first : last + 1] |= UNSPACED
    is_letter = np.isin(np.strings.slice(categories, 1), ["L", "N"])
    is_letter |= np.isin(categories, ["Mn", "Mc"])
    points[~is_letter] = BREAK
    points[np.isin(categories, ["Cf", "Me"])] = DROPPED
    return points


def _is_special(every: list[str]) -> npt.NDArray[np.bool_]:
    """Which characters are to be looked at one by one."""
    special_characters = {*_APOSTROPHES, *_HYPHENS, _SOFT_HYPHEN, *_NEWLINES, *_FILLERS, *_FOLDED}
    special_characters |= {chr(point) for point in range(_SELECTORS[0], _SELECTORS[1] + 1)}
    unchanged = [
        c.casefold() == c and c not in special_characters and not c.isspace() for c in every
    ]
    unmarked = [unicodedata.combining(c) == 0 for c in every]
    same = [unicodedata.is_normalized("NFKD", c) for c in every]
    special: npt.NDArray[np.bool_] = ~(np.array(unchanged) & np.array(unmarked) & np.array(same))
    return special
