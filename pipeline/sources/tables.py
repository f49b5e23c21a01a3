"""Read parquet, and Arrow IPC files (.arrow, .feather) and streams, which HF `datasets` saves: one
row a record, text from one column or a template, meta from a `meta` column if there is one.

Every Arrow batch is validated in full before a value of it is touched, since offsets that lie would
read memory that is not the file's.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.sources.raw_format import RowFormat
from pipeline.sources.record import (
    BadRecord,
    Place,
    Record,
    RecordError,
    RecordRules,
    decode_text,
    make_record,
)
from pipeline.sources.streams import Allowance


def list_needed_columns(path: object, names: Sequence[str], rules: RecordRules) -> list[str]:
    """The columns that the rules ask for, of those there are. Raises InputError for one that is
    there twice."""
    fields = {field.path[0] for field in rules.fields if field.path}
    fields |= {piece[0] for piece in rules.template or () if isinstance(piece, tuple)}
    fields |= {rules.source_key[0]} if rules.source_key else set()
    fields |= {"meta"} if rules.template else {"meta", rules.text_key}
    twice = sorted(name for name in fields if names.count(name) > 1)
    if twice:
        raise InputError(f"{path}: two columns named {twice[0]!r}; expected one")
    return [name for name in names if name in fields]


def read_batch_records(
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

    def read_text() -> str:
        if rules.text_key not in columns:
            raise RecordError("no_text")
        return _text(columns[rules.text_key][index])

    return make_record(place, read_text, partial(_meta, columns, index), top, rules)


def _text(cell: pa.Scalar) -> str:
    value = cell.as_py() if cell.is_valid else None
    if isinstance(value, bytes):
        return decode_text(value)
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


_ROWS = 256
_BUFFER = 1 << 20
"""Read of a column at a time; otherwise a whole row group is held, however large it is."""
_BATCH_BYTES = 1 << 30
"""What a batch may need if every value of it is as large as its whole row group on disk says."""


def read_parquet(
    path: object,
    file: BinaryIO,
    location: str | None,
    rules: RecordRules,
    allowance: Allowance,
    first: int = 0,
) -> Iterator[Record | BadRecord]:
    """Every row from `first` on as a record, good or bad. Raises InputError when it is not sound
    parquet."""
    with _as_input_error(path):
        # Behind a URL, where row groups were found to be small, each is one request or a few.
        whole_groups = getattr(file, "reads_exactly", False)
        parquet = pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=whole_groups)
        columns = list_needed_columns(path, parquet.schema_arrow.names, rules)
        batches = _batches(parquet, columns, allowance, first)
        yield from read_batch_records(batches, rules, allowance, first)


@contextmanager
def _as_input_error(path: object) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a valid parquet file: {error}") from error


def _measure_groups(path: str, file: BinaryIO, rules: RecordRules) -> int:
    """Of parquet: a row is found by reading its row group."""
    with _as_input_error(path):
        parquet = pq.ParquetFile(file, pre_buffer=False)
        columns = list_needed_columns(path, parquet.schema_arrow.names, rules)
        groups = range(parquet.num_row_groups)
        return max((_sum_declared(parquet, group, columns) for group in groups), default=0)


def _batches(
    parquet: pq.ParquetFile, columns: list[str], allowance: Allowance, first: int
) -> Iterator[pa.RecordBatch]:
    if not columns:
        yield from _no_columns(parquet.metadata.num_rows - first)
        return
    for group in range(parquet.num_row_groups):
        if first >= parquet.metadata.row_group(group).num_rows:
            first -= parquet.metadata.row_group(group).num_rows
            continue
        size = _sum_declared(parquet, group, columns)
        allowance.check(size)
        rows = max(1, min(_ROWS, _BATCH_BYTES // max(1, size)))
        for batch in parquet.iter_batches(batch_size=rows, row_groups=[group], columns=columns):
            yield batch.slice(first)
            first = max(0, first - len(batch))


def _no_columns(rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows that have none of the columns asked for."""
    for first in range(0, rows, _ROWS):
        nulls = pa.nulls(min(_ROWS, rows - first))
        yield pa.RecordBatch.from_arrays([nulls], [""])


