"""Content hashes: what the data says, independent of how a file format laid it out.

Byte identity of files is promised for one `constraints.txt` and CPU family; content identity
everywhere. Fingerprints chain on content.
"""

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


def table_hash(table: pa.Table) -> str:
    """xxh3-128 over column names, types and values; dictionaries count as their values; hex.

    Neither chunks nor slices count. Columns of 32-bit offsets must hold less than 2 GiB.
    """
    digest = xxhash.xxh3_128()
    for name, column in zip(table.column_names, table.columns, strict=True):
        nulls = f":{column.null_count}" if column.null_count else ""
        digest.update(f"{name}:{_plain(column.type)}:{len(column)}{nulls};".encode())
        _update(digest, column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
    return digest.hexdigest()


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _update(digest: xxhash.xxh3_128, array: pa.Array) -> None:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _update(digest, array.dictionary_decode())
    if array.null_count:
        digest.update(np.packbits(pc.is_valid(array).to_numpy(zero_copy_only=False)).tobytes())
        array = array.drop_null()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        digest.update(pc.list_value_length(array).cast(pa.int64()).to_numpy().tobytes())
        return _update(digest, array.flatten())
    if pa.types.is_fixed_size_list(kind):
        return _update(digest, array.flatten())
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        return _update_strings(digest, array)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        start = array.offset * width
        if len(array):
            digest.update(array.buffers()[1][start : start + len(array) * width])
        return None
    if pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype.hasobject and len(values):
        raise TypeError(f"no content hash for values of type {kind}")
    digest.update(values.tobytes())
    return None


def _update_strings(digest: xxhash.xxh3_128, array: pa.Array) -> None:
    wide = array.cast(pa.large_binary())
    digest.update(pc.binary_length(wide).cast(pa.int64()).to_numpy().tobytes())
    if len(wide):
        offsets = np.frombuffer(wide.buffers()[1], np.int64)[
            wide.offset : wide.offset + len(wide) + 1
        ]
        data = wide.buffers()[2]
        if data is not None:
            digest.update(data[int(offsets[0]) : int(offsets[-1])])
