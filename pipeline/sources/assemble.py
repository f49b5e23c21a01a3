"""One record put together from its fields, whatever the format they were read from."""

from collections.abc import Callable
from typing import Any

from pipeline.sources.labels import chosen_label, has_surrogate, licence_field, source_label
from pipeline.sources.record import FieldValue, Place, Record, RecordError
from pipeline.sources.rules import RecordRules
from pipeline.sources.template import Path, Template, field_text
from pipeline.sources.typed import check_type

TopLevel = Callable[[str], Any]
"""The value of a top-level field other than `meta`; None when it is missing or null."""


def assemble_record(
    place: Place, text: str, meta: dict[str, Any], raw_meta: str | None, top: TopLevel,
    rules: RecordRules,
) -> Record:  # fmt: skip
    """The record with its source label, licence and typed columns. Raises RecordError."""
    if rules.source_key is None:
        source = source_label(meta, raw_meta is not None, rules.sources)
    else:
        source = chosen_label(look_up(rules.source_key, meta, top), rules.sources)
    fields = typed_values(rules, meta, top) if rules.fields else ()
    return Record(place, text, source, raw_meta or "{}", licence_field(meta), fields)


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
