"""Rows of large lists and texts copied in any order: what pyarrow's `take` does, several times as
fast, from one shard after the other.

Shapes: N rows of a column, M rows wanted of it; a row may be wanted any number of times.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.arrays import I64, U8
from dedup.compiled import kernel


@dataclass(frozen=True)
class ByteRows:
    """A list or text column without nulls as bytes: where each row starts and ends, (N,)."""

    data: U8
    starts: I64
    ends: I64


def byte_rows(column: pa.Array) -> ByteRows:
    """A large_list of numbers, a large_string or a large_binary array; its bytes are not copied."""
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset :][: len(column) + 1]
    if pa.types.is_large_list(column.type):
        width = column.type.value_type.bit_width // 8
        offsets = (offsets + column.values.offset) * width
        data = column.values.buffers()[1]
    else:
        data = column.buffers()[2]
    flat = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return ByteRows(flat, offsets[:-1], offsets[1:])


class ListRows:
    """A column of M rows that is filled piece by piece."""

    def __init__(self, kind: pa.DataType, byte_lengths_M: I64) -> None:
        self._kind = kind
        self._offsets = np.concatenate([[0], np.cumsum(byte_lengths_M)]).astype(np.int64)
        self._data = np.empty(int(self._offsets[-1]), np.uint8)

    def fill(self, places: I64, column: pa.Array, rows: I64) -> None:
        """Put these rows of a column at these places of this one, (K,) each."""
        source = byte_rows(column)
        starts, ends = source.starts[rows], source.ends[rows]
        _copy(source.data, starts, ends, self._data, self._offsets[places])

    def array(self) -> pa.Array:
        """The column, when all of it is filled."""
        data = pa.py_buffer(self._data)
        if not pa.types.is_large_list(self._kind):
            buffers: list[Any] = [None, pa.py_buffer(self._offsets), data]
            return pa.Array.from_buffers(self._kind, len(self._offsets) - 1, buffers)
        width = self._kind.value_type.bit_width // 8
        values = pa.Array.from_buffers(
            self._kind.value_type, len(self._data) // width, [None, data]
        )
        return pa.LargeListArray.from_arrays(pa.array(self._offsets // width), values)


def byte_lengths_of(column: pa.ChunkedArray) -> I64:
    """The bytes of every row, (N,)."""
    found = [byte_rows(chunk) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, np.int64), *(rows.ends - rows.starts for rows in found)])


def take_rows(column: pa.ChunkedArray, order_M: I64) -> pa.Array:
    """The rows of a column in another order."""
    taken = ListRows(column.type, byte_lengths_of(column)[order_M])
    places = np.argsort(order_M, kind="stable")
    starts = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])
    cuts = np.searchsorted(order_M, starts, sorter=places)
    for number, chunk in enumerate(column.chunks):
        mine = places[cuts[number] : cuts[number + 1]]
        taken.fill(mine, chunk, order_M[mine] - starts[number])
    return taken.array()


@kernel
def _copy(source: U8, starts: I64, ends: I64, target: U8, to: I64) -> None:
    """source[starts[k]:ends[k]] -> target[to[k]:]; all inside their arrays, starts, ends and to of
    one length."""
    for k in range(len(starts)):
        first, place = starts[k], to[k]
        for i in range(ends[k] - first):
            target[place + i] = source[first + i]
