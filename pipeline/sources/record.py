"""What every reader yields: a good record, or a bad one with the reason it was refused. An input's
options and `read` say, as plain data, how a record becomes a document: its source and licence, its
typed columns, its text put together from its fields.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from numbers import Integral
from typing import Any

import pyarrow as pa

from pipeline.config.prep import Config
from pipeline.config.sections import (
    InputConfig,
    Path,
    Template,
    column_name,
    field_path,
    parse_template,
)
from pipeline.core.errors import escape_text

FieldValue = str | int | float | bool | datetime | None
"""One value of a typed column; None when the record has none."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands: 0-based ordinal in its file (blank lines apart), 1-based line (0 for
    row formats), and its bytes in the decompressed file (0-based row and 0 for row formats)."""

    ordinal: int
    line: int
    byte_offset: int
    byte_length: int


START = Place(0, 1, 0, 0)
"""Where a file begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A valid record: text, source label (None: use the input's name), raw meta JSON, licence, and
    the values of the typed columns in the order of `RecordRules.fields`."""

    place: Place
    text: str
    source: str | None
    meta: str
    licence: str
    fields: tuple[FieldValue, ...] = ()


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be a document; `reason` is a short fixed word such as `bad_json`."""

    place: Place
    reason: str


class RecordError(Exception):
    """A record is bad; the message is its reason word."""


BAD_REASONS = {
    "bad_json": "not one JSON value on one line",
    "not_utf8": "bytes that are not UTF-8",
    "not_object": "a JSON value that is not an object",
    "no_text": "no text field",
    "text_not_string": "a text field that is not a string",
    "missing_field": "a field of the input's template that is missing or null",
    "field_not_string": "a field of the input's template, or its source_key, that is neither text "
    "nor an integer",
    "bad_meta_field": "a value that does not have the type its meta_fields entry says",
    "surrogate": "unpaired surrogate escapes, which no UTF-8 text can hold",
    "too_large": "a record above read.max_document_bytes",
    "too_deep": "nested too deeply to parse",
    "bad_meta": "a meta field that is not a JSON object with plain values",
    "unknown_source": "a source label missing from the input's list of sources",
    "not_a_page": "a response of a WARC file that is no HTML page of status 200",
    "page_encoding": "a page in a content encoding that cannot be undone",
    "page_too_deep": "a page with more than 1,000 tags open at a time",
    "page_failed": "a page that crashed the extractor or took it more than 30 s of CPU time",
}


SOURCE_KEYS = ("pile_set_name", "redpajama_set_name")
LICENCE_KEYS = ("license", "licence", "license_expression")


def source_label(
    meta: dict[str, Any], has_meta: bool, allowed: tuple[str, ...] | None
) -> str | None:
    """The source a record names, or None. Raises when it is not a string or not allowed."""
    label = _first(meta, SOURCE_KEYS)
    if label is not None and not isinstance(label, str):
        raise RecordError("bad_meta")
    if (
        allowed is not None
        and label not in allowed
        and (label is not None or not has_meta or not meta)
    ):
        raise RecordError("unknown_source")
    if label is not None and has_surrogate(label):
        raise RecordError("surrogate")
    return label


def chosen_label(value: object, allowed: tuple[str, ...] | None) -> str | None:
    """The label in the field that `source_key` names, or None where there is none. Raises
    RecordError for what is neither text nor an integer, and for a label that is not allowed."""
    if value is None or value == "":
        return None
    label = field_text(value)
    if allowed is not None and label not in allowed:
        raise RecordError("unknown_source")
    if has_surrogate(label):
        raise RecordError("surrogate")
    return label


def licence_field(meta: dict[str, Any]) -> str:
    """What the record itself says of its licence; empty when it says nothing."""
    value = _first(meta, LICENCE_KEYS)
    return value if isinstance(value, str) and not has_surrogate(value) else ""


def _first(meta: dict[str, Any], keys: tuple[str, ...]) -> Any:
    """The value of the first of these keys that is there."""
    for key in keys:
        if key in meta:
            return meta[key]
    return None


def decode_text(raw: bytes) -> str:
    """The text that these bytes are. Raises RecordError where they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RecordError("not_utf8") from error


def has_surrogate(text: str) -> bool:
    """Whether `text` holds a code point that UTF-8 cannot encode."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


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


_FIELDS = {"text": str, "source": str | None, "meta": str, "licence": str, "fields": tuple}


def find_record_problem(item: Any, last: Place, columns: Sequence[TypedField]) -> str:
    """What is wrong with a record of a plug-in, in words; empty when nothing is. `last` is the
    place of the one before it, `columns` are `RecordRules.fields`."""
    if not isinstance(item, Record | BadRecord):
        return "expected a Record or a BadRecord"
    if not isinstance(item.place, Place):
        return "place: expected a Place"
    place = item.place
    numbers = (place.ordinal, place.line, place.byte_offset, place.byte_length)
    if not all(isinstance(number, Integral) and 0 <= number < 1 << 63 for number in numbers):
        return "place: expected whole numbers from 0 on"
    if place.ordinal <= last.ordinal or place.byte_offset < last.byte_offset:
        return f"place: expected one after that of the record before, {last}"
    if isinstance(item, BadRecord):
        return "" if isinstance(item.reason, str) and item.reason else "reason: expected a word"
    wrong = next((n for n, kind in _FIELDS.items() if not isinstance(getattr(item, n), kind)), None)
    if wrong is not None:
        return f"{wrong}: {escape_text(repr(getattr(item, wrong)), 60)} is of the wrong type"
    if any(has_surrogate(text) for text in (item.text, item.source or "", item.meta, item.licence)):
        return "an unpaired surrogate, which no UTF-8 text can hold"
    try:
        is_object = item.meta == "{}" or isinstance(json.loads(item.meta), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        return "meta: expected a JSON object"
    try:
        for value, column in zip(item.fields, columns, strict=True):
            pa.scalar(value, COLUMN_TYPES[column.type])
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        expected = ", ".join(f"{column.column} ({column.type})" for column in columns)
        return f"fields: expected the values of {expected or 'no column'}, as assemble_fields does"
    return ""


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


def get_field(meta: Any, key: str) -> Any:
    """The value of a dotted field of a JSON object; None where it has none."""
    for name in key.split("."):
        meta = meta.get(name) if isinstance(meta, dict) else None
    return meta


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
            try:
                return float(value)
            except OverflowError as error:
                raise RecordError("bad_meta_field") from error
        case "timestamp", str() | date():
            return _timestamp(value)
    raise RecordError("bad_meta_field")


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


@dataclass(frozen=True, kw_only=True)
class RecordRules:
    """How a record becomes a document: the text field or the template in its place, the size limit
    in bytes, the allowed source labels, the typed columns; how many decompressed bytes a file may
    have, at all and per byte on disk (None: any); and the field with the source label (None: those
    of `SOURCE_KEYS`)."""

    text_key: str
    max_document_bytes: int
    sources: tuple[str, ...] | None
    template: Template | None = None
    fields: tuple[TypedField, ...] = ()
    max_file_bytes: int | None = None
    max_ratio: float | None = None
    source_key: Path | None = None


def make_rules(config: Config) -> dict[str, RecordRules]:
    """The rules for the files of each input, by its name."""
    columns = typed_columns(config)
    return {source.name: _make_rules(source, config, columns) for source in config.inputs}


def _make_rules(
    input_config: InputConfig, config: Config, columns: tuple[TypedField, ...]
) -> RecordRules:
    template = input_config.template
    paths = {column_name(field_path(n)): field_path(n) for n in input_config.meta_fields}
    return RecordRules(
        text_key=input_config.text_key,
        max_document_bytes=config.read.max_document_bytes,
        sources=input_config.sources,
        template=None if template is None else parse_template(template),
        fields=tuple(replace(f, path=paths.get(f.column)) for f in columns),
        max_file_bytes=config.read.max_file_bytes,
        max_ratio=config.read.max_ratio,
        source_key=None if input_config.source_key is None else field_path(input_config.source_key),
    )


def typed_columns(config: Config) -> tuple[TypedField, ...]:
    """The typed columns of a run: those of all inputs, by name. Two inputs that name a column give
    it one type (the config sees to that)."""
    columns = {
        column_name(field_path(name)): kind
        for source in config.inputs
        for name, kind in source.meta_fields.items()
    }
    return tuple(TypedField(name, columns[name], None) for name in sorted(columns))


TopLevel = Callable[[str], Any]
"""The value of a top-level field other than `meta`; None when it is missing or null."""


def assemble_record(
    place: Place,
    text: str,
    meta: dict[str, Any],
    raw_meta: str | None,
    top: TopLevel,
    rules: RecordRules,
) -> Record:
    """The record with its source label, licence and typed columns. Raises RecordError."""
    if rules.source_key is None:
        source = source_label(meta, raw_meta is not None, rules.sources)
    else:
        source = chosen_label(look_up(rules.source_key, meta, top), rules.sources)
    fields = typed_values(rules, meta, top) if rules.fields else ()
    return Record(
        place=place,
        text=text,
        source=source,
        meta=raw_meta or "{}",
        licence=licence_field(meta),
        fields=fields,
    )


def make_record(
    place: Place,
    read_text: Callable[[], str],
    read_meta: Callable[[], tuple[str | None, dict[str, Any]]],
    top: TopLevel,
    rules: RecordRules,
) -> Record:
    """The record of some fields: `read_text` is asked for the field `rules.text_key` if there is no
    template, `read_meta` for the field `meta` as JSON (None: there is none) and parsed. Raises
    RecordError for what is first found wrong."""
    if rules.template is None:
        text = read_text()
        check_length(text, rules.max_document_bytes)
        raw, meta = read_meta()
    else:
        raw, meta = read_meta()
        text = fill_template(rules.template, meta, top)
        check_length(text, rules.max_document_bytes)
    return assemble_record(place, text, meta, raw, top, rules)


def assemble_fields(place: Place, fields: Mapping[str, Any], rules: RecordRules) -> Record:
    """The record of fields by name, with plain values; `meta` is a mapping. For formats whose
    fields are all parsed at once. Raises RecordError."""

    def read_text() -> str:
        if rules.text_key not in fields:
            raise RecordError("no_text")
        text = fields[rules.text_key]
        if not isinstance(text, str):
            raise RecordError("text_not_string")
        if has_surrogate(text):
            raise RecordError("surrogate")
        return text

    def read_meta() -> tuple[str | None, dict[str, Any]]:
        meta = fields.get("meta")
        if meta is None:
            return None, {}
        try:
            raw = json.dumps(meta, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError("bad_meta") from error
        if not isinstance(meta, dict) or has_surrogate(raw):
            raise RecordError("bad_meta")
        return raw, meta

    return make_record(place, read_text, read_meta, fields.get, rules)


def typed_values(rules: RecordRules, meta: dict[str, Any], top: TopLevel) -> tuple[FieldValue, ...]:
    """The values of the typed columns, in order. Raises RecordError for a value of another type."""
    return tuple(
        None if field.path is None else check_type(look_up(field.path, meta, top), field.type)
        for field in rules.fields
    )


def fill_template(template: Template, meta: dict[str, Any], top: TopLevel) -> str:
    """The template with its fields filled in. Raises RecordError."""
    text = "".join(
        piece if isinstance(piece, str) else field_text(look_up(piece, meta, top))
        for piece in template
    )
    if has_surrogate(text):
        raise RecordError("surrogate")
    return text


def look_up(path: Path, meta: dict[str, Any], top: TopLevel) -> Any:
    """The value at a path, or None."""
    value = meta if path[0] == "meta" else top(path[0])
    for name in path[1:]:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def check_length(text: str, limit: int) -> None:
    """Raise RecordError for a text of more than `limit` bytes."""
    if 4 * len(text) > limit and len(text.encode()) > limit:
        raise RecordError("too_large")


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
