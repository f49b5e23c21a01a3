"""One dataset of one HDF5 file, read chunk by chunk without the HDF5 library.

The library only says where the chunks stand; then they are read with `pread` and their filters
undone here, which is several times as fast (measured: docs/hdf5.md). What is not laid out in whole
rows, or has another filter, is left to the library.
"""

import math
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import Array
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.mirror.fetching import fetch
from pipeline.hdf5.chunks import FLETCHER32, KNOWN, DamagedChunk, undo_filters
from pipeline.hdf5.format import DATASET

if TYPE_CHECKING:
    import h5py

Rows = npt.NDArray[np.int64]

_BLOCK_BYTES = 1 << 20
"""Bytes read at once from a dataset that has no chunks."""
_MOST_CHUNK_BYTES = 1 << 30
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError)


class ShardFile:
    """Rows of `data` in one file: (rows, ...) of any dtype, read-only.

    Raises InputError for what is no such dataset or keeps its data elsewhere; on reading
    IntegrityError for damage. `trusted`: the file was just compared with its hash, so checksums of
    chunks are skipped. Reading is safe in threads and after a fork.
    """

    def __init__(self, path: Path, name: str = DATASET, trusted: bool = False) -> None:
        self.path, self.name = path, name
        self._trusted = trusted
        self._last: tuple[int, Array] | None = None
        self._library: tuple[int, h5py.Dataset] | None = None
        try:
            with open_hdf5(path) as file:
                self._describe(safe_dataset(path, file, name))
            self._handle = os.open(path, os.O_RDONLY)
        except _HDF5_ERRORS as error:
            raise InputError(f"{path}: not a valid HDF5 file: {error}") from error
        closing = weakref.finalize(self, os.close, self._handle)
        closing.atexit = False  # a thread may still read while the interpreter ends

    def _describe(self, data: "h5py.Dataset") -> None:
        self.shape: tuple[int, ...] = data.shape
        self.dtype: np.dtype[Any] = data.dtype
        self.filters = _filters(data)
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self._chunked = data.chunks is not None
        self.rows_per_chunk = (
            data.chunks[0] if self._chunked else max(1, _BLOCK_BYTES // max(1, self._row_bytes))
        )
        self._chunk_bytes = self.rows_per_chunk * self._row_bytes
        if self._chunked and self._chunk_bytes > _MOST_CHUNK_BYTES:
            raise InputError(f"{self.path}: a chunk of {self._chunk_bytes:,} bytes is too large")
        self._direct = self.dtype.kind in "iuf" and self._find_chunks(data)
        needs_check = FLETCHER32 in self.filters and not self._trusted
        self._plain = self._direct and not needs_check and set(self.filters) <= {FLETCHER32}

    def _find_chunks(self, data: "h5py.Dataset") -> bool:
        """Where every chunk stands; False when the library has to read them."""
        count = -(-self.rows // self.rows_per_chunk)
        if not self._chunked:
            start = data.id.get_offset()
            if start is None:
                return not count
            first = np.arange(count, dtype=np.int64) * self.rows_per_chunk
            rows = np.minimum(self.rows_per_chunk, self.rows - first)
            self._offsets, self._sizes = start + first * self._row_bytes, rows * self._row_bytes
            return True
        if data.chunks[1:] != self.shape[1:] or not KNOWN.issuperset(self.filters):
            return False
        stored = data.id.get_num_chunks()
        if stored != count:
            raise InputError(
                f"{self.path}: {self.name!r} declares {self.rows:,} rows in {count:,} chunks, "
                f"but stores {stored:,} chunks"
            )
        chunks: list[h5py.h5d.StoreInfo] = []
        data.id.chunk_iter(chunks.append)
        chunks.sort(key=lambda info: info.chunk_offset[0])
        self._offsets = np.array([info.byte_offset for info in chunks], np.int64)
        self._sizes = np.array([info.size for info in chunks], np.int64)
        if int(self._sizes.max(initial=0)) > self.path.stat().st_size:
            raise InputError(f"{self.path}: a chunk is larger than the file")
        return not any(info.filter_mask for info in chunks)

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return self.shape[0]

    def chunk(self, index: int) -> Array:
        """Rows [index * rows_per_chunk, ...) up to the next chunk; the last one may be shorter."""
        last = self._last
        if last is not None and last[0] == index:
            return last[1]
        start = index * self.rows_per_chunk
        stop = min(self.rows, start + self.rows_per_chunk)
        if self._direct:
            values = self._direct_chunk(index)[: stop - start]
        else:
            values = self._by_library(start, stop)
        values.flags.writeable = False
        self._last = (index, values)
        return values

    def _direct_chunk(self, index: int) -> Array:
        size, offset = int(self._sizes[index]), int(self._offsets[index])
        stored = os.pread(self._handle, size, offset)
        try:
            if len(stored) != size:
                raise DamagedChunk(f"only {len(stored):,} of its {size:,} bytes are there")
            want = self._chunk_bytes if self._chunked else size
            raw = undo_filters(stored, self.filters, want, self.dtype.itemsize, self._trusted)
        except DamagedChunk as error:
            raise IntegrityError(
                f"{self.path}: damaged: chunk {index} (rows from {index * self.rows_per_chunk}): "
                f"{error}"
            ) from error
        return raw.view(self.dtype).reshape(-1, *self.shape[1:])

    def _by_library(self, start: int, stop: int) -> Array:
        """Through the HDF5 library, which is opened again in every process."""
        try:
            if self._library is None or self._library[0] != os.getpid():
                self._library = os.getpid(), open_hdf5(self.path)[self.name]
            values: Array = self._library[1][start:stop]
        except _HDF5_ERRORS as error:
            raise IntegrityError(f"{self.path}: damaged: rows from {start}: {error}") from error
        return values

    def blocks(self, least: int = 1) -> Iterator[tuple[int, Array]]:
        """(first row, rows) in order, whole chunks of at least so many rows but for the last one;
        read-only."""
        step = self.rows_per_chunk * -(-least // self.rows_per_chunk)
        for start in range(0, self.rows, step):
            if step == self.rows_per_chunk:
                yield start, self.chunk(start // step)
            else:
                yield start, self.read(start, min(self.rows, start + step))

    def read(self, start: int, stop: int) -> Array:
        """Rows [start, stop), as a new array."""
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        per_chunk = self.rows_per_chunk
        for index in range(start // per_chunk, -(-stop // per_chunk)):
            first = index * per_chunk
            low, high = max(start, first), min(stop, first + per_chunk)
            part = out[low - start : high - start]
            if self._plain:
                self._read_plain(index, low - first, part)
            else:
                part[:] = self.chunk(index)[low - first : high - first]
        return out

    def take(self, rows_B: Rows, out: Array, where_B: Rows) -> None:
        """out[where_B] = rows at rows_B; a chunk is decoded once when its rows are neighbours."""
        plain = self._plain and out.dtype == self.dtype and out.flags.c_contiguous
        for row, place in zip(rows_B.tolist(), where_B.tolist(), strict=True):
            index, within = divmod(row, self.rows_per_chunk)
            if plain:
                self._read_plain(index, within, out[place : place + 1])
            else:
                out[place] = self.chunk(index)[within]

    def _read_plain(self, index: int, within: int, out: Array) -> None:
        """Rows of a chunk that is stored as it is, straight into `out`."""
        offset = int(self._offsets[index]) + within * self._row_bytes
        if os.preadv(self._handle, [out.data], offset) != out.nbytes:
            raise IntegrityError(f"{self.path}: damaged: it ends before chunk {index}")


def open_hdf5(path: Path) -> "h5py.File":
    """Open a file for reading, whoever else has it open: through a handle of our own, since the
    library refuses a file that this process has open with other locking flags. Raises OSError."""
    import h5py

    return h5py.File(open(fetch(path), "rb"), "r")


def safe_dataset(path: Path, file: "h5py.File", name: str = DATASET) -> "h5py.Dataset":
    """A dataset whose data stands in this very file and needs no plugin.

    Raises InputError for links to other objects or files, data kept in other files, virtual
    datasets and filters that plain h5py does not bring along.
    """
    import h5py

    link = file.get(name, getlink=True)
    if link is None or not isinstance(link, h5py.HardLink):
        what = "no dataset" if link is None else f"a {type(link).__name__} instead of a dataset"
        raise InputError(f"{path}: {what} named {name!r}")
    data = file[name]
    if not isinstance(data, h5py.Dataset):
        raise InputError(f"{path}: {name!r} is a {type(data).__name__}, expected a dataset")
    if data.external or data.is_virtual:
        raise InputError(f"{path}: {name!r} keeps its data in other files, which is refused")
    if data.shape is None or not data.ndim:
        raise InputError(f"{path}: {name!r} is not an array")
    if data.shape[0] and data.id.get_storage_size() == 0:
        raise InputError(f"{path}: declares {data.shape[0]:,} rows but stores none of them")
    for code in _filters(data):
        if code >= h5py.h5z.FILTER_RESERVED and code != h5py.h5z.FILTER_LZF:
            raise InputError(
                f"{path}: {name!r} needs the filter plugin {code}, which is refused; "
                "write it with gzip, lzf or no compression"
            )
    return data


def _filters(data: "h5py.Dataset") -> tuple[int, ...]:
    """Codes of the filters, in the order they are applied on writing."""
    creation = data.id.get_create_plist()
    return tuple(creation.get_filter(place)[0] for place in range(creation.get_nfilters()))
