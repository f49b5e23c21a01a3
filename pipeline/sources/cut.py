"""Cutting a stream of records into parts of about equal size, with the place where each begins.

Of parts of size S, part k holds the records whose first byte lies in [k * S, (k + 1) * S): a record
longer than that makes its part longer, and a part in which no record begins does not exist.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.sources.record import BadRecord, Place, Record
from pipeline.sources.streams import StreamStart

Blocks = Iterable[tuple[StreamStart, bytes]]

BOM = b"\xef\xbb\xbf"
_NEWLINE = 10
_SPACE = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))
"""Bytes that `bytes.strip` takes away."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of one part, which begins at `first` (of no length); `start` is where the frame that
    they came from begins."""

    start: StreamStart
    first: Place
    data: bytes


def cut_lines(blocks: Blocks, size: int, count: "LineCount") -> Iterator[Chunk]:
    """The bytes of a stream in order, those of one part after those of another; `count` counts
    them.

    >>> blocks = [(StreamStart(), b"one\\ntwo\\nth"), (StreamStart(), b"ree\\nfour")]
    >>> chunks = cut_lines(blocks, 6, LineCount(100))
    >>> [(chunk.first.line, chunk.first.byte_offset, chunk.data) for chunk in chunks]
    [(1, 0, b'one\\ntwo\\n'), (3, 8, b'th'), (3, 8, b'ree\\n'), (4, 14, b'four')]
    """
    offset, border = 0, size
    first: Place | None = None
    for start, block in blocks:
        position = 0
        while position < len(block):
            first = first or Place(count.records, count.lines + 1, offset + position, 0)
            newline = block.find(b"\n", max(position, border - 1 - offset))
            end = newline + 1 if newline >= 0 else len(block)
            data = block[position:end]
            count.add(data)
            yield Chunk(start, first, data)
            position = end
            if newline >= 0:
                first, border = None, ((offset + end) // size + 1) * size
        offset += len(block)
    count.finish()


def cut_records(
    blocks: Blocks, size: int, read: Callable[[Iterator[bytes]], Iterable[Record | BadRecord]]
) -> Iterator[Chunk]:
    """The same for a format whose records only its reader can tell apart."""
    held: deque[tuple[StreamStart, bytes]] = deque()
    position = 0
    first, border = Place(0, 1, 0, 0), size

    def watched() -> Iterator[bytes]:
        for start, block in blocks:
            held.append((start, block))
            yield block

    def release(end: float) -> Iterator[Chunk]:
        nonlocal position
        while held and position < end:
            start, block = held.popleft()
            data = block[: int(min(len(block), end - position))]
            if len(data) < len(block):
                held.appendleft((start, block[len(data) :]))
            position += len(data)
            yield Chunk(start, first, data)

    for item in read(watched()):
        place = item.place
        yield from release(place.byte_offset)
        if place.byte_offset >= border:
            first = Place(place.ordinal, place.line, place.byte_offset, 0)
            border = (place.byte_offset // size + 1) * size
    yield from release(float("inf"))


class LineCount:
    """Counts lines and, as the readers of lines do, records: lines that are not blank, or longer
    than `max_bytes`, which are not looked at. A byte order mark `mark` does not count as text. Feed
    it a whole stream from its beginning."""

    def __init__(self, max_bytes: int, mark: bytes = b"") -> None:
        self.lines = 0
        self.records = 0
        self._max_bytes = max_bytes
        self._mark = mark
        self._head: bytes | None = b""
        self._open = 0
        self._blank = True

    def add(self, data: bytes) -> None:
        """The next bytes."""
        if self._head is None:
            self._add(data)
            return
        self._head += data
        if len(self._head) >= len(self._mark) or not self._mark.startswith(self._head):
            data, self._head = self._head, None
            self._open = len(self._mark) if data.startswith(self._mark) else 0
            self._add(data[self._open :])

    def finish(self) -> None:
        """The stream is at its end; the last line needs no newline."""
        if self._head:
            self._add(self._head)
        if self._open:
            self._close()

    def _add(self, data: bytes) -> None:
        values = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(values == _NEWLINE)
        if len(ends) == 0:
            self._extend(data)
            return
        self._extend(data[: ends[0]])
        self._close()
        self.lines += len(ends) - 1
        self.records += self._count(data, values, ends[:-1] + 1, ends[1:])
        self._extend(data[ends[-1] + 1 :])

    def _extend(self, data: bytes) -> None:
        self._open += len(data)
        self._blank = self._blank and not data.strip()

    def _close(self) -> None:
        self.lines += 1
        self.records += not self._blank or self._open > self._max_bytes
        self._open, self._blank = 0, True

    def _count(
        self, data: bytes, values: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64],
    ) -> int:  # fmt: skip
        """How many of the lines [start, end) are records."""
        short = ends - starts <= self._max_bytes
        maybe = np.flatnonzero(short & _SPACE[values[starts]] & _SPACE[values[ends - 1]])
        pairs = zip(starts[maybe].tolist(), ends[maybe].tolist(), strict=True)
        return len(starts) - sum(not data[start:end].strip() for start, end in pairs)
