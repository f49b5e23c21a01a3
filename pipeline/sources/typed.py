"""Typed columns: chosen fields of every record, checked against the type that the config says."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

import pyarrow as pa

from pipeline.sources.labels import has_surrogate
from pipeline.sources.record import BadRecord, FieldValue, Record, RecordError
from pipeline.sources.template import Path

COLUMN_TYPES = {
    "string": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""Type in the config -> Arrow type of the column."""


@dataclass(frozen=True)
class TypedField:
    """One column: its name, its type, and the field that fills it (None: this input has none)."""

    column: str
    type: str
    path: Path | None


def meta_columns(fields: Sequence[TypedField]) -> list[pa.Field]:
    """The Arrow fields of the columns, in the order of `Record.fields`."""
    return [pa.field(field.column, COLUMN_TYPES[field.type]) for field in fields]


def typed_arrays(
    items: Sequence[Record | BadRecord], fields: Sequence[TypedField]
) -> list[pa.Array]:
    """The columns of some records, a row for each; a bad record has nulls."""
    rows = [item.fields if isinstance(item, Record) else (None,) * len(fields) for item in items]
    return [
        pa.array([row[index] for row in rows], column.type)
        for index, column in enumerate(meta_columns(fields))
    ]


def check_type(value: object, kind: str) -> FieldValue:
    """The value if it is null or of the type, else RecordError.

    Integers are whole numbers of 64 bits; a float may be written as an integer; a timestamp is
    ISO 8601 text or an Arrow timestamp, in UTC where it names no zone.
    """
    if value is None:
        return None
    match kind, value:
        case "string", str():
            if has_surrogate(value):
                raise RecordError("surrogate")
            return value
        case "bool", bool():
            return value
        case "int", int() if not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
            return value
        case "float", int() | float() if not isinstance(value, bool):
            return _float(value)
        case "timestamp", str() | date():
            return _timestamp(value)
    raise RecordError("bad_meta_field")


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise RecordError("bad_meta_field") from error


def _timestamp(value: str | date) -> datetime:
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        elif not isinstance(value, datetime):
            value = datetime.combine(value, time())
        zoned = value if value.tzinfo else value.replace(tzinfo=UTC)
        return zoned.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise RecordError("bad_meta_field") from error
