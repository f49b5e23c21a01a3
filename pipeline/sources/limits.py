"""Caps on what one file may unpack to, so that a bomb ends as one error and fills no memory."""

from collections.abc import Iterator

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
            named = f"more than read.max_file_bytes allows ({limit:,} bytes)"
        else:
            named = (
                f"over {self._max_ratio:g} times its {self._size:,} bytes, "
                "more than read.max_ratio allows"
            )
        raise InputError(
            f"{self._path}: unpacks to {named}; if the file is not damaged, raise the limit"
        )

    def over(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The blocks, counted."""
        for block in blocks:
            self.use(len(block))
            yield block
