"""Identities of documents: `doc_key`, `text_key` and `doc_id`.

`doc_key` (16 bytes) = xxh3-128(input name, path relative to the input, ordinal) names a document
for ever: it keys randomness, shuffle rank, lineage and decisions. `text_key` = xxh3-128(cleaned
text) drives splits. `doc_id` = task index << 32 | ordinal in the task is only a row address in one
run.
"""

import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from dedup.arrays import U64

KEY_BYTES = 16


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
