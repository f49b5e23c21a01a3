"""Which of duplicates is preferred: what `dedup.prefer` names, as columns of numbers of which the
smallest is preferred."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from dedup.arrays import F64
from pipeline.sources.record import RecordError, check_type, get_field

PREFERENCE = "preference_"
"""How the columns' names begin, before the number of the preference."""
LAST = np.inf
"""Of a document that lacks the field."""


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise RecordError("bad_meta_field")


def _date(value: Any) -> float:
    moment = check_type(value, "timestamp")
    if not isinstance(moment, datetime):
        raise RecordError("bad_meta_field")
    return moment.timestamp()


_READ: dict[str, tuple[Callable[[Any], float], int]] = {
    "newest": (_date, -1),
    "oldest": (_date, 1),
    "highest": (_number, -1),
    "lowest": (_number, 1),
}
"""How a value is read, and the sign that makes the preferred one the smallest."""
_COLUMNS = {
    "longest": ("text_bytes", -1),
    "shortest": ("text_bytes", 1),
    "first": ("doc_id", 1),
    "last": ("doc_id", -1),
}
"""The column that is compared, and the sign. The order of `doc_id` is that of inputs, files and
records."""


@dataclass(frozen=True)
class Preference:
    """`longest` or `shortest` text; `first` or `last` record of the inputs; or `newest`, `oldest`,
    `highest` or `lowest` of a dotted field of meta."""

    order: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.order} {self.field}".rstrip()

    @property
    def needs(self) -> str:
        """What its field must hold, for messages; empty where none is asked."""
        if self.order in _COLUMNS:
            return ""
        return "a date" if _READ[self.order][0] is _date else "a number"

    def rank(self, documents: pa.Table) -> F64:
        """A number for each document, from its columns doc_id, text_bytes and meta."""
        if self.order in _COLUMNS:
            column, sign = _COLUMNS[self.order]
            return np.asarray(documents[column], np.float64) * sign
        read, sign = _READ[self.order]
        of_meta = partial(_read_field, self.field, read, sign)
        return np.array([of_meta(meta) for meta in documents["meta"]], np.float64)


def _read_field(
    field: str, read: Callable[[Any], float], sign: int, meta: pa.StringScalar
) -> float:
    value = get_field(msgspec.json.decode(meta.as_buffer()), field)
    try:
        return LAST if value is None else sign * read(value)
    except (RecordError, OverflowError):
        return LAST


def parse_preferences(entries: tuple[str, ...]) -> tuple[Preference, ...]:
    """What entries of `dedup.prefer` mean; their form is checked by the config."""
    return tuple(Preference(*entry.split(maxsplit=1)) for entry in entries)


def preference_names(preferences: tuple[Preference, ...]) -> tuple[str, ...]:
    """The columns of their numbers, in order."""
    return tuple(f"{PREFERENCE}{number}" for number in range(len(preferences)))
