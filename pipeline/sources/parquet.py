"""Read parquet: one row a record, text from one column, meta from a `meta` column if present."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.sources.limits import Allowance
from pipeline.sources.record import BadRecord, Record
from pipeline.sources.rows import records, wanted_columns
from pipeline.sources.rules import RecordRules

_ROWS = 256
_BUFFER = 1 << 20
"""Read of a column at a time; otherwise a whole row group is held, however large it is."""
_BATCH_BYTES = 1 << 30
"""What a batch may need if every value of it is as large as its whole row group on disk says."""


def read(
    path: object, file: BinaryIO, rules: RecordRules, allowance: Allowance, first: int = 0
) -> Iterator[Record | BadRecord]:
    """Every row from `first` on as a record, good or bad. Raises InputError when it is not sound
    parquet."""
    try:
        parquet = pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
        wanted = wanted_columns(path, parquet.schema_arrow.names, rules)
        batches = _batches(parquet, wanted, allowance, first)
        yield from records(batches, rules, allowance, first)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a valid parquet file: {error}") from error


def _batches(
    parquet: pq.ParquetFile, wanted: list[str], allowance: Allowance, first: int
) -> Iterator[pa.RecordBatch]:
    if not wanted:
        yield from _no_columns(parquet.metadata.num_rows - first)
        return
    for group in range(parquet.num_row_groups):
        if first >= parquet.metadata.row_group(group).num_rows:
            first -= parquet.metadata.row_group(group).num_rows
            continue
        size = _declared(parquet, group, wanted)
        allowance.check(size)
        rows = max(1, min(_ROWS, _BATCH_BYTES // max(1, size)))
        for batch in parquet.iter_batches(batch_size=rows, row_groups=[group], columns=wanted):
            yield batch.slice(first)
            first = max(0, first - len(batch))


def _no_columns(rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows that have none of the columns asked for."""
    for first in range(0, rows, _ROWS):
        nulls = pa.nulls(min(_ROWS, rows - first))
        yield pa.RecordBatch.from_arrays([nulls], [""])


def _declared(parquet: pq.ParquetFile, group: int, wanted: list[str]) -> int:
    """Uncompressed bytes of the wanted columns in a row group. One value in its dictionary may be
    as large, and stand in every row."""
    metadata = parquet.metadata.row_group(group)
    columns = (metadata.column(index) for index in range(metadata.num_columns))
    return sum(
        column.total_uncompressed_size
        for column in columns
        if column.path_in_schema.partition(".")[0] in wanted
    )
