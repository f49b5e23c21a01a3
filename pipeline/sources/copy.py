"""Chosen records of a raw shard, copied byte for byte in the shard's own format and compression.

Lines keep their newline, WARC records the blank lines behind them; rows keep all their columns.
Memory is bounded whatever the size of the file.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core import zstd
from pipeline.core.errors import InputError
from pipeline.core.mirror.fetching import fetch
from pipeline.sources.files import HashingReader, InputFile, open_seekable
from pipeline.sources.formats import FileFormat, find_format
from pipeline.sources.output_format import Form, PluggedForm
from pipeline.sources.raw_format import RowFormat, StreamFormat
from pipeline.sources.record import RecordRules
from pipeline.sources.streams import decompress_blocks
from pipeline.sources.tables import PARQUET
from pipeline.sources.text import BOM, JSONL, raw_fields

ZSTD_LEVEL = 3
GZIP_LEVEL = 6
_GZIP_WINDOW = 31
"""zlib's number for the largest window and a gzip header, whose time is then 0."""

_GROUP_BYTES = 64 << 20


@dataclass(frozen=True)
class NewTexts:
    """Records whose text is replaced: where they begin, ascending, (K,), the field or column of the
    text, and what gives the new text of the k-th."""

    starts: I64
    text_key: str
    text: Callable[[int], str]

    def find(self, start: int) -> int | None:
        """The number of the record that begins here; None for one that is copied as it is."""
        number = int(np.searchsorted(self.starts, start))
        return number if number < len(self.starts) and self.starts[number] == start else None


def copy_records(
    file: InputFile,
    reader: HashingReader,
    starts: I64,
    sizes: I64,
    new_texts: NewTexts | None = None,
) -> Iterator[bytes]:
    """A file with the records that begin at these bytes of the decompressed file, ascending, and
    have so many; of a file of rows, with these rows. Those with a new text get it, and all their
    other fields stay as they are.

    Raises InputError when the file is damaged, and as `check_texts_replaceable`.
    """
    records, compression = file.format.records, file.format.compression
    if new_texts is not None:
        check_texts_replaceable(file)
    if isinstance(records, RowFormat):
        if file.size:
            yield from _rows(file, records, reader, starts, new_texts)
        return
    compressor = new_compressor(compression)
    blocks = decompress_blocks(file.shown, reader, compression)
    pieces = number_ranges(blocks, starts, starts + sizes + trailing_bytes(file))
    if new_texts is None:
        copies: Iterator[bytes] = (piece for _, piece in pieces)
    else:
        copies = _replace_texts(pieces, starts, new_texts)
    for piece in copies:
        yield compressor.compress(piece)
    yield compressor.flush()


def check_texts_replaceable(file: InputFile) -> None:
    """Raises InputError for a format that has no place for a new text: all but jsonl and rows."""
    records = file.format.records
    if records is not JSONL and not isinstance(records, RowFormat):
        raise InputError(
            f"{file.shown}: repeated passages cannot be cut from records of the format "
            f"{records.name}; give jsonl or parquet, or leave --substrings out"
        )


def _replace_texts(
    pieces: Iterator[tuple[int, bytes]], starts: I64, new_texts: NewTexts
) -> Iterator[bytes]:
    """Lines of jsonl; those with a new text as msgspec writes the names of their fields."""
    for index, of_record in groupby(pieces, itemgetter(0)):
        number = new_texts.find(int(starts[index]))
        if number is None:
            yield from (piece for _, piece in of_record)
            continue
        line = b"".join(piece for _, piece in of_record)
        record = line.removeprefix(BOM).strip()
        fields: dict[str, Any] = {name: msgspec.Raw(v) for name, v in raw_fields(record).items()}
        fields[new_texts.text_key] = new_texts.text(number)
        before, after = line.split(record, 1)
        yield before + msgspec.json.encode(fields) + after


def trailing_bytes(file: InputFile) -> int:
    """Bytes that belong to a record of a file but not to its length. Raises InputError for a format
    whose records cannot be copied."""
    records = file.format.records
    if not isinstance(records, StreamFormat) or records.trailing_bytes is None:
        raise InputError(f"{file.shown}: records of the format {records.name} cannot be copied")
    return records.trailing_bytes


def measure_lines(file: InputFile) -> I64:
    """Bytes of every line of a file, a newline at its end included even where the last has none."""
    lengths, rest = [np.zeros(0, np.int64)], 0
    with closing(HashingReader(file.location)) as reader:
        for block in decompress_blocks(file.shown, reader, file.format.compression):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
            if len(ends):
                lengths.append(np.diff(ends, prepend=-rest))
            rest = len(block) - int(ends[-1]) if len(ends) else rest + len(block)
    return np.concatenate([*lengths, [rest + 1] if rest else []]).astype(np.int64)


def number_ranges(blocks: Iterator[bytes], starts: I64, stops: I64) -> Iterator[tuple[int, bytes]]:
    """The bytes in [start, stop) for ascending ranges of a stream, which may end before the last;
    each piece with the number of its range.

    >>> list(number_ranges(iter([b"abc", b"defg"]), np.array([1, 4]), np.array([4, 9])))
    [(0, b'bc'), (0, b'd'), (1, b'efg')]
    """
    position, index = 0, 0
    for block in blocks:
        end = position + len(block)
        while index < len(starts) and starts[index] < end:
            first = max(int(starts[index]), position)
            if first < stops[index]:
                yield index, block[first - position : int(stops[index]) - position]
            if stops[index] > end:
                break
            index += 1
        position = end


class _NoCompression:
    """No compression behind the interface of a compressor."""

    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def new_compressor(compression: str | None) -> Any:
    """What compresses a file: `compress` and `flush`; equal bytes in give equal bytes out."""
    match compression:
        case "zst":
            options: dict[int, int] = {
                zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
                zstd.CompressionParameter.checksum_flag: True,
            }
            return zstd.ZstdCompressor(options=options)
        case "gz":
            return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        case "bz2":
            return bz2.BZ2Compressor()
        case "xz":
            return lzma.LZMACompressor()
    return _NoCompression()


class _Sink(io.RawIOBase):
    """A file for writing whose bytes are taken away as they come."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        self._size += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        return self._size

    def take(self) -> list[bytes]:
        """What was written since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces


def _rows(
    file: InputFile,
    records: RowFormat,
    reader: HashingReader,
    rows: I64,
    new_texts: NewTexts | None,
) -> Iterator[bytes]:
    if records.copy is None:
        raise InputError(f"{file.shown}: rows of the format {records.name} cannot be copied")
    sink = _Sink()
    try:
        with open_seekable(file, reader) as (source, _):
            schema, batches, writer = records.copy(source, sink)
            with writer:
                for table in _group(_choose_rows(batches, rows, new_texts), schema):
                    writer.write_table(table)
                    yield from sink.take()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{file.shown}: cannot copy its rows: {error}") from error
    yield from sink.take()


def _choose_rows(
    batches: Iterator[pa.RecordBatch], rows: I64, new_texts: NewTexts | None
) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in batches:
        low, high = np.searchsorted(rows, (first, first + len(batch)))
        if low < high:
            chosen = batch.take(pa.array(rows[low:high] - first))
            yield _with_texts(chosen, rows[low:high], new_texts) if new_texts else chosen
        first += len(batch)


def _with_texts(batch: pa.RecordBatch, rows: I64, new_texts: NewTexts) -> pa.RecordBatch:
    """The batch of these rows of the file with the new texts of those that have one."""
    numbers = [(i, new_texts.find(row)) for i, row in enumerate(rows.tolist())]
    replaced = {i: new_texts.text(number) for i, number in numbers if number is not None}
    if not replaced:
        return batch
    at = batch.schema.get_field_index(new_texts.text_key)
    field = batch.schema.field(at)
    texts = [replaced.get(i, text) for i, text in enumerate(batch.column(at).to_pylist())]
    return batch.set_column(at, field, pa.array(texts, field.type))


def _group(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The batches together in tables of about 64 MiB."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(some.nbytes for some in group) >= _GROUP_BYTES:
            yield pa.Table.from_batches(group, schema).combine_chunks()
            group = []
    if group:
        yield pa.Table.from_batches(group, schema).combine_chunks()


def count_records(path: Path, form: Form | None = None) -> int:
    """Records in a file in an output format, or (None) in one that was written so. Raises
    InputError when it is damaged."""
    if isinstance(form, PluggedForm):
        return len(form.read(fetch(path)))
    file_format = find_format(path.name) or FileFormat(JSONL, None, 1.0)
    records = file_format.records
    if records is PARQUET:
        return int(pq.read_metadata(fetch(path)).num_rows)
    with open(fetch(path), "rb") as file:
        if isinstance(records, RowFormat):
            assert records.copy is not None
            _, batches, _ = records.copy(file, _Sink())
            return sum(len(batch) for batch in batches)
        assert isinstance(records, StreamFormat)
        blocks = decompress_blocks(path, file, file_format.compression)
        if records.parts == "lines":
            return _count_lines(blocks)
        if records.parts is None:
            return int(any(blocks))
        rules = RecordRules(text_key="text", max_document_bytes=0, sources=None)
        return sum(1 for _ in records.read(str(path), blocks, rules, None))


def _count_lines(blocks: Iterator[bytes]) -> int:
    count, last = 0, b"\n"
    for block in blocks:
        count += block.count(b"\n")
        last = block[-1:]
    return count + (last != b"\n")
