"""What a record says of itself: the source it belongs to and its licence."""

from typing import Any

from pipeline.sources.record import RecordError
from pipeline.sources.template import field_text

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


def has_surrogate(text: str) -> bool:
    """Whether `text` holds a code point that UTF-8 cannot encode."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
