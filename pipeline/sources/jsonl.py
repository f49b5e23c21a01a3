"""Read jsonl, plain or compressed: one JSON object a line with a text field and optional meta."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.sources.record import BadRecord, Place, Record
from pipeline.sources.streams import lines

SOURCE_KEYS = ("pile_set_name", "redpajama_set_name")
LICENCE_KEYS = ("license", "licence", "license_expression")
_BOM = b"\xef\xbb\xbf"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class RecordRules:
    """How a record becomes a document: the text field, the size limit and the allowed source
    labels.
    """

    text_key: str
    max_document_bytes: int
    sources: tuple[str, ...] | None


class Refused(Exception):
    """A record is bad; the message is its reason word."""


def read(blocks: Iterator[bytes], rules: RecordRules) -> Iterator[Record | BadRecord]:
    """Every non-blank line as a record, good or bad, in file order."""
    ordinal = 0
    for number, (offset, length, line) in enumerate(lines(blocks, rules.max_document_bytes), 1):
        if number == 1 and line is not None and line.startswith(_BOM):
            line = line[len(_BOM) :]
        if line is not None and not line.strip():
            continue
        place = Place(ordinal, number, offset, length)
        ordinal += 1
        try:
            if line is None:
                raise Refused("too_large")
            yield _record(place, line, rules)
        except Refused as refused:
            yield BadRecord(place, str(refused))


def _record(place: Place, line: bytes, rules: RecordRules) -> Record:
    fields = _fields(line)
    if rules.text_key not in fields:
        raise Refused("no_text")
    text = _text(fields[rules.text_key])
    raw_meta = fields.get("meta")
    meta = _parse_meta(raw_meta)
    source = source_label(meta, raw_meta is not None, rules.sources)
    raw = "{}" if raw_meta is None else raw_meta.decode()
    return Record(place, text, source, raw, licence_field(meta))


def _fields(line: bytes) -> dict[str, bytes]:
    """The raw JSON slice of every top-level field; the last of duplicate keys counts."""
    if not line.isascii():
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise Refused("not_utf8") from error
    try:
        parsed = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        return {name: bytes(raw) for name, raw in parsed.items()}
    except msgspec.ValidationError as error:
        raise Refused(_surrogates_or(line, "not_object")) from error
    except RecursionError as error:
        raise Refused("too_deep") from error
    except msgspec.DecodeError:
        return _fields_lenient(line)


def _fields_lenient(line: bytes) -> dict[str, bytes]:
    """The same for lines that only Python's json accepts (NaN, Infinity), or the reason against."""
    text = line.decode()
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise Refused("too_deep") from error
    except ValueError as error:
        raise Refused(_surrogates_or(line, "bad_json")) from error
    if not isinstance(value, dict):
        raise Refused("not_object")
    if any(has_surrogate(name) for name in value):
        raise Refused("surrogate")
    return {name: raw.encode() for name, raw in _raw_slices(text)}


def _raw_slices(text: str) -> Iterator[tuple[str, str]]:
    """(key, raw value) of each member of the JSON object `text`, which is known to be valid."""
    decoder = json.JSONDecoder()
    position = text.index("{") + 1
    while True:
        position = _skip_space(text, position)
        if text[position] == "}":
            return
        key, position = decoder.raw_decode(text, position)
        position = _skip_space(text, _skip_space(text, position) + 1)
        _, end = decoder.raw_decode(text, position)
        yield key, text[position:end]
        position = _skip_space(text, end)
        position += text[position] == ","


def _skip_space(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _surrogates_or(line: bytes, reason: str) -> str:
    return "surrogate" if _SURROGATE_ESCAPE.search(line) else reason


def _text(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.ValidationError as error:
        raise Refused("text_not_string") from error
    except msgspec.DecodeError as error:
        raise Refused(_surrogates_or(raw, "text_not_string")) from error


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("overflow")
    return value


def _parse_meta(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        return {}
    try:
        meta = json.loads(raw, parse_float=_finite)
    except RecursionError as error:
        raise Refused("too_deep") from error
    except ValueError as error:
        raise Refused("bad_meta") from error
    if meta is None:
        return {}
    if not isinstance(meta, dict):
        raise Refused("bad_meta")
    return meta


def source_label(
    meta: dict[str, Any], has_meta: bool, allowed: tuple[str, ...] | None
) -> str | None:
    """The source a record names, or None. Raises when it is not a string or not allowed."""
    label = next((meta[key] for key in SOURCE_KEYS if key in meta), None)
    if label is not None and not isinstance(label, str):
        raise Refused("bad_meta")
    if (
        allowed is not None
        and label not in allowed
        and (label is not None or not has_meta or not meta)
    ):
        raise Refused("unknown_source")
    if label is not None and has_surrogate(label):
        raise Refused("surrogate")
    return label


def has_surrogate(text: str) -> bool:
    """Whether `text` holds a code point that UTF-8 cannot encode."""
    return not text.isascii() and any(0xD800 <= ord(c) < 0xE000 for c in text)


def licence_field(meta: dict[str, Any]) -> str:
    """What the record itself says of its licence; empty when it says nothing."""
    value = next((meta[key] for key in LICENCE_KEYS if key in meta), "")
    return value if isinstance(value, str) and not has_surrogate(value) else ""
