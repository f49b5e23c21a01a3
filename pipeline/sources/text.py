"""Read jsonl, plain text that is one document, and (`format: lines`) text of a document a line.

A typed decoder reads the common line of jsonl in one pass. A line that it refuses, or that needs
more than text and meta, is read again field by field, which finds the exact reason.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from pipeline.sources.raw_format import StreamFormat
from pipeline.sources.record import (
    START,
    BadRecord,
    Place,
    Record,
    RecordError,
    RecordRules,
    assemble_record,
    decode_text,
    fill_template,
    has_surrogate,
    make_record,
)
from pipeline.sources.streams import split_lines

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def raw_fields(line: bytes) -> dict[str, bytes]:
    """The raw JSON slice of every top-level field; the last of duplicate keys counts."""
    if not line.isascii():
        decode_text(line)
    try:
        parsed = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        return {name: bytes(raw) for name, raw in parsed.items()}
    except msgspec.ValidationError as error:
        raise RecordError(surrogates_or(line, "not_object")) from error
    except RecursionError as error:
        raise RecordError("too_deep") from error
    except msgspec.DecodeError:
        return _lenient(line)


def surrogates_or(line: bytes, reason: str) -> str:
    """`surrogate` where an escape names half a pair, else `reason`."""
    return "surrogate" if _SURROGATE_ESCAPE.search(line) else reason


def _lenient(line: bytes) -> dict[str, bytes]:
    """The same for lines that only Python's json accepts (NaN, Infinity), or the reason against."""
    text = line.decode()
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise RecordError("too_deep") from error
    except ValueError as error:
        raise RecordError(surrogates_or(line, "bad_json")) from error
    if not isinstance(value, dict):
        raise RecordError("not_object")
    if any(has_surrogate(name) for name in value):
        raise RecordError("surrogate")
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


BOM = b"\xef\xbb\xbf"
_UNREADABLE = object()
"""The value of a field whose JSON means nothing to us; it has none of the expected types."""

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
"""What JSON escapes; msgspec takes no name with it."""

_any_value = msgspec.json.Decoder().decode
_FAILURES = (msgspec.MsgspecError, ValueError, RecursionError, RecordError)


def read_by_line(
    blocks: Iterator[bytes],
    rules: RecordRules,
    start: Place | None,
    parse: Callable[[Place, bytes], Record],
    mark: bytes = b"",
) -> Iterator[Record | BadRecord]:
    """Every non-blank line as a record, good or bad, in file order.

    `start` is where the blocks begin in their file; a byte order mark `mark` at its beginning is
    taken away. `parse` makes a record of a line, or raises RecordError.
    """
    first = start or START
    ordinal = first.ordinal
    lines = split_lines(blocks, rules.max_document_bytes)
    for number, (offset, length, line) in enumerate(lines, first.line):
        if number == 1 and line is not None:
            line = line.removeprefix(mark)
        if line is not None and not line.strip():
            continue
        place = Place(ordinal, number, first.byte_offset + offset, length)
        ordinal += 1
        try:
            if line is None:
                raise RecordError("too_large")
            yield parse(place, line)
        except RecordError as problem:
            yield BadRecord(place, str(problem))


def read_jsonl(
    path: str, blocks: Iterator[bytes], rules: RecordRules, start: Place | None = None
) -> Iterator[Record | BadRecord]:
    """Every non-blank line as a record; `start` is where the first line is in its file."""
    return read_by_line(blocks, rules, start, _parser(rules), BOM)


def _parser(rules: RecordRules) -> Callable[[Place, bytes], Record]:
    """What makes a record of a line; it raises RecordError."""
    if rules.template is not None or rules.fields or rules.text_key == "meta":
        return lambda place, line: _by_field(place, line, rules)
    label = rules.source_key[0] if rules.source_key else "meta"
    if label == rules.text_key or _ESCAPED.search(rules.text_key + label):
        return lambda place, line: _by_field(place, line, rules)
    record_type = msgspec.defstruct(
        "Line",
        [
            ("text", str),
            ("meta", msgspec.Raw, msgspec.Raw()),
            *([] if label == "meta" else [("label", msgspec.Raw, msgspec.Raw())]),
        ],
        rename={"text": rules.text_key, "label": label},
        gc=False,
    )
    decode = msgspec.json.Decoder(record_type).decode

    def parse(place: Place, line: bytes) -> Record:
        try:
            fields: Any = decode(line)
            if not line.isascii():
                line.decode()
            raw = str(fields.meta, "utf-8")
            meta = _any_value(fields.meta) if raw else {}
            if not isinstance(meta, dict):
                return _by_field(place, line, rules)
            top = _nothing if label == "meta" else partial(_only, fields.label)
            return assemble_record(place, fields.text, meta, raw or None, top, rules)
        except _FAILURES:
            return _by_field(place, line, rules)

    return parse


