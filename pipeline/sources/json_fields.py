"""The fields of one JSON line as raw slices, or the exact reason why it has none."""

import json
import re
from collections.abc import Iterator

import msgspec

from pipeline.sources.labels import has_surrogate
from pipeline.sources.record import RecordError

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def raw_fields(line: bytes) -> dict[str, bytes]:
    """The raw JSON slice of every top-level field; the last of duplicate keys counts."""
    if not line.isascii():
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise RecordError("not_utf8") from error
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
