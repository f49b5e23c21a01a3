"""Build HDF5 shards in memory, so that they are published like any other bytes.

HDF5 writing in place crashes the interpreter on a full disk and can leave a readable wrong file
after a kill (measured: docs/guarantees.md); a memory image does neither.
"""

import io
import struct

import h5py
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from pipeline.hdf5.format import CHANNELS, COUNT_ATTRIBUTE, DATASET, rows_per_chunk

_DEFLATE_LEVEL = 1


def sample_shard(rows_N3S: npt.NDArray[np.int32]) -> bytes:
    """The file image of one shard; rows_N3S is (N, 3, MSL) int32, N >= 1.

    Chunks are deflated here and stored with `write_direct_chunk` under the ordinary deflate and
    fletcher32 filters, so any HDF5 reader opens them; the checksum is ours to append.
    """
    count, channels, length = rows_N3S.shape
    if channels != CHANNELS or count == 0 or rows_N3S.dtype != np.int32:
        raise ValueError(f"expected int32 (N >= 1, {CHANNELS}, MSL), got {rows_N3S.shape}")
    per_chunk = min(rows_per_chunk(length), count)
    buffer = io.BytesIO()
    with h5py.File("shard", "w", driver="core", backing_store=False, libver="v110") as file:
        file.attrs[COUNT_ATTRIBUTE] = count
        data = file.create_dataset(
            DATASET, shape=rows_N3S.shape, dtype="<i4", chunks=(per_chunk, CHANNELS, length),
            compression="gzip", compression_opts=_DEFLATE_LEVEL, fletcher32=True, track_times=False,
        )  # fmt: skip
        block = np.zeros((per_chunk, CHANNELS, length), "<i4")
        for start in range(0, count, per_chunk):
            part = rows_N3S[start : start + per_chunk]
            block[: len(part)] = part
            block[len(part) :] = 0
            packed = isal_zlib.compress(block.tobytes(), _DEFLATE_LEVEL)
            checked = packed + struct.pack("<I", fletcher32(packed))
            data.id.write_direct_chunk((start, 0, 0), checked, filter_mask=0)
        file.flush()
        buffer.write(file.id.get_file_image())
    return buffer.getvalue()


def fletcher32(data: bytes) -> int:
    """HDF5's fletcher32 of a byte string (H5checksum.c: big-endian 16-bit words, modulo 65535).

    The sums are never reduced to 0 once non-zero (65535 stands for it), as folding in C does.
    """
    padded = data + b"\0" if len(data) % 2 else data
    words = np.frombuffer(padded, ">u2").astype(np.uint64)
    total = int(words.sum())
    weights = np.arange(len(words), 0, -1, dtype=np.uint64)
    weighted = int((words * (weights % np.uint64(65535))).sum())
    return (_folded(weighted) << 16) | _folded(total)


def _folded(total: int) -> int:
    """Reduce modulo 65535 by folding, which keeps 65535 instead of 0 for a non-zero sum."""
    reduced = total % 65535
    return 65535 if reduced == 0 and total else reduced
