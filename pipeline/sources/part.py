"""Raw shards too large for one task, read in parts of about equal size.

Places of records are those in the whole file. Of parts of size S, part k holds the records whose
first byte lies in [k * S, (k + 1) * S): a record longer than that makes its part longer, and a part
in which no record begins does not exist.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import xxhash

from pipeline.core.errors import InputError
from pipeline.core.manifest import Shard
from pipeline.engine.stage import Inputs
from pipeline.sources.files import HashingReader, InputFile, read_blocks, read_rows
from pipeline.sources.ranges import ByteRange
from pipeline.sources.record import START, BadRecord, Place, Record, RecordRules
from pipeline.sources.store import RefusedError
from pipeline.sources.streams import StreamStart, change_error, decompress_blocks, resume_blocks

PIECE_COMPRESSION = "zst"
_PIECE_ESTIMATE = 3.0


@dataclass(frozen=True)
class WholeFile:
    """All of the file, which is small enough."""


@dataclass(frozen=True)
class DamagedFile:
    """Nothing: the file is damaged, and is left out for this reason."""

    problem: str


@dataclass(frozen=True)
class Stretch:
    """Whole records: `size` bytes of the decompressed file that have this hash, to be read from
    where a frame begins."""

    size: int
    hash: str
    start: StreamStart


@dataclass(frozen=True)
class Piece:
    """The same, written to a shard of its own because no frame begins near it."""

    shard: Shard


@dataclass(frozen=True)
class RowRange:
    """So many rows, the bytes of their texts, and the hash of all that is read of them; `copy` is
    that of a file behind a URL whose rows are not near there."""

    rows: int
    size: int
    hash: str
    copy: Shard | None = None


Content = WholeFile | DamagedFile | Stretch | Piece | RowRange


@dataclass(frozen=True, kw_only=True)
class Part:
    """The part number `index` of a raw shard: what it is, and the 0-based ordinal, 1-based line and
    byte offset in the decompressed file (or 0-based row) where it begins. `digest` is the hash of
    the whole file's raw bytes where the file was cut; else it is computed while reading."""

    file: InputFile
    path_id: int
    content: Content = WholeFile()
    index: int = 0
    first: Place = START
    digest: str = ""

    @property
    def work(self) -> int:
        """Estimated bytes of text."""
        match self.content:
            case Stretch(size=size) | RowRange(size=size):
                return size
            case Piece(shard):
                return int(shard.size * _PIECE_ESTIMATE)
            case DamagedFile():
                return 0
        return self.file.text_estimate

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The published shards that reading needs."""
        match self.content:
            case Piece(shard=shard) | RowRange(copy=Shard() as shard):
                return (shard,)
        return ()


def read_part(part: Part, inputs: Inputs, rules: RecordRules) -> Iterator[Record | BadRecord]:
    """Every record of a part that is not a whole file, good or bad, in order.

    Raises InputError when the file is not what it was when it was cut, or cannot be read.
    """
    match part.content:
        case Piece(shard):
            path = inputs.path(shard)
            with open(path, "rb") as file:
                blocks = decompress_blocks(path, file, PIECE_COMPRESSION)
                yield from read_blocks(part.file, blocks, rules, part.first)
        case Stretch():
            yield from read_blocks(part.file, _text(part, part.content), rules, part.first)
        case RowRange():
            yield from _rows(part, part.content, inputs, rules)


def _text(part: Part, stretch: Stretch) -> Iterator[bytes]:
    """Its bytes, checked against their hash at the end."""
    file = part.file
    digest = xxhash.xxh3_128()
    skip, left = part.first.byte_offset - stretch.start.text, stretch.size
    with _open_again(file, _span(file, stretch.start, skip + left)) as reader:
        blocks = resume_blocks(file.shown, reader, file.format.compression, stretch.start)
        while left and (item := next(blocks, None)) is not None:
            block = item[1]
            data = block[skip : skip + left]
            skip = max(0, skip - len(block))
            left -= len(data)
            digest.update(data)
            yield data
    if left or digest.hexdigest() != stretch.hash:
        raise change_error(file.shown)


def _rows(
    part: Part, content: RowRange, inputs: Inputs, rules: RecordRules
) -> Iterator[Record | BadRecord]:
    """Its rows, checked at the end."""
    file, digest, count = part.file, xxhash.xxh3_128(), 0
    if content.copy is not None:
        file = replace(file, location=str(inputs.path(content.copy)), kind=file.format.records.name)
    with _open_again(file, ByteRange()) as reader:
        items = read_rows(file, reader, rules, part.first.ordinal)
        for item in islice(items, content.rows):
            update(digest, item)
            count += 1
            yield item
    if count != content.rows or digest.hexdigest() != content.hash:
        raise change_error(part.file.shown)


def _span(file: InputFile, start: StreamStart, size: int) -> ByteRange:
    """Where so many bytes of the decompressed file are about, by how what is before them packs."""
    ratio = start.raw / start.text if start.text else file.size / max(1, file.text_estimate)
    return ByteRange(start.raw, start.raw + int(size * ratio))


@contextmanager
def _open_again(file: InputFile, span: ByteRange) -> Iterator[HashingReader]:
    """A file that was sound when it was cut: what is wrong with it now is that it changed."""
    with closing(HashingReader(file.location, span)) as reader:
        try:
            yield reader
        except RefusedError:
            raise
        except InputError as error:
            raise change_error(file.shown) from error
        reader.check_unchanged()


def update(digest: xxhash.xxh3_128, item: Record | BadRecord) -> int:
    """Add a row to the hash of a part; returns the bytes of its text."""
    if isinstance(item, BadRecord):
        text, others = item.reason.encode(), ""
    else:
        text = item.text.encode()
        others = repr((item.source, item.meta, item.licence, item.fields))
    digest.update(text)
    digest.update(f"{others}\n".encode())
    return len(text)


Blocks = Iterable[tuple[StreamStart, bytes]]

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
    pending: deque[tuple[StreamStart, bytes]] = deque()
    position = 0
    first, border = Place(0, 1, 0, 0), size

    def watched() -> Iterator[bytes]:
        for start, block in blocks:
            pending.append((start, block))
            yield block

    def release(end: float) -> Iterator[Chunk]:
        nonlocal position
        while pending and position < end:
            start, block = pending.popleft()
            data = block[: int(min(len(block), end - position))]
            if len(data) < len(block):
                pending.appendleft((start, block[len(data) :]))
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
        self,
        data: bytes,
        values: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> int:
        """How many of the lines [start, end) are records."""
        short = ends - starts <= self._max_bytes
        maybe = np.flatnonzero(short & _SPACE[values[starts]] & _SPACE[values[ends - 1]])
        pairs = zip(starts[maybe].tolist(), ends[maybe].tolist(), strict=True)
        return len(starts) - sum(not data[start:end].strip() for start, end in pairs)
