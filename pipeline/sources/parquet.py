"""Read parquet: one row a record, text from one column, meta from a `meta` column if present."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.sources.jsonl import RecordRules, Refused, licence_field, source_label
from pipeline.sources.record import BadRecord, Place, Record

_ROWS = 256


def read(path: Path, file: io.BufferedReader, rules: RecordRules) -> Iterator[Record | BadRecord]:
    """Every row as a record, good or bad. Raises InputError when it is not sound parquet."""
    try:
        parquet = pq.ParquetFile(file)
        names = parquet.schema_arrow.names
        if names.count(rules.text_key) > 1:
            raise InputError(f"{path}: two columns named {rules.text_key!r}; expected one")
        wanted = [name for name in (rules.text_key, "meta") if name in names]
        yield from _rows(parquet, wanted, rules)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a sound parquet file: {error}") from error


def _rows(
    parquet: pq.ParquetFile, wanted: list[str], rules: RecordRules
) -> Iterator[Record | BadRecord]:
    row = 0
    if rules.text_key not in wanted:
        for row in range(parquet.metadata.num_rows):
            yield BadRecord(Place(row, 0, row, 0), "no_text")
        return
    for batch in parquet.iter_batches(batch_size=_ROWS, columns=wanted):
        texts = batch.column(rules.text_key)
        metas = batch.column("meta") if "meta" in wanted else None
        for index in range(len(batch)):
            place = Place(row, 0, row, 0)
            row += 1
            try:
                yield _record(
                    place, texts[index], metas[index] if metas is not None else None, rules
                )
            except Refused as refused:
                yield BadRecord(place, str(refused))


def _record(
    place: Place, cell: pa.Scalar, meta_cell: pa.Scalar | None, rules: RecordRules
) -> Record:
    text = _text(cell)
    limit = rules.max_document_bytes
    if 4 * len(text) > limit and len(text.encode()) > limit:
        raise Refused("too_large")
    raw, meta = _meta(meta_cell)
    source = source_label(meta, meta_cell is not None, rules.sources)
    return Record(place, text, source, raw, licence_field(meta))


def _text(cell: pa.Scalar) -> str:
    value = cell.as_py() if cell.is_valid else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise Refused("not_utf8") from error
    if not isinstance(value, str):
        raise Refused("text_not_string")
    return value


def _meta(cell: pa.Scalar | None) -> tuple[str, dict[str, Any]]:
    """(JSON text, parsed): a string column holds JSON already, a struct is written as JSON."""
    value = cell.as_py() if cell is not None and cell.is_valid else None
    if value is None:
        return "{}", {}
    try:
        raw = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        meta = json.loads(raw)
    except (ValueError, TypeError) as error:
        raise Refused("bad_meta") from error
    if not isinstance(meta, dict):
        raise Refused("bad_meta")
    return raw, meta
