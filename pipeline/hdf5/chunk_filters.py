"""The filters of a chunk without the HDF5 library: shuffle, deflate, fletcher32.

libdeflate compresses and reads. Its output is a function of the input, the level and its version;
that of isal, which earlier versions used, also depended on where the process had its memory
(docs/guarantees.md). It reads a deflate stream 2.5 to 3 times as fast as the zlib inside HDF5, and
only into as much memory as a chunk has. Filters are undone in the reverse of the order they were
applied in.
"""

from collections.abc import Sequence
from typing import Any

import deflate
import h5py
import numpy as np
import numpy.typing as npt

from pipeline.hdf5.checksum import fletcher32

Bytes = npt.NDArray[np.uint8]

DEFLATE_LEVEL = 1

DEFLATE, SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE
FLETCHER32 = h5py.h5z.FILTER_FLETCHER32
KNOWN = frozenset({DEFLATE, SHUFFLE, FLETCHER32})
_ZLIB_HEADER, _ADLER = 2, 4
_CHECKSUM = 4


def compress(chunk: bytes | npt.NDArray[Any]) -> bytes:
    """A chunk (C-contiguous) as the zlib stream that HDF5's gzip filter reads."""
    return bytes(deflate.zlib_compress(chunk, DEFLATE_LEVEL))


def shuffle(block: npt.NDArray[Any]) -> Bytes:
    """The bytes of a C-contiguous block as HDF5's shuffle filter orders them: the first byte of
    every value, then the second of every value, and so on."""
    planes = block.reshape(-1).view(np.uint8).reshape(-1, block.itemsize).T
    return np.ascontiguousarray(planes)


def append_checksum(stored: bytes) -> bytes:
    """A filtered chunk with its fletcher32, little-endian, behind it."""
    return stored + fletcher32(stored).to_bytes(_CHECKSUM, "little")


class DamagedChunk(ValueError):
    """The stored bytes of a chunk are not what was written."""


def undo_filters(
    stored: bytes, filters: Sequence[int], size: int, itemsize: int, trusted: bool
) -> Bytes:
    """The `size` bytes of a chunk as (size,) uint8; `filters` in the order they were applied.

    `trusted` bytes were compared with a hash before, so their checksums are skipped. Raises
    DamagedChunk.
    """
    data = memoryview(stored)
    for code in reversed(filters):
        if code == FLETCHER32:
            data = _checked(data, trusted)
        elif code == DEFLATE:
            data = _inflated(data, size, trusted or FLETCHER32 in filters)
        elif code == SHUFFLE:
            data = _unshuffled(data, itemsize)
    if len(data) != size:
        raise DamagedChunk(f"{len(data):,} bytes instead of {size:,}")
    return np.frombuffer(data, np.uint8)


def _checked(data: memoryview, trusted: bool) -> memoryview:
    body = data[:-_CHECKSUM]
    if not trusted and fletcher32(body) != int.from_bytes(data[-_CHECKSUM:], "little"):
        raise DamagedChunk("its fletcher32 checksum differs")
    return body


def _inflated(data: memoryview, size: int, checked: bool) -> memoryview:
    """A zlib stream; its own checksum is skipped when another one covers it."""
    try:
        if checked:
            return memoryview(deflate.deflate_decompress(data[_ZLIB_HEADER:-_ADLER], size))
        return memoryview(deflate.zlib_decompress(data, size))
    except deflate.DeflateError as error:
        raise DamagedChunk("it is not a deflate stream of the expected size") from error


def _unshuffled(data: memoryview, itemsize: int) -> memoryview:
    """Byte planes back to values; what does not fill a value stays at the end."""
    whole = len(data) // itemsize * itemsize
    planes = np.frombuffer(data, np.uint8, whole).reshape(itemsize, -1)
    values = np.ascontiguousarray(planes.T).reshape(-1)
    return np.concatenate([values, np.frombuffer(data[whole:], np.uint8)]).data
