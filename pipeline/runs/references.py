"""What pages and commands print of documents, read back as it was printed: keys, FILE:LINE, FILE,
and rows of HDF5 shards."""

import re
from collections.abc import Sequence

from pipeline.core.errors import InputError, escape_text
from pipeline.core.page import spell_hidden

LEAST_DIGITS = 6
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_KEY = re.compile(rf"[0-9a-fA-F]{{{LEAST_DIGITS},32}}")
_PLACE = re.compile(rf"(?s)(.+):(?:row )?({_NUMBER})")
_ROW = re.compile(rf"(?s)(.+)\[({_NUMBER})\]")


def read_number(text: str) -> int:
    """A whole number with or without separators of thousands. Raises ValueError.

    >>> read_number("4,355"), read_number("4355")
    (4355, 4355)
    """
    if not re.fullmatch(_NUMBER, text):
        raise ValueError(f"{escape_text(text)}: expected a whole number such as 4355 or 4,355")
    return int(text.replace(",", ""))


def is_key(reference: str) -> bool:
    """Whether this is a document key in hex, or enough digits of its beginning.

    >>> is_key("550f72"), is_key("550f"), is_key("a.jsonl:3")
    (True, False, False)
    """
    return _KEY.fullmatch(reference) is not None


def split_place(reference: str) -> tuple[str, int] | None:
    """File and line (of parquet the row) of FILE:LINE.

    >>> split_place("web/a.jsonl:4,355"), split_place("b.parquet:row 7"), split_place("a.jsonl")
    (('web/a.jsonl', 4355), ('b.parquet', 7), None)
    """
    match = _PLACE.fullmatch(reference)
    return (match[1], read_number(match[2])) if match else None


def split_row(reference: str) -> tuple[str, int] | None:
    """Shard and row of SHARD[ROW].

    >>> split_row("train/examples_000006.h5[5,071]")
    ('train/examples_000006.h5', 5071)
    """
    match = _ROW.fullmatch(reference)
    return (match[1], read_number(match[2])) if match else None


def find_files_ending(files: Sequence[str], ending: str) -> list[int]:
    """The raw shards (`input/path`) that a name means: all of it or a unique ending, as it is or
    with what does not show escaped."""
    for same in (str.__eq__, lambda file, end: file.endswith(f"/{end}")):
        matches = [n for n, file in enumerate(files) if any(same(f, ending) for f in _forms(file))]
        if matches:
            return matches
    return []


def _forms(file: str) -> set[str]:
    return {file, escape_text(file, len(file)), spell_hidden(file)}


def find_file(files: Sequence[str], ending: str, where: str) -> int:
    """The one raw shard that a name means. Raises InputError naming the candidates, or what was
    expected in `where`."""
    matches = find_files_ending(files, ending)
    if not matches:
        such_as = f", such as {escape_text(files[0])}" if files else ""
        raise InputError(
            f"{escape_text(ending)}: expected a document key ({LEAST_DIGITS} or more hex digits), "
            f"or FILE or FILE:LINE of a file among the inputs of {where}{such_as}"
        )
    if len(matches) > 1:
        names = shorten_list([escape_text(files[n]) for n in matches])
        raise InputError(
            f"{escape_text(ending)}: {len(matches)} files end with it: {names}; give more of the "
            "path"
        )
    return matches[0]


def shorten_list(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list that may be long.

    >>> shorten_list(["a", "b"]), shorten_list("abcdefg")
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
