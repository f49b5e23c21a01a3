"""The cleaned texts put together: bytes written one after another into a single Arrow buffer."""

import pyarrow as pa


class GrowingBuffer:
    """A buffer with room for `expected` bytes, which grows if they do not do.

    Its memory comes from Arrow's pool, which uses again what was freed.
    """

    def __init__(self, expected: int) -> None:
        self.size = 0
        self._buffer = pa.allocate_buffer(expected, resizable=True)

    def write(self, piece: bytes | memoryview) -> None:
        """Add bytes."""
        end = self.size + len(piece)
        if end > self._buffer.size:
            self._buffer.resize(end + end // 8)
        memoryview(self._buffer).cast("B")[self.size : end] = piece
        self.size = end

    def finished(self) -> pa.Buffer:
        """What was written, cut to size."""
        self._buffer.resize(self.size)
        return self._buffer
