"""The target `.bin` with `.idx`: one pair for Megatron-LM, GPT-NeoX and nanoGPT.

A `.bin` is one file however large it is, so the stream is first published in parts, which are then
joined in one pass and removed: while that goes on they need their place twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.convert.indexed import index_bytes
from pipeline.convert.pack import Buffer, Place
from pipeline.convert.stream import I64, Block, Shard, Vocabulary
from pipeline.core import failpoint, storage
from pipeline.core.errors import InputError

NAME = "tokens"
_PARTS = "parts"
_PIECE = 1 << 22


class BinTarget:
    """`tokens.bin`, uint16 or int32, and `tokens.idx`, a sequence per document."""

    def __init__(self, part_tokens: int, vocabulary: Vocabulary, place: Place) -> None:
        self.part_tokens = part_tokens
        self.vocabulary = vocabulary
        self.index = place.index
        self.consumed = place.consumed
        self.dtype = np.dtype("<u2" if vocabulary.dtype == np.uint16 else "<i4")
        self.buffer = Buffer()

    def ours(self, name: str) -> bool:
        """See `Target`."""
        return name in (f"{NAME}.bin", f"{NAME}.idx", _PARTS)

    def feed(self, block: Block) -> Iterator[Shard]:
        """See `Target`."""
        self.buffer.add(block.items)
        while self.buffer.length >= self.part_tokens:
            yield self._part(self.part_tokens)

    def finish(self) -> Iterator[Shard]:
        """See `Target`."""
        if self.buffer.length:
            yield self._part(self.buffer.length)
        elif not self.index:
            raise InputError("the stream is empty: there is nothing to write")

    def _part(self, count: int) -> Shard:
        tokens = self.buffer.take(count)
        name = f"{_PARTS}/{self.index:06d}.bin"
        self.index += 1
        self.consumed += count
        eos = tokens == self.vocabulary.eos_id
        facts = {"tokens": count, "documents": int(eos.sum()), "ended": bool(eos[-1])}
        return Shard(name, tokens.astype(self.dtype).tobytes(), self.consumed, facts)

    def commit(self, directory: Path, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Target`."""
        parts = [directory / str(s["file"]) for s in shards]
        ended = bool(shards[-1]["ended"])
        documents = sum(s["documents"] for s in shards) + (not ended)
        index = index_bytes(self.dtype, documents, lambda: self._sizes(parts))
        data = storage.publish(directory / f"{NAME}.bin", _pieces(parts))
        described = storage.publish(directory / f"{NAME}.idx", index)
        return {
            "tokens": sum(s["tokens"] for s in shards),
            "documents": documents,
            "documents_without_eos": int(not ended),
            "dtype": self.dtype.name,
            "files": {f"{NAME}.bin": data.hash, f"{NAME}.idx": described.hash},
        }

    def tidy(self, directory: Path) -> None:
        """Remove the parts, which the joined file holds."""
        failpoint.hit("convert.tidy")
        storage.remove_tree(directory / _PARTS)

    def _sizes(self, parts: list[Path]) -> Iterator[I64]:
        """Tokens of every document, in pieces."""
        open_tokens = 0
        for piece in _pieces(parts):
            tokens = np.frombuffer(piece, self.dtype)
            ends = np.flatnonzero(tokens == self.vocabulary.eos_id) + 1
            sizes = np.diff(ends, prepend=0)
            if len(ends):
                sizes[0] += open_tokens
                open_tokens = len(tokens) - int(ends[-1])
            else:
                open_tokens += len(tokens)
            yield sizes.astype(np.int64)
        if open_tokens:
            yield np.array([open_tokens], np.int64)


def _pieces(parts: list[Path]) -> Iterator[bytes]:
    for part in parts:
        with open(part, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece
