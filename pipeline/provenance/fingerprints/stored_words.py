"""Words of a text in little room: a vocabulary of hashes, and the place of every word in it."""

import numpy as np
import pyarrow as pa

from dedup.arrays import U64

_LEVEL = 9


def pack_words(words: U64) -> tuple[bytes, bytes]:
    """The vocabulary, uint64 hashes with the most frequent first; and the number of every word in
    it, uint16 or for more than 65,536 different ones uint32, by zstd. Little endian."""
    vocabulary, numbers, times = np.unique(words, return_inverse=True, return_counts=True)
    order = np.argsort(-times, kind="stable")
    rank = np.empty(len(order), _kind(len(order)))
    rank[order] = np.arange(len(order))
    packed = pa.Codec("zstd", _LEVEL).compress(rank[numbers].tobytes(), asbytes=True)
    return vocabulary[order].astype("<u8").tobytes(), packed


def unpack_words(vocabulary: bytes, numbers: bytes, count: int) -> U64:
    """The `count` words that `pack_words` packed. Raises ValueError when they are damaged."""
    kind = np.dtype(_kind(len(vocabulary) // 8))
    try:
        unpacked = pa.Codec("zstd").decompress(numbers, count * kind.itemsize)
        words = np.frombuffer(vocabulary, "<u8")[np.frombuffer(unpacked, kind)]
    except (OSError, IndexError) as error:
        raise ValueError(f"stored words are damaged: {error}") from error
    return np.asarray(words, np.uint64)


def _kind(distinct: int) -> str:
    return "<u2" if distinct <= 1 << 16 else "<u4"
