"""Identities of documents and of data.

Identities of documents: `doc_key`, `text_key` and `doc_id`.

`doc_key` (16 bytes) = xxh3-128(input name, path relative to the input, ordinal) names a document
for ever: it keys randomness, shuffle rank, lineage and decisions. `text_key` = xxh3-128(cleaned
text) drives splits. `doc_id` = task index << 32 | ordinal in the task is only a row address in one
run.

Content hashes: what the data says, independent of how a file format laid it out.

Byte identity of files is promised for one `constraints.txt` and CPU family; content identity
everywhere. Fingerprints chain on content.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from dedup.arrays import U64

KEY_BYTES = 16


@contextmanager
def _hide_package(name: str) -> Iterator[None]:
    """Within the block a package that was not imported yet cannot be."""

    def refuse(wanted: str, *_: Any) -> None:
        if wanted == name:
            raise ModuleNotFoundError(f"{name} is not needed here")

    finder: Any = SimpleNamespace(find_spec=refuse)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


# pyarrow looks for pandas once, when it makes an array, and importing that takes 0.2 s.
with _hide_package("pandas"):
    pa.array([0])


def doc_key(input_name: str, path: str, ordinal: int) -> bytes:
    """The identity of the record with 0-based `ordinal` (blank lines apart) in an input's file."""
    return key_of_prefix(path_prefix(input_name, path), ordinal)


def path_prefix(input_name: str, path: str) -> bytes:
    """The part of `doc_key` that all records of a file share."""
    name, relative = input_name.encode(), path.encode("utf-8", "surrogateescape")
    return len(name).to_bytes(4, "little") + name + relative


def key_of_prefix(prefix: bytes, ordinal: int) -> bytes:
    """`doc_key` from a file's `path_prefix` and the ordinal."""
    return xxhash.xxh3_128_digest(prefix + ordinal.to_bytes(8, "little"))


def text_key(text: bytes) -> bytes:
    """xxh3-128 of the cleaned UTF-8 text, 16 bytes."""
    return xxhash.xxh3_128_digest(text)


def text_keys(texts: pa.LargeStringArray) -> pa.FixedSizeBinaryArray:
    """`text_key` of every text, (N,) fixed_size_binary(16), without a copy of any."""
    _, ends, data = texts.buffers()
    view = memoryview(data or b"")
    bounds = np.frombuffer(ends, np.int64, len(texts) + 1, texts.offset * 8).tolist()
    digest = xxhash.xxh3_128_digest
    keys = b"".join([digest(view[a:b]) for a, b in itertools.pairwise(bounds)])
    kind = pa.binary(KEY_BYTES)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(texts), [None, pa.py_buffer(keys)])


def keys_as_u64(keys: pa.Array | pa.ChunkedArray) -> U64:
    """View fixed_size_binary(16) keys, (N,), as (N, 2) uint64 (little-endian halves)."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if len(keys) == 0:
        return np.zeros((0, 2), np.uint64)
    flat = np.frombuffer(keys.buffers()[1], np.uint8)
    start = keys.offset * KEY_BYTES
    return flat[start : start + len(keys) * KEY_BYTES].view("<u8").reshape(-1, 2)


def keys_from_u64(keys_N2: U64) -> pa.FixedSizeBinaryArray:
    """The inverse of `keys_as_u64`."""
    buffer = pa.py_buffer(np.ascontiguousarray(keys_N2).tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), len(keys_N2), [None, buffer])


def hex_keys(keys: pa.Array | pa.ChunkedArray) -> pa.StringArray:
    """Keys (N,) as strings of 32 hex digits."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    data = np.ascontiguousarray(keys_as_u64(keys)).view(np.uint8).reshape(-1)
    text = np.stack([digits[data >> 4], digits[data & 15]], axis=1).reshape(-1)
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * (2 * KEY_BYTES)
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(text))


def sort_order(keys_N2: U64, *before: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Indices that sort by the columns `before` (each (N,), the last counting most), then by key in
    byte order (the order of hex strings); (N,) int64, stable.
    """
    big_endian = keys_N2.byteswap()
    return np.lexsort((big_endian[:, 1], big_endian[:, 0], *before))


def array_hash(array: npt.NDArray[np.generic]) -> str:
    """xxh3-128 over dtype, shape and values (little-endian, C order); hex."""
    digest = begin_array_hash(array.dtype, array.shape)
    digest.update(np.ascontiguousarray(array).data if array.size else b"")
    return digest.hexdigest()


def begin_array_hash(dtype: np.dtype[Any], shape: tuple[int, ...]) -> xxhash.xxh3_128:
    """`array_hash` of an array that comes in parts: what their values are still to be put into."""
    return xxhash.xxh3_128(f"{dtype.str}{shape}".encode())


_STRINGS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def table_hash(table: pa.Table) -> str:
    """xxh3-128 over column names, types and values; dictionaries count as their values; hex.

    Neither chunks nor slices count. Columns of 32-bit offsets must hold less than 2 GiB.
    """
    digest = xxhash.xxh3_128()
    for name, column in zip(table.column_names, table.columns, strict=True):
        nulls = f":{column.null_count}" if column.null_count else ""
        is_dictionary = pa.types.is_dictionary(column.type)
        kind = column.type.value_type if is_dictionary else column.type
        digest.update(f"{name}:{kind}:{len(column)}{nulls};".encode())
        _update(digest, column.chunks)
    return digest.hexdigest()


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
