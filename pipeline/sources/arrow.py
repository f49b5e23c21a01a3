"""Read Arrow IPC files (.arrow, .feather) and streams, which HF `datasets` saves: one row a record.

Every batch is validated in full before a value of it is touched, since offsets that lie would read
memory that is not the file's.
"""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from pipeline.core.errors import InputError
from pipeline.sources.limits import Allowance
from pipeline.sources.record import BadRecord, Record
from pipeline.sources.rows import records, wanted_columns
from pipeline.sources.rules import RecordRules

_FILE_MAGIC = b"ARROW1"
_FEATHER_V1 = b"FEA1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def read(
    path: object, file: BinaryIO, location: str | None, rules: RecordRules, allowance: Allowance,
    first: int = 0,
) -> Iterator[Record | BadRecord]:  # fmt: skip
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
        found = _file(path, source, rules) if head == _FILE_MAGIC else _stream(path, source, rules)
        yield from records(_validated(found, first), rules, allowance, first)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a valid Arrow file: {error}") from error


def batches(source: BinaryIO) -> tuple[pa.Schema, Iterator[pa.RecordBatch], bool]:
    """Schema and sound batches with all columns of an Arrow file or stream, and whether it is a
    file. Raises what pyarrow raises."""
    is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
    source.seek(0)
    if not is_file:
        stream = pa.ipc.open_stream(source)
        return stream.schema, _validated(iter(stream), 0), False
    reader = pa.ipc.open_file(source)
    found = (reader.get_batch(index) for index in range(reader.num_record_batches))
    return reader.schema, _validated(found, 0), True


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


def _file(path: object, source: pa.NativeFile, rules: RecordRules) -> Iterator[pa.RecordBatch]:
    schema = pa.ipc.open_file(source).schema
    reader = pa.ipc.open_file(source, options=_options(path, schema, rules))
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _stream(path: object, source: pa.NativeFile, rules: RecordRules) -> Iterator[pa.RecordBatch]:
    schema = pa.ipc.open_stream(source).schema
    source.seek(0)
    reader = pa.ipc.open_stream(source, options=_options(path, schema, rules))
    yield from reader


def _options(path: object, schema: pa.Schema, rules: RecordRules) -> pa.ipc.IpcReadOptions:
    wanted = wanted_columns(path, schema.names, rules)
    chosen = [schema.get_field_index(name) for name in wanted]
    return pa.ipc.IpcReadOptions(included_fields=chosen or None)


def _validated(batches: Iterator[pa.RecordBatch], first: int) -> Iterator[pa.RecordBatch]:
    """The rows from `first` on."""
    for batch in batches:
        if first < len(batch):
            batch.validate(full=True)
            yield batch.slice(first)
        first = max(0, first - len(batch))
