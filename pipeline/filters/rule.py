"""What the families of filter rules share: the declaration of a rule, the documents that fail one,
and what kernels must know of a character, in one table.

A family is a module with `FAMILY`, `RULES` in their order and `check`; messages, counts and the
tables of docs/filters.md come from the declarations. A character is white space as `str.isspace`
says and alphabetic as `str.isalpha` says, so words are those of `str.split`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from dedup.arrays import F64, I64, U32
from dedup.compiled import kernel
from pipeline.config.model import FrozenModel


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: `family_name` is its reason word, `says` what failing it says of a document.

    `least` and `most` are keys of the family's settings, the limits of what it looks at; `allowed`
    says in words what there is no limit for.
    """

    name: str
    says: str
    looks_at: str
    least: str = ""
    most: str = ""
    allowed: str = ""

    def limits(self, settings: FrozenModel) -> tuple[float | None, float | None]:
        """The least and the most that these settings allow; None: no limit."""
        least, most = (getattr(settings, key) if key else None for key in (self.least, self.most))
        return least, most


@dataclass(frozen=True)
class RuleFailures:
    """The documents that fail one rule (F rows): what was measured and allowed, NaN where nothing
    was, and what was found or measured."""

    reason: str
    row: I64
    value: F64
    limit: F64
    target: Sequence[str]


def find_outside(
    reason: str, values_N: F64, low: float | None, high: float | None = None
) -> Iterator[RuleFailures]:
    """The documents whose value lies outside [low, high]."""
    least, most = -np.inf if low is None else low, np.inf if high is None else high
    rows = np.flatnonzero((values_N < least) | (values_N > most))
    if len(rows):
        values = values_N[rows]
        limits = np.where(values < least, least, most)
        yield RuleFailures(reason, rows, values, limits, [_name_measure(reason)] * len(rows))


def list_failures(reason: str, rows: I64, targets: Sequence[str] | None = None) -> RuleFailures:
    """The documents in which something was found; `targets` name it."""
    nothing = np.full(len(rows), np.nan)
    return RuleFailures(
        reason, rows, nothing, nothing, targets or [_name_measure(reason)] * len(rows)
    )


def _name_measure(reason: str) -> str:
    return reason.partition("_")[2].replace("_", " ")


Whole: TypeAlias = int | np.int64

KNOWN = 0x40000
"""Code points from here on are neither white space nor alphabetic, up to Unicode 17."""

BULLETS = "-*•‣⁃◦▪▫■□●○"
"""Characters that make a line an item of a list when it begins with one."""
SENTENCE_ENDS = ".!?…。！？؟۔।"
"""Characters that end a sentence: Latin, CJK, Arabic, Urdu and Devanagari."""
QUOTES = "\"'”’»)]"
"""What may come between the end of a sentence and the white space after it."""

LOWER = np.uint32(0x1FFFFF)
"""The bits of an entry that hold the lower case of its code point, where that is one other."""
SPACE, ALPHA, ALNUM, BULLET, STOP, QUOTE = (np.uint32(1 << bit) for bit in range(21, 27))
"""Flags of an entry."""

NEWLINE, HASH, DOT, ELLIPSIS = (np.uint32(ord(c)) for c in "\n#.…")


@cache
def character_table() -> U32:
    """(KNOWN,) uint32: the lower case of each code point and its flags."""
    table = np.empty(KNOWN, np.uint32)
    for point in range(KNOWN):
        c = chr(point)
        lower = c.lower()
        entry = ord(lower) if len(lower) == 1 else point
        if c.isalnum():
            entry |= int(ALNUM) | (int(ALPHA) if c.isalpha() else 0)
        elif c.isspace():
            entry |= int(SPACE)
        table[point] = entry
    for characters, flag in ((BULLETS, BULLET), (SENTENCE_ENDS, STOP), (QUOTES, QUOTE)):
        table[[ord(c) for c in characters]] |= flag
    table.flags.writeable = False
    return table


@kernel
def entry_of(c: np.uint32, table: U32) -> np.uint32:
    """Lower case and flags of a code point."""
    return table[c] if c < KNOWN else c


@kernel
def absorb(value: np.uint64, other: np.uint64) -> np.uint64:
    """One step of a hash over numbers; each is a bijection of `value`."""
    value = (value ^ (other + np.uint64(1))) * np.uint64(0xD6E8FEB86659FD93)
    return value ^ (value >> np.uint64(32))


def hash_numbers(numbers: Any) -> np.uint64:
    """`absorb` over several numbers, from 0."""
    value = np.uint64(0)
    for number in numbers:
        value = np.uint64(absorb(value, np.uint64(number)))
    return value
