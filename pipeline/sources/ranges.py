"""A file behind a URL whose store serves ranges of bytes: read here and there, with the next blocks
fetched ahead, several at a time. No byte of it is kept on disk.
"""

import io
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pipeline.core.errors import ResourceError
from pipeline.sources.store import WEB, Store, ask_store, find_store, redact_url

_STREAMS = 4
_LEAST_BLOCK, _MOST_BLOCK = 16 << 10, 4 << 20
_BLOCKS = 16


@dataclass(frozen=True)
class ByteRange:
    """What is to be read: about the bytes [start, stop), in order, in blocks of which `kept` are
    held, so that a reader may go back; with no `stop` exactly what is asked for."""

    start: int = 0
    stop: int = 0
    kept: int = _STREAMS + 2

    @property
    def block(self) -> int:
        """Bytes of a block: `stop` ends one, and what is beyond it costs little more."""
        size = self.stop - self.start
        return max(_LEAST_BLOCK, -(-size // max(_BLOCKS, -(-size // _MOST_BLOCK))))


class RangeFile(io.RawIOBase):
    """The bytes of a file behind a URL; every read is one request.

    Raises ResourceError when the store goes on to fail, InputError for a file that changed.
    """

    reads_exactly = True
    """Whether long reads cost less than many short ones."""

    def __init__(self, location: str, store: Store) -> None:
        super().__init__()
        self.size = store.version[0]
        self._location = location
        self._store = store
        self._position = 0

    def read(self, size: int = -1, /) -> bytes:
        """Read on; all that is left when `size` is negative."""
        left = max(0, self.size - self._position)
        data = self._get(self._position, self._position + (left if size < 0 else min(size, left)))
        self._position += len(data)
        return data

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to an offset from the beginning, from here or from the end."""
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def check_unchanged(self) -> None:
        """Raise InputError when the store has another file there by now."""
        ask_store(self._location, self._store.check_unchanged)

    def _get(self, start: int, stop: int) -> bytes:
        return self._fetch(start, stop) if start < stop else b""

    def _fetch(self, start: int, stop: int) -> bytes:
        data: bytes = ask_store(self._location, self._ask, start, stop)
        return data

    def _ask(self, start: int, stop: int) -> bytes:
        try:
            data = self._store.read(start, stop)
            if len(data) != stop - start:
                raise ResourceError(
                    f"{redact_url(self._location)}: {len(data):,} bytes came of the "
                    f"{stop - start:,} from {start:,} on; run the same command again"
                )
        except Exception:
            self._store.check_unchanged()
            raise
        return data


class ReadAheadFile(RangeFile):
    """The same, fetched in blocks. Each block is given to `take` when all before it were and it is
    still held: a file that is read in order is so taken whole."""

    reads_exactly = False

    def __init__(
        self, location: str, store: Store, span: ByteRange, take: Callable[[bytes], None]
    ) -> None:
        super().__init__(location, store)
        self._span = span
        self._take = take
        self._taken = 0
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._pool = ThreadPoolExecutor(_STREAMS)

    def _get(self, start: int, stop: int) -> bytes:
        if stop > self._span.stop:  # what is left of the span, or of one block, may be enough
            end = self._offset((start - self._span.start) // self._span.block + 1)
            stop = min(stop, self._span.stop if start < self._span.stop else end)
        pieces = []
        while start < stop:
            index = (start - self._span.start) // self._span.block
            skip = start - max(0, self._offset(index))
            pieces.append(self._block(index)[skip : skip + stop - start])
            start += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _block(self, index: int) -> bytes:
        """A block; they begin at `span.start`, and those before it have negative numbers."""
        self._begin(index)
        if index == 0 or index - 1 in self._blocks:
            for ahead in range(index + 1, index + _STREAMS):
                if self._offset(ahead) < self._span.stop:
                    self._begin(ahead)
        data = self._blocks[index].result()
        self._give()
        while len(self._blocks) > self._span.kept:
            self._blocks.popitem(last=False)[1].cancel()
        return data

    def _begin(self, index: int) -> None:
        if index not in self._blocks:
            start = max(0, self._offset(index))
            stop = min(self._offset(index + 1), self.size)
            self._blocks[index] = self._pool.submit(self._fetch, start, stop)
        self._blocks.move_to_end(index)

    def _offset(self, index: int) -> int:
        return self._span.start + index * self._span.block

    def _give(self) -> None:
        while self._span.start == 0 and (block := self._blocks.get(self._taken)) is not None:
            if not block.done():
                break
            self._take(block.result())
            self._taken += 1

    def close(self) -> None:
        """Fetch no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()


def open_ranges(location: str, span: ByteRange, take: Callable[[bytes], None]) -> RangeFile | None:
    """A file behind a URL; None where its server does not serve ranges."""
    store: Store = ask_store(location, find_store, location)
    if not ask_store(location, _serves_ranges, location, store):
        return None
    if not span.stop:
        return RangeFile(location, store)
    return ReadAheadFile(location, store, span, take)


def _serves_ranges(location: str, store: Store) -> bool:
    """Stores do; of a web server one byte tells."""
    if urlsplit(location).scheme not in WEB:
        return True
    options: dict[str, Any] = {"size": store.version[0], "block_size": 1, "cache_type": "none"}
    with store.system.open(store.name, "rb", **options) as file:
        try:
            file.seek(1)
            return bool(file.read(1))
        except ValueError:  # of fsspec: the answer was the whole file
            return False
