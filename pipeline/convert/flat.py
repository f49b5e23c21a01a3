"""Token ids in `.bin` files: with an `.idx` (Megatron-LM, GPT-NeoX) or without (nanoGPT)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dedup.arrays import Array
from pipeline.convert.indexed import SequenceIndex, file_size, read_index
from pipeline.convert.stream import (
    NO_CUTS,
    Ends,
    Mark,
    StreamBlock,
    StreamFacts,
    StreamVocabulary,
    check_ids,
)
from pipeline.core.errors import InputError

_BLOCK = 1 << 20
"""Tokens in a block."""


class BinSource:
    """`.bin` files in the order given. A mark is (file, token)."""

    def __init__(self, paths: Sequence[Path], vocabulary: StreamVocabulary, ends: Ends) -> None:
        self.ends = ends
        self.paths = tuple(paths)
        self.indexes = tuple(_index_of(path) for path in paths)
        kinds = {".bin without .idx" if i is None else ".bin with .idx" for i in self.indexes}
        counts = [_tokens(p, i) for p, i in zip(self.paths, self.indexes, strict=True)]
        files = tuple((str(path), file_size(path)) for path in paths)
        self.facts = StreamFacts(
            " and ".join(sorted(kinds)), files, "tokens", vocabulary, sum(counts)
        )

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """See `StreamSource`."""
        first, begin = mark or (0, 0)
        for number in range(first, len(self.paths)):
            yield from self._file(number, begin)
            begin = 0

    def _file(self, number: int, begin: int) -> Iterator[StreamBlock]:
        path, index = self.paths[number], self.indexes[number]
        if file_size(path) == 0:
            return
        vocabulary = self.facts.vocabulary
        dtype = np.dtype("<u2") if index is None else index.dtype
        total = file_size(path) // dtype.itemsize
        for start in range(begin, total, _BLOCK):
            raw: Array = np.fromfile(path, dtype, _BLOCK, offset=start * dtype.itemsize)
            ids = check_ids(raw, vocabulary, f"{path}: tokens from {start}")
            stop = start + len(ids)
            ends = NO_CUTS if index is None else index.document_ends(start, stop) - start
            if index is None and stop == total:
                ends = np.array([len(ids)])
            last = stop == total and number == len(self.paths) - 1
            where = f"{path}: the document that ends before token {{}}"
            yield self.ends.block(StreamBlock(ids, (number, start)), ends, start, where, last)


def _index_of(path: Path) -> SequenceIndex | None:
    index = path.with_suffix(".idx")
    return read_index(index, file_size(path)) if index.exists() else None


def id_limit(path: Path) -> int | None:
    """How many ids a .bin can hold, where that is fewer than 2^31."""
    index = _index_of(path)
    return 1 << 16 if index is None or index.dtype.itemsize <= 2 else None


def _tokens(path: Path, index: SequenceIndex | None) -> int:
    if index is not None:
        return index.tokens
    size = file_size(path)
    if size % 2:
        raise InputError(
            f"{path}: {size:,} bytes, which is not a whole number of uint16 tokens, and there is "
            "no .idx next to it"
        )
    return size // 2
