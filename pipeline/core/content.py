"""Content hashes: what the data says, independent of how a file format laid it out.

Byte identity of files is promised for one `constraints.txt` and CPU family; content identity
everywhere. Fingerprints chain on content.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash


def array_hash(array: npt.NDArray[np.generic]) -> str:
    """xxh3-128 over dtype, shape and values (little-endian, C order); hex."""
    digest = xxhash.xxh3_128(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data if array.size else b"")
    return digest.hexdigest()


_STRINGS = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
)  # fmt: skip


def table_hash(table: pa.Table) -> str:
    """xxh3-128 over column names, types and values; dictionaries count as their values; hex.

    Neither chunks nor slices count. Columns of 32-bit offsets must hold less than 2 GiB.
    """
    digest = xxhash.xxh3_128()
    for name, column in zip(table.column_names, table.columns, strict=True):
        nulls = f":{column.null_count}" if column.null_count else ""
        digest.update(f"{name}:{_plain(column.type)}:{len(column)}{nulls};".encode())
        _update(digest, column.chunks)
    return digest.hexdigest()


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _update(digest: xxhash.xxh3_128, chunks: Sequence[pa.Array]) -> None:
    """Hash a column as if its chunks were one array, without joining them."""
    if not chunks:
        return
    kind = chunks[0].type
    if pa.types.is_dictionary(kind):
        return _update(digest, [chunk.dictionary_decode() for chunk in chunks])
    if any(chunk.null_count for chunk in chunks):
        valid = [pc.is_valid(chunk).to_numpy(zero_copy_only=False) for chunk in chunks]
        digest.update(np.packbits(np.concatenate(valid)).data)
        chunks = [chunk.drop_null() for chunk in chunks]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _update_values(digest, [pc.list_value_length(chunk).cast(pa.int64()) for chunk in chunks])
        return _update(digest, [chunk.flatten() for chunk in chunks])
    if pa.types.is_fixed_size_list(kind):
        return _update(digest, [chunk.flatten() for chunk in chunks])
    if any(is_kind(kind) for is_kind in _STRINGS):
        return _update_strings(digest, [chunk.cast(pa.large_binary()) for chunk in chunks])
    if pa.types.is_fixed_size_binary(kind):
        return _update_fixed(digest, chunks)
    if pa.types.is_boolean(kind):
        chunks = [chunk.cast(pa.uint8()) for chunk in chunks]
    return _update_values(digest, chunks)


def _update_values(digest: xxhash.xxh3_128, chunks: Sequence[pa.Array]) -> None:
    for chunk in chunks:
        values = chunk.to_numpy(zero_copy_only=False)
        if values.dtype.hasobject and len(values):
            raise TypeError(f"no content hash for values of type {chunk.type}")
        if len(values):
            digest.update(np.ascontiguousarray(values).view(np.uint8).data)


def _update_fixed(digest: xxhash.xxh3_128, chunks: Sequence[pa.Array]) -> None:
    for chunk in chunks:
        width = chunk.type.byte_width
        start = chunk.offset * width
        if len(chunk):
            digest.update(chunk.buffers()[1][start : start + len(chunk) * width])


def _update_strings(digest: xxhash.xxh3_128, chunks: Sequence[pa.Array]) -> None:
    _update_values(digest, [pc.binary_length(chunk).cast(pa.int64()) for chunk in chunks])
    for chunk in chunks:
        _, ends, data = chunk.buffers()
        if len(chunk) and data is not None:
            offsets = np.frombuffer(ends, np.int64, len(chunk) + 1, chunk.offset * 8)
            digest.update(data[int(offsets[0]) : int(offsets[-1])])