def _sum_declared(parquet: pq.ParquetFile, group: int, names: list[str]) -> int:
    """Uncompressed bytes of the wanted columns in a row group. One value in its dictionary may be
    as large, and stand in every row."""
    metadata = parquet.metadata.row_group(group)
    columns = (metadata.column(index) for index in range(metadata.num_columns))
    return sum(
        column.total_uncompressed_size
        for column in columns
        if column.path_in_schema.partition(".")[0] in names
    )


_FILE_MAGIC = b"ARROW1"
_FEATHER_V1 = b"FEA1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def read_arrow(
    path: object,
    file: BinaryIO,
    location: str | None,
    rules: RecordRules,
    allowance: Allowance,
    first: int = 0,
) -> Iterator[Record | BadRecord]:
    """Every row from `first` on as a record, good or bad; mapped into memory when it is a file at
    `location`.

    Raises InputError when it is not sound Arrow.
    """
    head = file.read(len(_FILE_MAGIC))
    if not head:
        return
    if head != _FILE_MAGIC:
        _check_stream(path, head, file)
    file.seek(0)
    try:
        source = pa.PythonFile(file, "r") if location is None else pa.memory_map(location)
        batches = _open_arrow(path, source, rules, head == _FILE_MAGIC)
        yield from read_batch_records(_validated(batches, first), rules, allowance, first)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a valid Arrow file: {error}") from error


def _check_stream(path: object, head: bytes, file: BinaryIO) -> None:
    """A stream without its end marker may have lost batches, and nothing else would tell."""
    if head.startswith(_FEATHER_V1):
        raise InputError(
            f"{path}: Feather version 1, which is not supported; write it again as Arrow IPC"
        )
    file.seek(0, 2)
    file.seek(max(0, file.tell() - len(_END_OF_STREAM)))
    if file.read() != _END_OF_STREAM:
        raise InputError(
            f"{path}: neither an Arrow file nor a complete Arrow stream; it may be cut off"
        )


def _open_arrow(
    path: object, source: pa.NativeFile, rules: RecordRules, is_file: bool
) -> Iterator[pa.RecordBatch]:
    open_reader = pa.ipc.open_file if is_file else pa.ipc.open_stream
    schema = open_reader(source).schema
    source.seek(0)
    names = list_needed_columns(path, schema.names, rules)
    chosen = [schema.get_field_index(name) for name in names]
    options = pa.ipc.IpcReadOptions(included_fields=chosen or None)
    return _read_batches(open_reader(source, options=options))


def _read_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """All batches of an Arrow file or stream."""
    if isinstance(reader, pa.RecordBatchFileReader):
        return (reader.get_batch(index) for index in range(reader.num_record_batches))
    return iter(reader)


def _validated(batches: Iterator[pa.RecordBatch], first: int) -> Iterator[pa.RecordBatch]:
    """The rows from `first` on."""
    for batch in batches:
        if first < len(batch):
            batch.validate(full=True)
            yield batch.slice(first)
        first = max(0, first - len(batch))


def _copy_parquet(file: BinaryIO, sink: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch], Any]:
    parquet = pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
    schema = parquet.schema_arrow
    writer = pq.ParquetWriter(sink, schema, compression="zstd")
    return schema, parquet.iter_batches(batch_size=_ROWS), writer


def _copy_arrow(file: BinaryIO, sink: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch], Any]:
    is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
    file.seek(0)
    reader = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
    writer = pa.ipc.new_file if is_file else pa.ipc.new_stream
    return reader.schema, _validated(_read_batches(reader), 0), writer(sink, reader.schema)


PARQUET = RowFormat(
    name="parquet",
    suffixes={".parquet": 3.0},
    has_fields=True,
    read=read_parquet,
    copy=_copy_parquet,
    distance=_measure_groups,
)
ARROW = RowFormat(
    name="arrow",
    suffixes={".arrow": 1.0, ".feather": 1.5},
    has_fields=True,
    read=read_arrow,
    copy=_copy_arrow,
)
