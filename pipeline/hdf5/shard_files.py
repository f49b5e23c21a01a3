"""Many HDF5 files as one array along their first axis, opened when they are first read."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import Array
from pipeline.core.errors import IntegrityError
from pipeline.core.storage import verify_file
from pipeline.hdf5.format import DATASET
from pipeline.hdf5.shard_file import ShardFile

_MOST_OPEN = 64


@dataclass(frozen=True)
class ExpectedFile:
    """What a file of the set holds; `hash` is None where nobody recorded one."""

    path: Path
    rows: int
    hash: str | None = None


class ShardFiles:
    """Rows of one dataset over all files, (rows, *row_shape) of `dtype`.

    A file with a hash is compared with it the first time this process reads the file, and again
    when it changed; chunks of other files are compared with their checksums whenever they are read.
    Raises IntegrityError for damage or another shape than expected. Can be pickled; every process
    opens its own files.
    """

    def __init__(
        self,
        files: Sequence[ExpectedFile],
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        name: str = DATASET,
    ) -> None:
        self.files, self.row_shape, self.dtype, self.name = tuple(files), row_shape, dtype, name
        self.starts = np.cumsum([0, *(file.rows for file in files)])
        self._open: dict[int, ShardFile] = {}
        self._sound: dict[int, tuple[int, int, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_sound": {}}

    @property
    def rows(self) -> int:
        """Length of the first axis over all files."""
        return int(self.starts[-1])

    def file_and_row(self, row: int) -> tuple[int, int]:
        """Index of the file that holds row `row`, and the row inside it."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        return index, row - int(self.starts[index])

    def read(self, rows_B: npt.NDArray[np.int64]) -> Array:
        """Rows in the order asked for, (B, *row_shape)."""
        out = np.empty((len(rows_B), *self.row_shape), self.dtype.newbyteorder("="))
        order = np.argsort(rows_B, kind="stable")
        sorted_B = np.asarray(rows_B)[order]
        bounds = np.searchsorted(sorted_B, self.starts)
        for index in np.flatnonzero(np.diff(bounds)).tolist():
            here = slice(bounds[index], bounds[index + 1])
            self.open(index).take(sorted_B[here] - self.starts[index], out, order[here])
        return out

    def span(self, start: int, stop: int) -> Array:
        """Rows [start, stop) over the borders of files."""
        out = np.empty((stop - start, *self.row_shape), self.dtype.newbyteorder("="))
        index, done = self.file_and_row(start)[0], start
        while done < stop:
            first, last = int(self.starts[index]), min(stop, int(self.starts[index + 1]))
            out[done - start : last - start] = self.open(index).read(done - first, last - first)
            done, index = last, index + 1
        return out

    def blocks(self, least: int = 1) -> Iterator[tuple[int, int, Array]]:
        """Every row once, as stored, at least so many at a time but at the end of a file: (index of
        the file, first row inside it, rows); read-only."""
        for index in range(len(self.files)):
            for first, values in self.open(index).blocks(least):
                yield index, first, values

    def open(self, index: int) -> ShardFile:
        """File number `index`, checked."""
        found = self._open.get(index)
        if found is None:
            found = self._checked(index)
            while len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open)), None)
            self._open[index] = found
        return found

    def _checked(self, index: int) -> ShardFile:
        expected = self.files[index]
        if expected.hash is not None and self._sound.get(index) != _state(expected.path):
            verify_file(expected.path, expected.hash)
            self._sound[index] = _state(expected.path)
        file = ShardFile(expected.path, self.name, trusted=expected.hash is not None)
        shape, wanted = file.shape, (expected.rows, *self.row_shape)
        if shape != wanted or file.dtype != self.dtype:
            raise IntegrityError(
                f"{expected.path}: {self.name!r} is {file.dtype} {shape}, "
                f"expected {self.dtype} {wanted}"
            )
        return file


def _state(path: Path) -> tuple[int, int, int]:
    """Changes when the file is replaced, written to or removed."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns
