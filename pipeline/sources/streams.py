"""Bytes of an input file: decompressed as a stream with bounded memory, cut into lines, and capped,
so that a bomb ends as one error and fills no memory.
"""

import bz2
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.core import zstd
from pipeline.core.errors import InputError

RATIO_FLOOR = 256 << 20
"""Decompressed bytes up to which no ratio counts as a bomb."""


class Allowance:
    """Counts the decompressed bytes of one file of `size` bytes against `read.max_file_bytes` and
    `read.max_ratio` (None: any)."""

    def __init__(
        self, path: object, size: int, max_file_bytes: int | None, max_ratio: float | None
    ) -> None:
        self._path = path
        self._size = size
        self._max_file_bytes = max_file_bytes
        self._max_ratio = max_ratio
        self._most = min(
            float("inf") if max_file_bytes is None else max_file_bytes,
            float("inf") if max_ratio is None else max(RATIO_FLOOR, max_ratio * size),
        )
        self._used = 0

    def use(self, count: int) -> None:
        """Count bytes. Raises InputError naming the limit that they pass."""
        self._used += count
        self.check(self._used)

    def check(self, total: int) -> None:
        """Raise InputError if a file of `total` decompressed bytes is too much."""
        if total <= self._most:
            return
        limit = self._max_file_bytes
        if limit is not None and total > limit:
            amount = f"more than read.max_file_bytes allows ({limit:,} bytes)"
        else:
            amount = (
                f"over {self._max_ratio:g} times its {self._size:,} bytes, "
                "more than read.max_ratio allows"
            )
        raise InputError(
            f"{self._path}: unpacks to {amount}; if the file is not damaged, raise the limit"
        )

    def over(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The blocks, counted."""
        for block in blocks:
            self.use(len(block))
            yield block


BLOCK = 1 << 20
MAX_WINDOW_LOG = 27
_MAGIC = {
    b"\x28\xb5\x2f\xfd": "zst",
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zX": "xz",
    b"PAR1": "parquet",
}


def change_error(location: str) -> InputError:
    """The error of a raw shard that is written while a run reads it."""
    return InputError(
        f"{location}: changed while this run read it; run the same command again once nothing "
        "writes to it any more"
    )


def sniff(head: bytes) -> str | None:
    """The compressed or columnar format that the first bytes of a file show, if any."""
    if len(head) >= 4 and 0x184D2A50 <= int.from_bytes(head[:4], "little") <= 0x184D2A5F:
        return "zst"
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


class Readable(Protocol):
    """A binary file that is read in order, from a place on."""

    def read(self, size: int = -1, /) -> bytes:
        """Read on."""
        ...

    def seek(self, offset: int, /) -> int:
        """Go to an absolute offset."""
        ...


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where decompression can begin: a byte offset in the file, and the offset in the decompressed
    bytes that it stands for."""

    raw: int = 0
    text: int = 0


def decompress_blocks(path: object, file: Readable, compression: str | None) -> Iterator[bytes]:
    """Blocks of at most 1 MiB of a file's decompressed bytes.

    Raises InputError for bytes of another format, a cut-off or damaged stream, or a zstd window
    above 128 MiB.
    """
    return (block for _, block in resume_blocks(path, file, compression))


def resume_blocks(
    path: object, file: Readable, compression: str | None, start: StreamStart | None = None
) -> Iterator[tuple[StreamStart, bytes]]:
    """The same blocks, from `start` on, each with where its frame (zstd) or member (gzip) begins;
    each block of an uncompressed file begins one. Raises what `decompress_blocks` raises."""
    if start is None:
        _check_head(path, file, compression)
        start = StreamStart()
    file.seek(start.raw)
    if compression is None:
        text = start.text
        while block := file.read(BLOCK):
            yield StreamStart(text, text), block
            text += len(block)
    elif compression == "zst":
        yield from _frames(path, file, _new_zstd, zstd.ZstdError, start)
    elif compression == "bz2":
        yield from _frames(path, file, bz2.BZ2Decompressor, OSError, start)
    elif compression == "xz":
        yield from _frames(path, file, _XzStream, lzma.LZMAError, start)
    else:
        yield from _frames(path, file, _GzipMember, zlib.error, start)


def _check_head(path: object, file: Readable, compression: str | None) -> None:
    """Raise InputError when the first bytes show another format than the name says."""
    head = file.read(4)
    actual = sniff(head)
    if 0 < len(head) < 4 and any(magic.startswith(head) for magic in _MAGIC):
        raise InputError(f"{path}: cut off after {len(head)} bytes")
    if head and actual != compression:
        content = actual or "uncompressed"
        suffix = {"parquet": ".parquet", None: ".jsonl"}.get(actual) or f".jsonl.{actual}"
        raise InputError(
            f"{path}: the name says {compression or 'plain jsonl'} but the bytes are {content}; "
            f"rename it to end in {suffix}"
        )
    if compression is None and head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{path}: UTF-16 text; expected UTF-8, convert it first")


def _new_zstd() -> Any:
    return zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG}
    )


class _GzipMember:
    """One gzip member behind the interface of the bz2/lzma/zstd decompressors."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class _XzStream:
    """One xz stream; the zero bytes that may follow it are no part of the next one."""

    def __init__(self) -> None:
        limit = (1 << MAX_WINDOW_LOG) + (1 << 20)
        self._inner = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=limit)
        self.decompress = self._inner.decompress

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return self._inner.needs_input

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data.lstrip(b"\0")


def _frames(
    path: object, file: Readable, new: Any, failure: type[Exception], start: StreamStart
) -> Iterator[tuple[StreamStart, bytes]]:
    """Decompress frame after frame (zstd) or member after member (gzip)."""
    pending = file.read(BLOCK)
    position, text = start.raw + len(pending), start.text
    while pending:
        begin = StreamStart(position - len(pending), text)
        frame = new()
        while not frame.eof:
            try:
                block = frame.decompress(pending, BLOCK)
            except failure as error:
                hint = (
                    f"; the window limit is {1 << (MAX_WINDOW_LOG - 20)} MiB"
                    if "memory" in str(error).lower()
                    else ""
                )
                raise InputError(f"{path}: damaged compressed data: {error}{hint}") from error
            pending = b""
            if block:
                text += len(block)
                yield begin, block
            if not frame.eof and frame.needs_input and not block:
                pending = file.read(BLOCK)
                position += len(pending)
                if not pending:
                    raise InputError(f"{path}: cut off in the middle of the compressed data")
        pending = frame.unused_data
        if not pending:
            pending = file.read(BLOCK)
            position += len(pending)


def split_lines(blocks: Iterator[bytes], max_bytes: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Cut a byte stream at newlines: (byte offset, byte length without newline, line).

    The line is None when it is longer than `max_bytes`; its bytes are counted but never held.
    """
    offset = 0
    pieces: list[bytes] = []
    length = 0
    for block in blocks:
        *complete, rest = block.split(b"\n")
        for piece in complete:
            length += len(piece)
            line = None if length > max_bytes else b"".join([*pieces, piece]) if pieces else piece
            yield offset, length, line
            offset += length + 1
            pieces, length = [], 0
        length += len(rest)
        pieces = [] if length > max_bytes else [*pieces, rest] if rest else pieces
    if length:
        yield offset, length, None if length > max_bytes else b"".join(pieces)
