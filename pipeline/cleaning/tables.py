"""The tables of the scan: what it does with each character, as small arrays over classes of
characters that are treated alike.

They are derived from the installed ftfy (`derivation`) once per machine and kept in the user's
cache, in a file named after a digest of everything that they depend on. ftfy takes long to import:
where they are kept, nothing here does.
"""

import hashlib
import unicodedata
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dedup.arrays import U16, U64
from dedup.compiled import source_digest
from dedup.user_cache import kept_arrays

KEEP, WRITE, DROP, MARK, JOIN, COMPOSE, ASK, AMPERSAND, LESS, LINE_FEED, RETURN = range(11)
"""Actions: copy; write something shorter; leave out; copy and order by combining class; the same,
unless the last starter takes it up; copy and have the line normalised; have it fixed by ftfy; and
four characters with a meaning."""

PLAIN = bytes(sorted({*range(0x20, 0x7F), 0x09, 0x0A, 0x0C} - {*b"&<"}))
"""The ASCII characters that the scan copies without a look at their class."""

ACTION, LEFT, RIGHT, BEFORE, AFTER, ORDER, WRITTEN, JOINS, TAKES = range(9)
"""Columns of the rows. ORDER: the canonical combining class. WRITTEN: what WRITE writes, up to 3
ASCII bytes, lowest first, and their number from bit 24.

LEFT to AFTER: bit j stands for the j-th pair of the badness expression. A line may be bad where
LEFT of a character and RIGHT of the next have a bit in common that is also in BEFORE of the
character before the two and in AFTER of the one after.

JOINS, TAKES: a bit stands for a character with the action JOIN. It may compose with the last
starter before it where that one TAKES what it JOINS.
"""
ENDS = 0
"""The row of the edges of a line: BEFORE at its start, AFTER at its end."""


class Tables(NamedTuple):
    """The class of every character, and what is known about each of the K classes."""

    classes: U16
    """(0x110000,) uint16."""
    rows: U64
    """(K, 9) uint64; row ENDS belongs to no character."""


class UnprovenError(Exception):
    """The installed ftfy is not the one that the argument in `pipeline.cleaning` is about.

    The message says what differs. `clean_texts` then gives every document to ftfy itself.
    """


ALL = 0x110000
"""Code points, surrogates included."""


@cache
def every_character(end: int = ALL) -> str:
    """All code points below `end` in order, so that an index is a code point."""
    return np.arange(end, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


CACHE = "cleaning"
"""The folder of the user's cache that holds them."""


@cache
def tables_or_reason() -> Tables | str:
    """The tables, or why the installed ftfy has to do all the work itself."""
    try:
        return Tables(**kept_arrays(_build, CACHE, table_file()))
    except UnprovenError as error:
        return str(error)


def _build() -> dict[str, npt.NDArray[Any]]:
    from pipeline.cleaning.derivation import build_tables

    return build_tables()._asdict()


def table_file() -> str:
    """The file in the user's cache of the tables for exactly this ftfy, Python and package."""
    digest = hashlib.sha256(source_digest(Path(__file__).parent).encode())
    digest.update(f"unicode {unicodedata.unidata_version}".encode())
    spec = find_spec("ftfy")
    assert spec and spec.origin
    for source in sorted(Path(spec.origin).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"{digest.hexdigest()[:16]}.npz"
