"""How whole documents become rows of at most S tokens (docs/packing.md): `fold` cuts them into
segments, `first_fit` and `greedy` choose a row for each, `place_segments` puts the segments of a
row side by side, `SampleRows` and `fill_vsl_rows` make the channels that
`pipeline.hdf5.format` describes. Shapes: D documents, N segments, R rows, S columns.

A segment is n + 1 consecutive tokens of one document and fills n columns of a row: its first n
tokens are inputs, its last n labels. `first_fit` visits segments by falling length, equal ones in
stream order, and takes the first row with room: first-fit decreasing, at most 11/9 of the fewest
rows plus 6/9 (Dosa 2007). `greedy` visits them in stream order and opens a row when the current one
has no room: under twice the fewest rows. Both depend on the lengths alone.

Also rows of large lists and texts copied in any order, as pyarrow's `take` does, several times as
fast: N rows of a column, M rows wanted of it, any of them any number of times.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I32, I64, U8
from dedup.compiled import kernel
from pipeline.hdf5.format import SAMPLE, VSL


@dataclass(frozen=True)
class Segments:
    """Columns over segments in stream order, each (N,): the document, the first token inside it,
    and the labels, 1 to S."""

    document: I64
    start: I64
    labels: I64

    def __len__(self) -> int:
        return len(self.document)


@dataclass(frozen=True)
class Placement:
    """Columns over segments by (row, slot), each (N,): which segment, its row and the first column
    it fills; and how many rows there are."""

    segment: I64
    row: I64
    slot: I64
    rows: int


def fold(tokens_D: I64, max_sequence_length: int) -> Segments:
    """Cut documents of these many tokens, EOS included, into segments of at most S labels.

    Pieces of a document start at tokens 0, S, 2S, ... and overlap by one token, so every token but
    the first of a document is a label exactly once; a document of one token has no segment.

    >>> segments = fold(np.array([3, 1, 10]), 4)
    >>> segments.document.tolist(), segments.start.tolist(), segments.labels.tolist()
    ([0, 2, 2, 2], [0, 0, 4, 8], [2, 4, 4, 1])
    """
    labels_D = np.maximum(tokens_D - 1, 0)
    pieces_D = -(-labels_D // max_sequence_length)
    document = np.repeat(np.arange(len(tokens_D)), pieces_D)
    piece = np.arange(len(document)) - np.repeat(np.cumsum(pieces_D) - pieces_D, pieces_D)
    start = piece * max_sequence_length
    return Segments(document, start, np.minimum(max_sequence_length, labels_D[document] - start))


def place_segments(row_N: I64, labels_N: I64) -> Placement:
    """Put the segments of every row side by side, in stream order.

    >>> place_segments(np.array([0, 1, 0]), np.array([2, 4, 1])).slot.tolist()
    [0, 2, 0]
    """
    segment = np.argsort(row_N, kind="stable")
    row, labels = row_N[segment], labels_N[segment]
    ends = np.cumsum(labels)
    first = np.flatnonzero(np.diff(row, prepend=-1))
    before = np.repeat(ends[first] - labels[first], np.diff(np.append(first, len(row))))
    return Placement(segment, row, ends - labels - before, len(first))


Packer = Callable[[I64, int], I64]


def first_fit(labels_N: I64, max_sequence_length: int) -> I64:
    """The row of every segment, (N,), rows counted from 0 without a gap. O(N log N).

    >>> first_fit(np.array([3, 5, 1, 2, 4]), 5).tolist()
    [2, 0, 1, 2, 1]
    """
    order = np.argsort(-labels_N, kind="stable")
    full = int((labels_N == max_sequence_length).sum())
    row = np.empty(len(labels_N), np.int64)
    row[order[:full]] = np.arange(full)
    shorter = order[full:]
    leaves = 1 << max(0, len(shorter) - 1).bit_length()
    room = np.full(2 * leaves, max_sequence_length, np.int64)
    chosen = np.empty(len(shorter), np.int64)
    _first_fit(labels_N[shorter].astype(np.int64), room, chosen)
    row[shorter] = full + chosen
    return row


@kernel
def _first_fit(labels: I64, room: I64, row: I64) -> None:
    """room: a binary tree of maxima, room[1] its root, its second half the rows, all with the room
    of an empty row; at least as many rows as labels. row: as long as labels, written."""
    leaves = len(room) // 2
    for i in range(len(labels)):
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < labels[i]:
                node += 1
        row[i] = node - leaves
        room[node] -= labels[i]
        node //= 2
        while node:
            larger = max(room[2 * node], room[2 * node + 1])
            if room[node] == larger:
                break
            room[node] = larger
            node //= 2


def greedy(labels_N: I64, max_sequence_length: int) -> I64:
    """The row of every segment, (N,), rows counted from 0 without a gap. O(N).

    >>> greedy(np.array([3, 5, 1, 2, 4]), 5).tolist()
    [0, 1, 2, 2, 3]
    """
    row = np.empty(len(labels_N), np.int64)
    _next_fit(labels_N.astype(np.int64), max_sequence_length, row)
    return row


@kernel
def _next_fit(labels: I64, max_sequence_length: int, row: I64) -> None:
    """row: as long as labels, written."""
    current, room = -1, 0
    for i in range(len(labels)):
        if labels[i] > room:
            current += 1
            room = max_sequence_length
        room -= labels[i]
        row[i] = current


PACKERS: dict[str, Packer] = {"first_fit": first_fit, "greedy": greedy}
"""By the name that `pack.packer` gives them."""


Tokens = npt.NDArray[np.unsignedinteger[Any]]
"""uint16 or uint32, as the vocabulary needs."""


@dataclass(frozen=True)
class SampleRows:
    """The (N, 3, S) int32 rows of N windows of S + 1 tokens, EOS behind the first `window` of each;
    they are made as they are asked for.

    [input_ids, loss mask, labels]: a window of n tokens has n - 1 labels. The last token of a
    stream is an EOS, so a padded row's ids and labels are EOS from its last label on.
    """

    windows: Tokens
    window: I64
    dtype: ClassVar = np.dtype(np.int32)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, channels, S."""
        return len(self.windows), SAMPLE.channels, self.windows.shape[1] - 1

    def __getitem__(self, rows: slice) -> I32:
        """Some of the rows, in an array of their own."""
        windows = self.windows[rows]
        made = np.empty((len(windows), *self.shape[1:]), self.dtype)
        _fill_sample(made, windows, self.window[rows])
        return made


