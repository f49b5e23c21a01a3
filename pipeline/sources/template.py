"""The names of fields, and templates: several fields joined to one text."""

import re

from pipeline.sources.record import RecordError

Path = tuple[str, ...]
"""A field: its name, or the names on the way down, such as ("meta", "title")."""

Template = tuple[str | Path, ...]
"""Literal text and fields, in order."""

COLUMN_PREFIX = "meta_"
"""What the names of typed columns begin with, so that they meet no other column."""

_PIECE = re.compile(r"\{\{|\}\}|\{(?P<field>[^{}]*)\}|[{}]")
_NAME = re.compile(r"[^{}.!:\[\]]+(\.[^{}.!:\[\]]+)*")


def field_path(name: str) -> Path:
    """The way to a field; dots go deeper.

    >>> field_path("meta.title")
    ('meta', 'title')

    Raises ValueError for a name that is none.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected the name of a field, such as title or meta.title; got {name!r}")
    return tuple(name.split("."))


def column_name(path: Path) -> str:
    """The column a field fills.

    >>> column_name(("meta", "date")), column_name(("url",))
    ('meta_date', 'meta_url')
    """
    return COLUMN_PREFIX + "_".join(path[1:] if path[0] == "meta" and len(path) > 1 else path)


def parse_template(text: str) -> Template:
    """The pieces of a template; `{{` and `}}` stand for braces.

    >>> parse_template("{title}: {{{meta.x}}}")
    (('title',), ': {', ('meta', 'x'), '}')

    Raises ValueError for a brace without its partner, a name that is none, and no field at all.
    """
    pieces: list[str | Path] = []
    literal, position = "", 0
    for found in _PIECE.finditer(text):
        literal += text[position : found.start()]
        position = found.end()
        if found[0] in ("{{", "}}"):
            literal += found[0][0]
        elif found["field"] is None:
            raise ValueError(f"expected {found[0] * 2} for a literal brace; found a single one")
        else:
            pieces += [literal, field_path(found["field"])] if literal else []
            pieces += [] if literal else [field_path(found["field"])]
            literal = ""
    literal += text[position:]
    if not pieces:
        raise ValueError("expected a field in braces, such as {text}")
    return (*pieces, literal) if literal else tuple(pieces)


def field_text(value: object) -> str:
    """The text of one field. Raises RecordError for null and for what is neither text nor
    integer."""
    if isinstance(value, str):
        return value
    if value is None:
        raise RecordError("missing_field")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RecordError("field_not_string")
