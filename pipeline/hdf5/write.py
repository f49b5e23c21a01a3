"""Build HDF5 shards in memory, so that they are published like any other bytes.

HDF5 writing in place crashes the interpreter on a full disk and can leave a readable wrong file
after a kill (measured: docs/guarantees.md); a memory image does neither. Chunks are filtered here
and stored with `write_direct_chunk` under the ordinary deflate, shuffle and fletcher32 filters, so
any HDF5 reader opens them without a plugin; the checksum is ours to append.
"""

from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from dedup.arrays import Array
from pipeline.hdf5.chunk_filters import DEFLATE_LEVEL, append_checksum, compress, shuffle
from pipeline.hdf5.format import (
    CHANNELS,
    COUNT_ATTRIBUTE,
    DATASET,
    Compression,
    chunk_shape,
    layout_of,
)

_FILTERS: dict[Compression, dict[str, Any]] = {
    "gzip": {"compression": "gzip", "compression_opts": DEFLATE_LEVEL},
    "gzip-shuffle": {"compression": "gzip", "compression_opts": DEFLATE_LEVEL, "shuffle": True},
    "none": {},
}


def shard_image(array: Array, compression: Compression = "gzip") -> bytes:
    """The file image of one shard: `sample` (N, 3, MSL) int32, `vsl` (N, 5, MSL) int32 or `corpus`
    (tokens,) uint16 or uint32; N >= 1.

    The bytes depend on the values, the compression and the versions of h5py and deflate only.
    Raises ValueError for another shape or dtype.
    """
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    layout_of(array.shape, array.dtype.str)
    if not array.size:
        raise ValueError(f"a shard needs rows and tokens, got shape {array.shape}")
    chunks = chunk_shape(array.shape)
    with h5py.File("shard", "w", driver="core", backing_store=False, libver="v110") as file:
        file.attrs[COUNT_ATTRIBUTE] = array.shape[0]
        data = file.create_dataset(
            DATASET, shape=array.shape, dtype=array.dtype, chunks=chunks, fletcher32=True,
            track_times=False, **_FILTERS[compression],
        )  # fmt: skip
        beside = (0,) * (array.ndim - 1)
        for first, block in _blocks(array, chunks[0]):
            stored = append_checksum(_filtered(block, compression))
            data.id.write_direct_chunk((first, *beside), stored, filter_mask=0)
        file.flush()
        return bytes(file.id.get_file_image())


def sample_shard(rows_N3S: npt.NDArray[np.int32]) -> bytes:
    """`shard_image` of the `sample` layout: rows_N3S is (N, 3, MSL) int32, N >= 1."""
    if rows_N3S.ndim != 3 or rows_N3S.shape[1] != CHANNELS or rows_N3S.dtype != np.int32:
        raise ValueError(f"expected int32 (N >= 1, {CHANNELS}, MSL), got {rows_N3S.shape}")
    return shard_image(rows_N3S)


def _blocks(array: Array, per_chunk: int) -> Iterator[tuple[int, Array]]:
    """Whole chunks with the index of their first row; the last one filled up with zeros."""
    for first in range(0, len(array), per_chunk):
        part = array[first : first + per_chunk]
        if len(part) < per_chunk:
            block = np.zeros((per_chunk, *array.shape[1:]), array.dtype)
            block[: len(part)] = part
            part = block
        yield first, np.ascontiguousarray(part)


def _filtered(block: Array, compression: Compression) -> bytes:
    if compression == "none":
        return block.tobytes()
    return compress(shuffle(block) if compression == "gzip-shuffle" else block)