@kernel
def _fill_sample(rows: I32, windows: Tokens, window: I64) -> None:
    """rows: C-contiguous; windows, window: as long, windows one wider than their channels."""
    width = windows.shape[1] - 1
    for k in range(len(rows)):
        labels = window[k] - 1
        for j in range(width):
            rows[k, 0, j] = windows[k, j]
        for j in range(width):
            rows[k, 1, j] = j < labels
        for j in range(width):
            rows[k, 2, j] = windows[k, j + 1]


def empty_vsl_rows(count: int, max_sequence_length: int, eos_id: int) -> I32:
    """(R, 5, S) int32 rows that hold nothing but padding."""
    rows = np.zeros((count, VSL.channels, max_sequence_length), np.int32)
    rows[:, 0] = eos_id
    rows[:, 2] = eos_id
    return rows


def fill_vsl_rows(rows_R5S: I32, tokens: Tokens, labels_N: I64, row_N: I64, slot_N: I64) -> None:
    """Write segments into `rows`: segment i fills columns slot to slot + labels of its row. Their
    tokens stand one after the other, each segment's labels + 1 of them."""
    if len(tokens) != int(labels_N.sum()) + len(labels_N):
        raise ValueError(f"{len(tokens)} tokens for {labels_N.sum()} labels")
    if len(labels_N) and (int(row_N.max()) >= len(rows_R5S) or int(row_N.min()) < 0):
        raise ValueError("a row outside the block")
    if len(labels_N) and (int((slot_N + labels_N).max()) > rows_R5S.shape[2] or slot_N.min() < 0):
        raise ValueError("a segment outside its row")
    _fill_vsl(rows_R5S, tokens, labels_N, row_N, slot_N)


@kernel
def _fill_vsl(rows: I32, tokens: Tokens, labels: I64, row: I64, slot: I64) -> None:
    """rows: C-contiguous; row, slot: as long as labels; tokens: as many as labels sum to, plus one
    for each of them."""
    first = 0
    for i in range(len(labels)):
        r, c, n = row[i], slot[i], labels[i]
        for j in range(n):
            rows[r, 0, c + j] = tokens[first + j]
        for j in range(n):
            rows[r, 1, c + j] = 1
        for j in range(n):
            rows[r, 2, c + j] = tokens[first + j + 1]
        for j in range(n):
            rows[r, 3, c + j] = n - 1 - j
        for j in range(n):
            rows[r, 4, c + j] = j
        first += n + 1


def gather_segments(tokens: Tokens, start_N: I64, labels_N: I64) -> Tokens:
    """The labels + 1 tokens from `start` on of every segment, one after the other."""
    if len(start_N) and (int((start_N + labels_N).max()) >= len(tokens) or start_N.min() < 0):
        raise ValueError("a segment outside the tokens")
    gathered = np.empty(int(labels_N.sum()) + len(labels_N), tokens.dtype)
    _gather(tokens, start_N, labels_N, gathered)
    return gathered


@kernel
def _gather(tokens: Tokens, start: I64, labels: I64, out: Tokens) -> None:
    """labels: as long as start; out: as many as labels sum to, plus one for each of them."""
    place = 0
    for i in range(len(start)):
        for j in range(labels[i] + 1):
            out[place + j] = tokens[start[i] + j]
        place += labels[i] + 1


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
    flat.flags.writeable = False  # one kind of array, compiled once
    return ByteRows(flat, offsets[:-1], offsets[1:])


class ListRows:
    """A column of M rows that is filled piece by piece: in memory of its own, or where its bytes
    are wanted."""

    def __init__(self, kind: pa.DataType, byte_lengths_M: I64, data: U8 | None = None) -> None:
        self._kind = kind
        self._offsets = np.concatenate([[0], np.cumsum(byte_lengths_M)]).astype(np.int64)
        self._data = np.empty(int(self._offsets[-1]), np.uint8) if data is None else data

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


def measure_byte_lengths(column: pa.ChunkedArray) -> I64:
    """The bytes of every row, (N,)."""
    chunks = [byte_rows(chunk) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, np.int64), *(rows.ends - rows.starts for rows in chunks)])


def take_rows(column: pa.ChunkedArray, order_M: I64) -> pa.Array:
    """The rows of a column in another order."""
    target = ListRows(column.type, measure_byte_lengths(column)[order_M])
    places = np.argsort(order_M, kind="stable")
    starts = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])
    cuts = np.searchsorted(order_M, starts, sorter=places)
    for number, chunk in enumerate(column.chunks):
        mine = places[cuts[number] : cuts[number + 1]]
        target.fill(mine, chunk, order_M[mine] - starts[number])
    return target.array()


@kernel
def _copy(source: U8, starts: I64, ends: I64, target: U8, to: I64) -> None:
    """source[starts[k]:ends[k]] -> target[to[k]:]; all inside their arrays, starts, ends and to of
    one length."""
    for k in range(len(starts)):
        first, place = starts[k], to[k]
        for i in range(ends[k] - first):
            target[place + i] = source[first + i]
