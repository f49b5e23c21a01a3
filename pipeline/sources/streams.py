"""Bytes of an input file: decompressed as a stream with bounded memory, and cut into lines."""

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.core.errors import InputError

__all__ = ["decompressed", "lines", "sniff", "zstd"]

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK = 1 << 20
MAX_WINDOW_LOG = 27
_MAGIC = {b"\x28\xb5\x2f\xfd": "zst", b"\x1f\x8b": "gz", b"PAR1": "parquet"}


def sniff(head: bytes) -> str | None:
    """The compressed or columnar format that the first bytes of a file show, if any."""
    if len(head) >= 4 and 0x184D2A50 <= int.from_bytes(head[:4], "little") <= 0x184D2A5F:
        return "zst"
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def decompressed(path: Path, file: BinaryIO, compression: str | None) -> Iterator[bytes]:
    """Blocks of at most 1 MiB of a file's decompressed bytes.

    Raises InputError for bytes of another format, a cut-off or damaged stream, or a zstd window
    above 128 MiB.
    """
    head = file.read(4)
    file.seek(0)
    actual = sniff(head)
    if 0 < len(head) < 4 and any(magic.startswith(head) for magic in _MAGIC):
        raise InputError(f"{path}: cut off after {len(head)} bytes")
    if head and actual != compression:
        shown = actual or "uncompressed"
        raise InputError(
            f"{path}: the name says {compression or 'plain jsonl'} but the bytes are {shown}; "
            f"rename it to end in {_suffix(actual)}"
        )
    if compression is None:
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(f"{path}: UTF-16 text; expected UTF-8, convert it first")
        while block := file.read(BLOCK):
            yield block
    elif compression == "zst":
        yield from _frames(path, file, _new_zstd, zstd.ZstdError)
    else:
        yield from _frames(path, file, _GzipMember, zlib.error)


def _suffix(kind: str | None) -> str:
    return {"zst": ".jsonl.zst", "gz": ".jsonl.gz", "parquet": ".parquet", None: ".jsonl"}[kind]


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


def _frames(path: Path, file: BinaryIO, new: Any, failure: type[Exception]) -> Iterator[bytes]:
    """Decompress frame after frame (zstd) or member after member (gzip)."""
    pending = file.read(BLOCK)
    while pending:
        frame = new()
        while not frame.eof:
            try:
                block = frame.decompress(pending, BLOCK)
            except failure as error:
                hint = (
                    f"; the window limit is {1 << (MAX_WINDOW_LOG - 20)} MiB"
                    if "memory" in str(error)
                    else ""
                )
                raise InputError(f"{path}: damaged compressed data: {error}{hint}") from error
            pending = b""
            if block:
                yield block
            if not frame.eof and frame.needs_input and not block:
                pending = file.read(BLOCK)
                if not pending:
                    raise InputError(f"{path}: cut off in the middle of the compressed data")
        pending = frame.unused_data or file.read(BLOCK)


def lines(blocks: Iterator[bytes], max_bytes: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Cut a byte stream at newlines: (byte offset, byte length without newline, line).

    The line is None when it is longer than `max_bytes`; its bytes are counted but never held.
    """
    offset = 0
    held: list[bytes] = []
    length = 0
    for block in blocks:
        *complete, rest = block.split(b"\n")
        for piece in complete:
            length += len(piece)
            line = None if length > max_bytes else b"".join([*held, piece]) if held else piece
            yield offset, length, line
            offset += length + 1
            held, length = [], 0
        length += len(rest)
        held = [] if length > max_bytes else [*held, rest] if rest else held
    if length:
        yield offset, length, None if length > max_bytes else b"".join(held)
