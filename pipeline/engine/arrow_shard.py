"""An Arrow shard, mapped, of which parts are read: rows of columns, as bytes of its file.

Where the file has hashes of its blocks (`pipeline.engine.blocks`) these bytes alone are verified,
level by level: offsets of texts and lists first, then what they point to.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from dedup.arrays import I64, U8
from pipeline.engine.blocks import BlockFile

_MESSAGE = struct.Struct("<qi4xq")
"""Where a message begins, the bytes of its metadata and of its body (Block in Arrow's File.fbs)."""
_DICTIONARIES, _BATCHES = 2, 3
"""Fields of the footer (Footer in File.fbs)."""

_SEARCHED = 1 << 20
"""Bytes of a column that are read at once rather than searched: what one request brings."""

_Rows = tuple[pa.Array, I64, I64]
"""Ranges [first, stop) of the rows of an array."""

_Texts = tuple[npt.NDArray[np.signedinteger], U8, int, int]
"""Where the texts of an array begin and end, their bytes, and the addresses of both."""


class ArrowShard:
    """A table in a mapped file. With `blocks` what is read is verified; without, all of it was."""

    def __init__(self, table: pa.Table, blocks: BlockFile | None = None) -> None:
        self._table = table
        self._blocks = blocks
        self._texts: dict[str, tuple[list[int], list[_Texts]]] = {}

    def __len__(self) -> int:
        return len(self._table)

    @property
    def column_names(self) -> list[str]:
        """The names of all columns."""
        names: list[str] = self._table.column_names
        return names

    @property
    def empty(self) -> pa.Table:
        """The table without its rows."""
        return self._table.slice(0, 0)

    def read(
        self, columns: Sequence[str] | None = None, first: int = 0, stop: int | None = None
    ) -> pa.Table:
        """Rows [first, stop) of these columns, without a copy."""
        table = self._table if columns is None else self._table.select(columns)
        if columns is None and self._blocks is not None:
            self._blocks.read_in_order()
        table = table.slice(first, None if stop is None else stop - first)
        if self._blocks is not None and (self._blocks.is_advised or not self._blocks.is_verified):
            self._verify(_all_rows(chunk) for column in table.columns for chunk in column.chunks)
        return table

    def text(self, column: str, row: int) -> U8:
        """The UTF-8 bytes of one text of a column, (bytes,) uint8, without a copy; of a null none.
        Single texts come several times as fast as by `read`."""
        if column not in self._texts:
            chunks = self._table[column].chunks
            bases = [*accumulate((len(chunk) for chunk in chunks), initial=0)]
            self._texts[column] = bases, [_view_texts(chunk) for chunk in chunks]
        bases, parts = self._texts[column]
        chunk = bisect_right(bases, row) - 1
        ends, data, ends_address, data_address = parts[chunk]
        place = row - bases[chunk]
        if self._blocks is not None:
            at = ends_address + place * ends.itemsize
            self._blocks.verify_span(at, at + 2 * ends.itemsize)
        begin, end = int(ends[place]), int(ends[place + 1])
        if self._blocks is not None:
            self._blocks.verify_span(data_address + begin, data_address + end)
        return data[begin:end]

    def take(self, columns: Sequence[str], rows: npt.NDArray[np.integer]) -> pa.Table:
        """These rows, in this order, copied; batch by batch, as Arrow joins all batches before it
        takes texts of one."""
        table, row_N = self._table.select(columns), rows.astype(np.int64)
        self._verify(part for column in table.columns for part in _single_rows(column, row_N))
        order = np.argsort(row_N, kind="stable")
        taken, base = [table.slice(0, 0)], 0
        for batch in table.to_batches():
            low, high = np.searchsorted(row_N, (base, base + len(batch)), sorter=order)
            here = pa.array(row_N[order[low:high]] - base)
            taken.append(pa.Table.from_batches([batch.take(here)]))
            base += len(batch)
        found = pa.concat_tables(taken).combine_chunks()
        if np.array_equal(order, np.arange(len(order))):
            return found
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return found.take(pa.array(place))

    def find(
        self, column: str, low: int, high: int, first: int = 0, stop: int | None = None
    ) -> tuple[int, int]:
        """Of rows [first, stop), which ascend by a column of whole numbers, the range of those with
        numbers in [low, high). Of a long column little more is read than where these begin and end.
        """
        stop = len(self) if stop is None else stop
        kind = self._table.schema.field(column).type
        starts = range(first, stop)[:: _SEARCHED * 8 // kind.bit_width]
        below, above = (
            bisect_left(starts[1:], number, key=partial(self._read_number, column))
            for number in (low, high)
        )
        ends = [*starts, stop]
        begin, end = ends[below], ends[min(above + 1, len(starts))]
        numbers = self.read([column], begin, end)[column].to_numpy()
        return begin + _count_below(numbers, low), begin + _count_below(numbers, high)

    def _read_number(self, column: str, row: int) -> int:
        value: int = self.read([column], row, row + 1)[column][0].as_py()
        return value

    def lengths(self, column: str, first: int = 0, stop: int | None = None) -> I64:
        """The length of every list in rows [first, stop) of a column, (N,); what is in the lists is
        not read."""
        rows = self._table[column].slice(first, None if stop is None else stop - first)
        chunks = [chunk for chunk in rows.chunks if len(chunk)]
        self._verify_own([_all_rows(chunk) for chunk in chunks])
        parts = [np.diff(chunk.offsets.to_numpy()) for chunk in chunks]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _verify(self, rows: Iterable[_Rows]) -> None:
        level = [part for part in rows if len(part[1])]
        while level and self._blocks is not None:
            self._verify_own(level)
            level = [inner for part in level for inner in _find_inner(*part) if len(inner[1])]

    def _verify_own(self, level: list[_Rows]) -> None:
        """Verify what these arrays themselves hold of their rows."""
        spans = [span for part in level for span in _find_spans(*part)]
        if spans and self._blocks is not None:
            starts, stops = (np.concatenate(ends) for ends in zip(*spans, strict=True))
            self._blocks.verify(starts, stops)


def _count_below(numbers: npt.NDArray[Any], number: int) -> int:
    """How many of these, which ascend, are smaller than a number."""
    if number > _largest(numbers.dtype):
        return len(numbers)
    return int(np.searchsorted(numbers, numbers.dtype.type(number)))


@lru_cache
def _largest(kind: np.dtype[np.integer]) -> int:
    return int(np.iinfo(kind).max)


def map_table(path: Path) -> pa.Table:
    """An Arrow IPC file of which all was verified."""
    # As one buffer: a file would be read by another thread, which takes longer than all else here.
    return pa.ipc.open_file(pa.memory_map(str(path)).read_buffer()).read_all()


def map_blocks(blocks: BlockFile) -> pa.Table:
    """An Arrow IPC file of which no more than metadata and dictionaries is verified."""
    start_N, stop_N = _find_metadata(bytes(blocks.footer))
    blocks.verify(start_N + blocks.buffer.address, stop_N + blocks.buffer.address)
    return pa.ipc.open_file(blocks.buffer).read_all()


@lru_cache(1 << 12)
def _find_metadata(footer: bytes) -> tuple[I64, I64]:
    """The bytes [start, stop) of dictionaries, and of the metadata of record batches."""
    spans = [
        (start, start + metadata + body)
        for start, metadata, body in _find_messages(footer, _DICTIONARIES)
    ]
    spans += [(start, start + metadata) for start, metadata, _ in _find_messages(footer, _BATCHES)]
    start_N, stop_N = np.array(spans, np.int64).reshape(-1, 2).T
    return start_N, stop_N


def _find_messages(footer: bytes, field: int) -> list[tuple[int, int, int]]:
    """The messages that a field of the footer lists. It is a table of flatbuffers."""

    def read(form: str, at: int) -> int:
        value: int = struct.unpack_from(form, footer, at)[0]
        return value

    table = read("<I", 0)
    fields = table - read("<i", table)
    place = 4 + 2 * field
    offset = read("<H", fields + place) if place < read("<H", fields) else 0
    if not offset:
        return []
    vector = table + offset + read("<I", table + offset)
    messages = footer[vector + 4 :][: read("<I", vector) * _MESSAGE.size]
    return [(start, metadata, body) for start, metadata, body in _MESSAGE.iter_unpack(messages)]


def _view_texts(array: pa.Array) -> _Texts:
    data = array.buffers()[2] or pa.py_buffer(b"")
    ends = _view_offsets(array)[array.offset :]
    return ends, np.frombuffer(data, np.uint8), ends.ctypes.data, data.address


def _view_offsets(array: pa.Array) -> npt.NDArray[np.signedinteger]:
    """Where the lists or texts of an array begin and end, those before its first row included."""
    return np.frombuffer(array.buffers()[1], f"i{_offset_width(array.type)}")


def _all_rows(array: pa.Array) -> _Rows:
    count = min(1, len(array))
    return array, np.zeros(count, np.int64), np.full(count, len(array))


def _single_rows(column: pa.ChunkedArray, rows: I64) -> Iterator[_Rows]:
    base = 0
    for chunk in column.chunks:
        here = rows[(rows >= base) & (rows < base + len(chunk))] - base
        yield chunk, here, here + 1
        base += len(chunk)


def _find_spans(array: pa.Array, first: I64, stop: I64) -> Iterator[tuple[I64, I64]]:
    """Addresses [start, stop) of what the array itself holds of these rows: of lists and texts
    where each begins; of kinds that no stage writes all of it."""
    buffers, kind = array.buffers(), array.type
    first, stop = first + array.offset, stop + array.offset
    if (validity := buffers[0]) is not None:
        yield validity.address + first // 8, validity.address + (stop + 7) // 8
    if width := _offset_width(kind):
        yield buffers[1].address + first * width, buffers[1].address + (stop + 1) * width
    elif kinds.is_dictionary(kind) or kinds.is_primitive(kind) or kinds.is_fixed_size_binary(kind):
        bits = kind.index_type.bit_width if kinds.is_dictionary(kind) else kind.bit_width
        yield buffers[1].address + first * bits // 8, buffers[1].address + (stop * bits + 7) // 8
    elif not kinds.is_fixed_size_list(kind):
        whole = [buffer for buffer in buffers if buffer is not None]
        starts = np.array([buffer.address for buffer in whole], np.int64)
        yield starts, starts + np.array([buffer.size for buffer in whole], np.int64)


def _find_inner(array: pa.Array, first: I64, stop: I64) -> Iterator[_Rows]:
    """What these rows consist of, in arrays of their own."""
    kind = array.type
    first, stop = first + array.offset, stop + array.offset
    if kinds.is_fixed_size_list(kind):
        yield array.values, first * kind.list_size, stop * kind.list_size
    elif _offset_width(kind):
        ends = _view_offsets(array)
        if kinds.is_list(kind) or kinds.is_large_list(kind):
            inner = array.values
        else:
            bytes_ = array.buffers()[2] or pa.py_buffer(b"")
            inner = pa.Array.from_buffers(pa.uint8(), bytes_.size, [None, bytes_])
        begin, end = ends[first].astype(np.int64), ends[stop].astype(np.int64)
        yield inner, begin[begin < end], end[begin < end]


def _offset_width(kind: pa.DataType) -> int:
    """Bytes of one offset in an array of lists or texts; 0 for an array of something else."""
    if kinds.is_list(kind) or kinds.is_string(kind) or kinds.is_binary(kind):
        return 4
    is_large = kinds.is_large_list(kind) or kinds.is_large_string(kind)
    return 8 if is_large or kinds.is_large_binary(kind) else 0
