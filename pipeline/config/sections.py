"""Sections of the config with rules of their own. `inputs`: collections of raw shards, where a
record holds its text, and templates that join several fields to one text. `mixture`: how often
documents are in the training split.
"""

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pipeline.config.model import ConfigSection, RelativePath
from pipeline.core.words import did_you_mean

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
    for piece in _PIECE.finditer(text):
        literal += text[position : piece.start()]
        position = piece.end()
        if piece[0] in ("{{", "}}"):
            literal += piece[0][0]
        elif piece["field"] is None:
            raise ValueError(f"expected {piece[0] * 2} for a literal brace; found a single one")
        else:
            pieces += [literal, field_path(piece["field"])] if literal else []
            pieces += [] if literal else [field_path(piece["field"])]
            literal = ""
    literal += text[position:]
    if not pieces:
        raise ValueError("expected a field in braces, such as {text}")
    return (*pieces, literal) if literal else tuple(pieces)


ColumnType = Literal["string", "int", "float", "bool", "timestamp"]
Keep = Literal["all", "lineage", "minimal"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _paths(value: Any) -> Any:
    """A list becomes a tuple; anything that names no path is refused."""
    several = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not several or not all(isinstance(path, str) for path in several):
        raise ValueError("expected a path or a list of paths")
    return value if isinstance(value, str) else several


class InputConfig(ConfigSection):
    """One collection of raw shards."""

    name: Name
    """identity of the collection; part of every document's key"""
    path: Annotated[str | tuple[str, ...], BeforeValidator(_paths), RelativePath()]
    """a file, a directory or a glob, relative to this config, or a list of them; or
    builtin:quickstart"""
    format: str | None = None
    """format of all files, whatever their names, such as jsonl or that of a plug-in [default: by
    the name of each file]; text: each file is a document; lines: each line is a document"""
    text_key: str = "text"
    """name of the field or column that holds the text"""
    template: str | None = None
    """fields joined to form the text, such as '{title}: {text}'; dots reach nested fields, {{ and
    }} are braces [default: text_key alone]"""
    meta_fields: dict[str, ColumnType] = Field({})
    """fields kept as typed columns, such as `meta.date: timestamp`; types are string, int, float,
    bool, timestamp"""
    source_key: str | None = None
    """field or column that holds the source label, such as meta.source (dots reach nested fields);
    a record without it belongs to the source `name` [default: meta.pile_set_name or
    meta.redpajama_set_name]"""
    sources: tuple[str, ...] | None = None
    """allowed source labels; a record with another label is a bad record"""

    @field_validator("template")
    @classmethod
    def _template_parses(cls, template: str | None) -> str | None:
        if template is not None:
            parse_template(template)
        return template

    @field_validator("source_key")
    @classmethod
    def _source_key_is_a_field(cls, source_key: str | None) -> str | None:
        if source_key is not None:
            field_path(source_key)
        return source_key

    @field_validator("meta_fields")
    @classmethod
    def _columns_differ(cls, fields: dict[str, ColumnType]) -> dict[str, ColumnType]:
        columns = [column_name(field_path(name)) for name in fields]
        twice = next((c for c in columns if columns.count(c) > 1), None)
        if twice:
            raise ValueError(
                f"expected a column of its own for each field; two fields fill {twice}"
            )
        return fields

    @model_validator(mode="after")
    def _one_text(self) -> "InputConfig":
        if self.template is not None and "text_key" in self.model_fields_set:
            raise ValueError("expected text_key or template, not both; leave one out")
        return self


MOST_EPOCHS = 1000
_COUNT_UNITS = {"k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _count(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kMBT])", value)
    if not match:
        raise ValueError("expected a number of tokens such as 10000000 or '10B' (units k, M, B, T)")
    return int(Decimal(match[1]) * _COUNT_UNITS[match[2]])


Epochs = Annotated[float, Field(ge=0, le=MOST_EPOCHS, allow_inf_nan=False)]
MostEpochs = Annotated[float, Field(gt=0, le=MOST_EPOCHS, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_count), Field(ge=1)]

MOST_CLUSTER_WEIGHT = 50
"""Times the most epochs it still counts copies in 16 bits."""


def _cluster_size(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,9}", value):
        return int(value)
    if isinstance(value, int) and value > 0:
        return value
    raise ValueError("expected a number of documents such as 5")


ClusterSize = Annotated[int, BeforeValidator(_cluster_size)]
ClusterWeight = Annotated[float, Field(ge=0, le=MOST_CLUSTER_WEIGHT, allow_inf_nan=False)]


def _as_sql(value: Any) -> Any:
    """YAML's `true` is that of SQL."""
    return "true" if value is True else value


GroupExpression = Annotated[str, BeforeValidator(_as_sql), Field(min_length=1, max_length=10_000)]


class MixtureConfig(ConfigSection):
    """Repeating and thinning out the training split: by source or by group, either `epochs` or
    `weights`; by the size of clusters of duplicates, `cluster_weights`."""

    epochs: dict[str, Epochs] | None = None
    """by source label: how often each of its documents occurs; 2.5: all of them twice, and half of
    them, chosen by hash, a third time"""
    weights: dict[str, Weight] | None = None
    """by source label: its share of the tokens, relative to the other weights"""
    default: Epochs | None = None
    """epochs, or weight, of every source that is not named [default: 1 epoch; with weights every
    source must be named]"""
    tokens: Count | None = None
    """with weights: tokens of the training split, such as 10B [default: as many as max_epochs
    allows]"""
    max_epochs: MostEpochs | None = None
    """with weights: most epochs of any source; more is an error [default: 1 without tokens, else no
    limit]"""
    groups: dict[Name, GroupExpression] | None = Field(
        None, min_length=1, exclude_if=lambda value: not value
    )
    """groups that the keys above name instead of source labels: by name, an SQL expression over
    `signals`, source, licence, tokens and typed columns, such as {good: quality > 0.8, rest:
    true}; a document is in the first group whose expression is true; needs the extra `signals`"""
    cluster_weights: dict[ClusterSize, ClusterWeight] | None = Field(
        None, min_length=1, max_length=20
    )
    """by number of documents in a cluster of duplicates, from which on: how often the kept one
    counts, such as {2: 2, 5: 3, 100: 1}, in addition to epochs or weights; smaller clusters, and
    documents without duplicates, count once [default: all of them count once]"""

    @property
    def of(self) -> Literal["source", "group"]:
        """What epochs and weights are given for."""
        return "source" if self.groups is None else "group"

    @model_validator(mode="after")
    def _groups_are_there(self) -> "MixtureConfig":
        if self.groups is None:
            return self
        named = (self.epochs if self.weights is None else self.weights) or {}
        for name in named:
            if name not in self.groups:
                hint = did_you_mean(name, list(self.groups))
                raise ValueError(f"expected groups alone; {name!r} is none of them{hint}")
        bare = [name for name in self.groups if name not in named]
        if self.weights is not None and self.default is None and bare:
            raise ValueError(f"expected a weight for each group, or default; {bare[0]} has none")
        return self

    @model_validator(mode="after")
    def _one_way(self) -> "MixtureConfig":
        if self.epochs is not None and self.weights is not None:
            raise ValueError("expected either epochs or weights, not both")
        if self.weights is None and (self.tokens is not None or self.max_epochs is not None):
            raise ValueError("tokens and max_epochs are only for weights")
        if self.weights is not None and not sum(self.weights.values()) + (self.default or 0):
            raise ValueError("expected a weight above 0")
        return self
