"""The target `.bin` with `.idx`: one pair for Megatron-LM, GPT-NeoX and nanoGPT, or one for each
split of a run.

A `.bin` is one file however large it is, so the stream is first published in parts, which are then
joined in one pass and removed: while that goes on they need their place twice.
"""

import bisect
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from dedup.arrays import I64
from pipeline.convert.indexed import index_bytes
from pipeline.convert.pack import Buffer, ShardPlace
from pipeline.convert.stream import OutputFile, StreamBlock, StreamVocabulary
from pipeline.core import failpoint, storage
from pipeline.core.errors import InputError

NAME = "tokens"
_PARTS = "parts"
_PIECE = 1 << 22


class BinTarget:
    """`tokens.bin`, uint16 or int32, and `tokens.idx`, a sequence per document; or such a pair for
    each of `outputs`, names with the tokens that each takes of the stream in turn."""

    def __init__(
        self,
        part_tokens: int,
        vocabulary: StreamVocabulary,
        place: ShardPlace,
        outputs: Mapping[str, int] | None = None,
    ) -> None:
        self.part_tokens = part_tokens
        self.outputs = {NAME: sys.maxsize} if outputs is None else dict(outputs)
        self.vocabulary = vocabulary
        self.index = place.index
        self.consumed = place.consumed
        self.dtype = np.dtype("<u2" if vocabulary.dtype == np.uint16 else "<i4")
        self.buffer = Buffer()

    def ours(self, name: str) -> bool:
        """See `Target`."""
        return name in (_PARTS, *(f"{o}{end}" for o in self.outputs for end in (".bin", ".idx")))

    def feed(self, block: StreamBlock) -> Iterator[OutputFile]:
        """See `Target`."""
        self.buffer.add(block.items)
        while (count := self._next_part()) and self.buffer.length >= count:
            yield self._part(count)

    def finish(self) -> Iterator[OutputFile]:
        """See `Target`."""
        if self.buffer.length:
            yield self._part(self.buffer.length)
        elif not self.index:
            raise InputError("the stream is empty: there is nothing to write")

    def _output(self) -> tuple[str, int]:
        """Where the next token goes, and how many fit there."""
        ends = list(accumulate(self.outputs.values()))
        place = min(bisect.bisect_right(ends, self.consumed), len(ends) - 1)
        return list(self.outputs)[place], ends[place] - self.consumed

    def _next_part(self) -> int:
        return min(self.part_tokens, self._output()[1])

    def _part(self, count: int) -> OutputFile:
        output, _ = self._output()
        tokens = self.buffer.take(count)
        name = f"{_PARTS}/{self.index:06d}.bin"
        self.index += 1
        self.consumed += count
        eos = tokens == self.vocabulary.eos_id
        facts = {"tokens": count, "documents": int(eos.sum()), "ended": bool(eos[-1]),
                 "output": output}  # fmt: skip
        return OutputFile(name, tokens.astype(self.dtype).tobytes(), self.consumed, facts)

    def commit(self, directory: Path, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Target`."""
        files: dict[str, str] = {}
        counts = {"tokens": 0, "documents": 0, "documents_without_eos": 0}
        for name in self.outputs:
            own = [s for s in shards if s["output"] == name]
            documents, ended = sum(s["documents"] for s in own), bool(own[-1]["ended"])
            files |= self._join(
                directory, name, [str(s["file"]) for s in own], documents + (not ended)
            )
            counts["tokens"] += sum(s["tokens"] for s in own)
            counts["documents"] += documents + (not ended)
            counts["documents_without_eos"] += not ended
        return {**counts, "dtype": self.dtype.name, "files": files}

    def _join(self, directory: Path, name: str, files: list[str], documents: int) -> dict[str, str]:
        """Publish a pair made of parts; file name -> hash."""
        parts = [directory / file for file in files]
        index = index_bytes(self.dtype, documents, lambda: self._sizes(parts))
        data = storage.publish(directory / f"{name}.bin", _pieces(parts))
        described = storage.publish(directory / f"{name}.idx", index)
        return {f"{name}.bin": data.hash, f"{name}.idx": described.hash}

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
