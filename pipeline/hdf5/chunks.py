"""Chunks of HDF5 files filtered, stored and read without the HDF5 library: shuffle, deflate and
fletcher32, and shards built in memory, so that they are published like any other bytes.

HDF5 writing in place crashes the interpreter on a full disk and can leave a readable wrong file
after a kill (docs/guarantees.md). Chunks are stored by `write_direct_chunk` under the ordinary
filters, so any HDF5 reader opens them. libdeflate's output is a function of the input, the level
and its version; it reads 2.5 to 3 times as fast as the zlib inside HDF5. `word_deflate` writes
chunks of 32-bit numbers in half its time.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import deflate
import numpy as np
import numpy.typing as npt

from dedup.arrays import Array
from pipeline.core.ids import begin_array_hash
from pipeline.hdf5.format import (
    CHANNELS,
    COUNT_ATTRIBUTE,
    DATASET,
    Compression,
    chunk_shape,
    find_layout,
)
from pipeline.hdf5.word_deflate import compress_words

_MODULUS = 65535
_BLOCK = 1 << 13
"""Words per block: few enough that BLAS starts no threads for a dot product, and that a float64
holds every sum exactly."""
_WEIGHTS = np.arange(_BLOCK, 0, -1, dtype=np.float64)
_ONES = np.ones(_BLOCK)


def fletcher32(data: bytes | memoryview) -> int:
    """The fletcher32 that HDF5 stores, little-endian, behind the bytes `data` of a chunk.

    >>> hex(fletcher32(b"abcde"))
    '0x4ff029c7'
    """
    words = np.frombuffer(data, "<u2", len(data) // 2)
    odd = len(data) % 2
    left = len(words) + odd
    total = weighted = 0
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK].astype(np.float64)
        left -= len(block)
        block_sum = int(block @ _ONES[: len(block)])
        weighted += int(block @ _WEIGHTS[_BLOCK - len(block) :]) + left * block_sum
        total += block_sum
    if odd:
        total += data[-1]
        weighted += data[-1]
    return _reduce(weighted) << 16 | _reduce(total)


def _reduce(total: int) -> int:
    """Bytes swapped, modulo 65535; as in C, 65535 stands for 0 unless every word is 0."""
    swapped = total * 256 % _MODULUS
    return _MODULUS if swapped == 0 and total else swapped


Bytes = npt.NDArray[np.uint8]

DEFLATE_LEVEL = 1

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3  # the numbers that HDF5 gives its own filters
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
            data = _inflate(data, size, trusted or FLETCHER32 in filters)
        elif code == SHUFFLE:
            data = _unshuffle(data, itemsize)
    if len(data) != size:
        raise DamagedChunk(f"{len(data):,} bytes instead of {size:,}")
    return np.frombuffer(data, np.uint8)


def _checked(data: memoryview, trusted: bool) -> memoryview:
    body = data[:-_CHECKSUM]
    if not trusted and fletcher32(body) != int.from_bytes(data[-_CHECKSUM:], "little"):
        raise DamagedChunk("its fletcher32 checksum differs")
    return body


def _inflate(data: memoryview, size: int, checked: bool) -> memoryview:
    """A zlib stream; its own checksum is skipped when another one covers it."""
    try:
        if checked:
            return memoryview(deflate.deflate_decompress(data[_ZLIB_HEADER:-_ADLER], size))
        return memoryview(deflate.zlib_decompress(data, size))
    except deflate.DeflateError as error:
        raise DamagedChunk("it is not a deflate stream of the expected size") from error


def _unshuffle(data: memoryview, itemsize: int) -> memoryview:
    """Byte planes back to values; what does not fill a value stays at the end."""
    whole = len(data) // itemsize * itemsize
    planes = np.frombuffer(data, np.uint8, whole).reshape(itemsize, -1)
    values = np.ascontiguousarray(planes.T).reshape(-1)
    return np.concatenate([values, np.frombuffer(data[whole:], np.uint8)]).data


_FILTERS: dict[Compression, dict[str, Any]] = {
    "gzip": {"compression": "gzip", "compression_opts": DEFLATE_LEVEL},
    "gzip-shuffle": {"compression": "gzip", "compression_opts": DEFLATE_LEVEL, "shuffle": True},
    "none": {},
}


class Rows(Protocol):
    """Rows, or tokens, of a shard: an array, or what makes some of them at a time."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102

    def __getitem__(self, rows: slice, /) -> Array: ...


def build_shard(rows: Rows, compression: Compression = "gzip") -> tuple[bytes, str]:
    """The file image of one shard and the hash of its values, as `pipeline.core.ids.array_hash`:
    `sample` (N, 3, MSL) int32, `vsl` (N, 5, MSL) int32 or `corpus` (tokens,) uint16 or uint32;
    N >= 1.

    The bytes depend on the values, the compression and the versions of h5py and deflate only.
    Raises ValueError for another shape or dtype.
    """
    import h5py

    dtype = rows.dtype.newbyteorder("<")
    find_layout(rows.shape, dtype.str)
    if 0 in rows.shape:
        raise ValueError(f"a shard needs rows and tokens, got shape {rows.shape}")
    chunks, digest = chunk_shape(rows.shape), begin_array_hash(dtype, rows.shape)
    with h5py.File("shard", "w", driver="core", backing_store=False, libver="v110") as file:
        file.attrs[COUNT_ATTRIBUTE] = rows.shape[0]
        data = file.create_dataset(
            DATASET,
            shape=rows.shape,
            dtype=dtype,
            chunks=chunks,
            fletcher32=True,
            track_times=False,
            **_FILTERS[compression],
        )
        beside = (0,) * (len(chunks) - 1)
        for first in range(0, rows.shape[0], chunks[0]):
            part = np.ascontiguousarray(rows[first : first + chunks[0]], dtype)
            digest.update(part.data)
            stored = append_checksum(_filter(_fill_up(part, chunks[0]), compression))
            data.id.write_direct_chunk((first, *beside), stored, filter_mask=0)
        file.flush()
        return bytes(file.id.get_file_image()), digest.hexdigest()


def shard_image(rows: Rows, compression: Compression = "gzip") -> bytes:
    """The file image alone; see `build_shard`."""
    return build_shard(rows, compression)[0]


def sample_shard(rows_N3S: npt.NDArray[np.int32]) -> bytes:
    """`shard_image` of the `sample` layout: rows_N3S is (N, 3, MSL) int32, N >= 1."""
    if rows_N3S.ndim != 3 or rows_N3S.shape[1] != CHANNELS or rows_N3S.dtype != np.int32:
        raise ValueError(f"expected int32 (N >= 1, {CHANNELS}, MSL), got {rows_N3S.shape}")
    return shard_image(rows_N3S)


def _fill_up(part: Array, per_chunk: int) -> Array:
    """A whole chunk: the last one of a shard is filled up with zeros."""
    if len(part) == per_chunk:
        return part
    return np.concatenate([part, np.zeros((per_chunk - len(part), *part.shape[1:]), part.dtype)])


def _filter(block: Array, compression: Compression) -> bytes:
    if compression == "none":
        return block.tobytes()
    if compression == "gzip-shuffle":
        return compress(shuffle(block))
    return compress_words(block) if block.itemsize == 4 else compress(block)
