"""Rows of Arrow batches as records: text from one column or a template, meta from `meta`."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipeline.core.errors import InputError
from pipeline.sources.assemble import assemble_record, check_length, fill_template
from pipeline.sources.limits import Allowance
from pipeline.sources.record import BadRecord, Place, Record, RecordError
from pipeline.sources.rules import RecordRules


def wanted_columns(path: object, names: Sequence[str], rules: RecordRules) -> list[str]:
    """The columns that the rules ask for, of those there are. Raises InputError for one that is
    there twice."""
    asked = {field.path[0] for field in rules.fields if field.path}
    asked |= {piece[0] for piece in rules.template or () if isinstance(piece, tuple)}
    asked |= {rules.source_key[0]} if rules.source_key else set()
    asked |= {"meta"} if rules.template else {"meta", rules.text_key}
    twice = sorted(name for name in asked if names.count(name) > 1)
    if twice:
        raise InputError(f"{path}: two columns named {twice[0]!r}; expected one")
    return [name for name in names if name in asked]


def records(
    batches: Iterator[pa.RecordBatch], rules: RecordRules, allowance: Allowance, row: int = 0
) -> Iterator[Record | BadRecord]:
    """A record, good or bad, for each row of the batches, of which `row` is the first."""
    for batch in batches:
        columns = {n: _column(c) for n, c in zip(batch.schema.names, batch.columns, strict=True)}
        for index in range(len(batch)):
            place = Place(row, 0, row, 0)
            row += 1
            try:
                record = _record(place, index, columns, rules)
            except RecordError as refused:
                yield BadRecord(place, str(refused))
            else:
                allowance.use(len(record.text) + len(record.meta))
                yield record


def _column(column: pa.Array) -> pa.Array:
    """Timestamps in units that Python has; anything else as it is."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    return column


def _record(place: Place, index: int, columns: dict[str, pa.Array], rules: RecordRules) -> Record:
    def top(name: str) -> Any:
        return columns[name][index].as_py() if name in columns else None

    if rules.template is None:
        if rules.text_key not in columns:
            raise RecordError("no_text")
        text = _text(columns[rules.text_key][index])
        check_length(text, rules.max_document_bytes)
        raw, meta = _meta(columns, index)
    else:
        raw, meta = _meta(columns, index)
        text = fill_template(rules.template, meta, top)
        check_length(text, rules.max_document_bytes)
    return assemble_record(place, text, meta, raw, top, rules)


def _text(cell: pa.Scalar) -> str:
    value = cell.as_py() if cell.is_valid else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise RecordError("not_utf8") from error
    if not isinstance(value, str):
        raise RecordError("text_not_string")
    return value


def _meta(columns: dict[str, pa.Array], index: int) -> tuple[str | None, dict[str, Any]]:
    """(JSON text, parsed): a string column holds JSON already, a struct is written as JSON; text is
    None where there is no such column."""
    if "meta" not in columns:
        return None, {}
    cell = columns["meta"][index]
    value = cell.as_py() if cell.is_valid else None
    if value is None:
        return "{}", {}
    try:
        raw = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        meta = json.loads(raw)
    except RecursionError as error:
        raise RecordError("too_deep") from error
    except (ValueError, TypeError) as error:
        raise RecordError("bad_meta") from error
    if not isinstance(meta, dict):
        raise RecordError("bad_meta")
    return raw, meta
