"""What every reader yields: a good record, or a bad one with the reason it was refused."""

from dataclasses import dataclass
from datetime import datetime

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


@dataclass(frozen=True, slots=True)
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
}
