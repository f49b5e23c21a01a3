"""A part of a raw shard: what one task reads of a file too large for one, and how.

Places of its records are those in the whole file.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

import xxhash

from pipeline.core.manifest import Shard
from pipeline.sources.files import HashingReader, InputFile, change_error, read_blocks, read_rows
from pipeline.sources.record import START, BadRecord, Place, Record
from pipeline.sources.rules import RecordRules
from pipeline.sources.streams import StreamStart, decompress_blocks, resume_blocks
from pipeline.stage import Inputs

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
    """So many rows, whose texts have `size` bytes and this hash; `copy` holds those of a file
    behind a URL."""

    rows: int
    size: int
    hash: str
    copy: Shard | None = None


Content = WholeFile | DamagedFile | Stretch | Piece | RowRange


@dataclass(frozen=True)
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
    with closing(HashingReader(file.location)) as reader:
        blocks = resume_blocks(file.shown, reader, file.format[1], stretch.start)  # type: ignore[arg-type]
        while left and (found := next(blocks, None)) is not None:
            block = found[1]
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
        file = replace(file, location=str(inputs.path(content.copy)), kind=file.format[0])
    with closing(HashingReader(file.location)) as reader:
        items = read_rows(file, reader, rules, part.first.ordinal)
        for item in islice(items, content.rows):
            update(digest, item)
            count += 1
            yield item
    if count != content.rows or digest.hexdigest() != content.hash:
        raise change_error(part.file.shown)


def update(digest: xxhash.xxh3_128, item: Record | BadRecord) -> int:
    """Add a row to the hash of a part; returns the bytes of its text."""
    text = item.text.encode() if isinstance(item, Record) else item.reason.encode()
    digest.update(text)
    digest.update(b"\n")
    return len(text)