def _nothing(name: str) -> None:
    """There is no other field."""


def _only(raw: msgspec.Raw, name: str) -> Any:
    """The value of the one field that was decoded besides text and meta."""
    return _value(bytes(raw)) if raw else None


def _by_field(place: Place, line: bytes, rules: RecordRules) -> Record:
    fields = raw_fields(line)

    def top(name: str) -> Any:
        return _value(fields[name]) if name in fields else None

    def read_text() -> str:
        if rules.text_key not in fields:
            raise RecordError("no_text")
        return _text(fields[rules.text_key])

    def read_meta() -> tuple[str | None, dict[str, Any]]:
        raw = fields.get("meta")
        meta = _parse_meta(raw)
        return None if raw is None else raw.decode(), meta

    return make_record(place, read_text, read_meta, top, rules)


def _text(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.ValidationError as error:
        raise RecordError("text_not_string") from error
    except msgspec.DecodeError as error:
        raise RecordError(surrogates_or(raw, "text_not_string")) from error


def _value(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return _UNREADABLE


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
        raise RecordError("too_deep") from error
    except ValueError as error:
        raise RecordError("bad_meta") from error
    if meta is None:
        return {}
    if not isinstance(meta, dict):
        raise RecordError("bad_meta")
    return meta


def read_whole(
    path: str, blocks: Iterator[bytes], rules: RecordRules, start: Place | None = None
) -> Iterator[Record | BadRecord]:
    """The file as one record, which an empty file is too."""
    pieces: list[bytes] = []
    length = 0
    for block in blocks:
        length += len(block)
        pieces = [] if length > rules.max_document_bytes else [*pieces, block]
    place = Place(0, 1, 0, length)
    try:
        if length > rules.max_document_bytes:
            raise RecordError("too_large")
        yield text_record(place, b"".join(pieces).removeprefix(BOM), rules)
    except RecordError as problem:
        yield BadRecord(place, str(problem))


def read_lines(
    path: str, blocks: Iterator[bytes], rules: RecordRules, start: Place | None = None
) -> Iterator[Record | BadRecord]:
    """Every non-blank line as a record; `start` is where the first line is in its file."""

    def parse(place: Place, line: bytes) -> Record:
        text = line.removesuffix(b"\r")
        return text_record(place, text.removeprefix(BOM) if place.line == 1 else text, rules)

    return read_by_line(blocks, rules, start, parse)


def text_record(
    place: Place,
    raw: bytes,
    rules: RecordRules,
    meta: dict[str, str] | None = None,
    raw_meta: str | None = None,
) -> Record:
    """A record whose only field is `text`, and whose meta the format itself gives. Raises
    RecordError."""
    text, values = decode_text(raw), meta or {}

    def top(name: str) -> str | None:
        return text if name == "text" else None

    if rules.template is not None:
        filled = fill_template(rules.template, values, top)
        return assemble_record(place, filled, values, raw_meta, top, rules)
    if rules.text_key != "text":
        raise RecordError("no_text")
    return assemble_record(place, text, values, raw_meta, top, rules)


JSONL = StreamFormat(
    name="jsonl",
    suffixes={".jsonl": 1.0, ".ndjson": 1.0},
    compressed_suffixes={".json": 1.0},
    has_fields=True,
    read=read_jsonl,
    parts="lines",
    trailing_bytes=1,
    byte_order_mark=BOM,
)
"""`.json` is lines when it is compressed (C4), and one document of any kind when it is not."""

TEXT = StreamFormat(
    name="text",
    suffixes={".txt": 1.0},
    has_fields=False,
    read=read_whole,
    parts=None,
    trailing_bytes=0,
    is_plain_text=True,
)

LINES = StreamFormat(
    name="lines",
    suffixes={},
    has_fields=False,
    read=read_lines,
    parts="lines",
    trailing_bytes=1,
    is_plain_text=True,
)
