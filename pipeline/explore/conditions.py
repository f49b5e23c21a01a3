"""What a list of documents is filtered by: read from an address, written back into one, and put to
DuckDB.

A label is one of some values, a range of a number is above one bound and up to the other, and an
expression is what `filters.keep` takes. Values are parameters of a statement, names of columns are
checked against the table, and expressions are checked as those of a config are.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from pipeline.core.errors import ConfigError, escape_text
from pipeline.filters.expression import check_expression

LABELS = ("source", "state", "reason", "decision", "split", "language")
_KEY = "where"
_REMEMBERED = 64
"""Expressions that were checked already."""


def quote(name: str) -> str:
    """A name of a column for SQL.

    >>> print(quote('a"b'))
    "a""b"
    """
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class ValueRange:
    """Values of a column above `low` and up to `high`; None: without a bound."""

    column: str
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        """As it is in an address: COLUMN:LOW:HIGH.

        >>> ValueRange("text_bytes", 100, None).text
        'text_bytes:100:'
        """
        bounds = ("" if bound is None else f"{bound:.15g}" for bound in (self.low, self.high))
        return ":".join([self.column, *bounds])

    @property
    def words(self) -> str:
        """For people.

        >>> ValueRange("text_bytes", 100, 2500).words, ValueRange("lines", None, 3).words
        ('100 < text_bytes <= 2,500', 'lines <= 3')
        """
        low, high = (
            None if b is None else f"{int(b):,}" if b == int(b) else f"{b:.4g}"
            for b in (self.low, self.high)
        )
        first = f"{low} < " if low is not None else ""
        return f"{first}{self.column}" + (f" <= {high}" if high is not None else "")


def parse_range(text: str) -> ValueRange:
    """A range of an address. Raises ConfigError.

    >>> parse_range("text_bytes:100:")
    ValueRange(column='text_bytes', low=100.0, high=None)
    """
    column, *bounds = text.rsplit(":", 2)
    try:
        low, high = (float(bound) if bound else None for bound in bounds)
        if not all(bound is None or math.isfinite(bound) for bound in (low, high)):
            raise ValueError("not finite")
    except ValueError:
        raise ConfigError(
            f"range={escape_text(text, 80)}: expected COLUMN:LOW:HIGH, such as text_bytes:100:5000"
        ) from None
    return ValueRange(column, low, high)


@dataclass
class Conditions:
    """Conditions of a statement, all of which must hold, and their parameters."""

    clauses: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, clause: str, *values: Any) -> None:
        """One more condition."""
        self.clauses.append(clause)
        self.values += values

    @property
    def sql(self) -> str:
        """All of them."""
        return " and ".join(self.clauses) or "true"

    def run(self, cursor: Any, sql: str) -> list[dict[str, Any]]:
        """The rows that a statement with these parameters answers. Raises ConfigError where the
        expression cannot be computed of some document."""
        import duckdb

        try:
            cursor.execute(sql, self.values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        except duckdb.Error as error:
            message = escape_text(" ".join(str(error).split()), 300).partition(" LINE ")[0]
            raise ConfigError(f"{_KEY}: {message}") from None


@dataclass(frozen=True, kw_only=True)
class ListFilters:
    """What a list shows: documents with these words, these labels (name -> values), numbers in
    these ranges, and for which the expression `where` is true."""

    words: str = ""
    where: str = ""
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ranges: tuple[ValueRange, ...] = ()

    def conditions(self, schema: pa.Schema) -> Conditions:
        """All but the words, for a table with these columns. Raises ConfigError for a column that
        it has not, and for an expression that is none."""
        conditions = Conditions()
        for name, values in self.labels:
            _check_column(name, schema.names)
            marks = ", ".join("?" * len(values))
            conditions.add(f"{quote(name)} in ({marks})", *values)
        for limits in self.ranges:
            numbers = [f.name for f in schema if is_number(f.type)]
            _check_column(limits.column, numbers)
            for sign, bound in ((">", limits.low), ("<=", limits.high)):
                if bound is not None:
                    conditions.add(f"{quote(limits.column)} {sign} ?", bound)
        if self.where:
            _check_once(self.where, schema)
            conditions.add(f"coalesce((\n{self.where}\n), false)")
        return conditions

    def of(self, name: str) -> tuple[str, ...]:
        """The values that a label may have; none: any."""
        return dict(self.labels).get(name, ())

    def toggle(self, name: str, value: str) -> "ListFilters":
        """The same with one more value of a label, or without it where it is among them."""
        values = self.of(name)
        chosen = tuple(v for v in values if v != value) if value in values else (*values, value)
        labels = {**dict(self.labels), name: chosen}
        kept = tuple((label, labels[label]) for label in LABELS if labels.get(label))
        return replace(self, labels=kept)

    def with_range(self, limits: ValueRange) -> "ListFilters":
        """The same with this range of its column alone."""
        others = tuple(r for r in self.ranges if r.column != limits.column)
        return replace(self, ranges=(*others, limits))

    def without_range(self, column: str) -> "ListFilters":
        """The same with any value of this column."""
        return replace(self, ranges=tuple(r for r in self.ranges if r.column != column))

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values of an address that means these filters."""
        pairs = [("q", self.words), (_KEY, self.where)]
        pairs += [(name, value) for name, values in self.labels for value in values]
        pairs += [("range", limits.text) for limits in self.ranges]
        return [(name, value) for name, value in pairs if value]

    def query(self, **more: object) -> str:
        """The same as the query of an address, with other parameters behind."""
        return urlencode([*self.pairs(), *((k, v) for k, v in more.items() if v is not None)])


def parse_filters(pairs: Sequence[tuple[str, str]]) -> ListFilters:
    """The filters of an address; other parameters are passed over. Raises ConfigError."""
    of_name: dict[str, list[str]] = {}
    for name, value in pairs:
        if value:
            of_name.setdefault(name, []).append(value)
    labels = ((name, tuple(dict.fromkeys(of_name.get(name, ())))) for name in LABELS)
    return ListFilters(
        words=" ".join(of_name.get("q", ())),
        where=" ".join(of_name.get(_KEY, ())),
        labels=tuple((name, values) for name, values in labels if values),
        ranges=tuple(map(parse_range, of_name.get("range", ()))),
    )


@lru_cache(_REMEMBERED)
def _check_once(expression: str, schema: pa.Schema) -> None:
    """Raises ConfigError for what is no expression over these columns."""
    check_expression(expression, schema, _KEY)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are counted by bins, and compared with limits."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _check_column(name: str, columns: Iterable[str]) -> None:
    names = list(columns)
    if name not in names:
        raise ConfigError(
            f"{escape_text(name, 80)}: no such column to filter by; expected {', '.join(names)}"
        )
