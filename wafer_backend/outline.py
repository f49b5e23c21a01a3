"""A file of any size of which only what is written to it is kept."""

import io
from typing import Any

_PAGE = 4096


class Outline(io.RawIOBase):
    """A binary file object that keeps its written pages; the rest reads as zero.

    HDF5 writes its structures into one, without the data of large datasets, which are put in
    between when the file is published.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._position = 0
        self.size = 0

    def span(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), zero where nothing was written."""
        pieces = []
        while start < stop:
            number, offset = divmod(start, _PAGE)
            count = min(stop - start, _PAGE - offset)
            page = self._pages.get(number)
            pieces.append(bytes(count) if page is None else bytes(page[offset : offset + count]))
            start += count
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the position; returns how many bytes there were."""
        data = self.span(self._position, min(self.size, self._position + len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        """Write at the position; returns the number of bytes."""
        view = memoryview(data)
        for start in range(-(self._position % _PAGE), len(view), _PAGE):
            number, offset = divmod(self._position + max(start, 0), _PAGE)
            piece = view[max(start, 0) : start + _PAGE]
            page = self._pages.setdefault(number, bytearray(_PAGE))
            page[offset : offset + len(piece)] = piece
        self._position += len(view)
        self.size = max(self.size, self._position)
        return len(view)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; returns it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Set the size in bytes, to the position by default."""
        self.size = self._position if size is None else size
        return self.size

    def readable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True
