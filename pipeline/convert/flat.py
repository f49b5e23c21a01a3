"""Token ids in `.bin` files, as source and as target: with an `.idx`, version 1 of the mmap index
of Megatron-LM and GPT-NeoX, or without (nanoGPT). An index, all little-endian:

    magic     9 bytes  MMIDIDX and two zero bytes
    version   u64      1
    dtype     u8       1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16 (floats are refused)
    sequences u64      S
    documents u64      D: the length of the last array
    sizes     i32[S]   tokens of each sequence
    pointers  i64[S]   byte offset of each sequence in the .bin
    doc_idx   i64[D]   first sequence of each document, then S (older writers begin with 0 as well)

A `.bin` is one file however large it is, so the stream is first published in parts, which are then
joined in one pass and removed: until then they need their place twice.
"""

import bisect
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64, Array
from pipeline.convert.pack import Buffer, ShardPlace
from pipeline.convert.stream import (
    NO_CUTS,
    Ends,
    Mark,
    OutputFile,
    StreamBlock,
    StreamFacts,
    StreamVocabulary,
    check_ids,
)
from pipeline.core import failpoint, storage
from pipeline.core.errors import InputError
from pipeline.core.mirror.fetching import fetch

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_HEADER = struct.Struct("<9sQBQQ")
_PIECE = 1 << 20
_LARGEST_SIZE = (1 << 31) - 1


@dataclass(frozen=True)
class SequenceIndex:
    """A checked index, its arrays mapped, not loaded."""

    path: Path
    dtype: np.dtype[Any]
    pointers: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]
    """First sequence of each document, then the number of sequences."""
    tokens: int

    def document_ends(self, low: int, high: int) -> npt.NDArray[np.int64]:
        """Token positions in (low, high] behind the last token of a document, ascending."""
        positions = range(len(self.documents))
        first = bisect.bisect_right(positions, low, key=self._token)
        last = bisect.bisect_right(positions, high, key=self._token)
        starts = np.array(self.documents[first:last])
        inside = starts < len(self.pointers)
        ends = np.full(len(starts), self.tokens, np.int64)
        ends[inside] = self.pointers[starts[inside]] // self.dtype.itemsize
        return np.unique(ends)

    def _token(self, document: int) -> int:
        """The token at which a document begins."""
        sequence = int(self.documents[document])
        if sequence == len(self.pointers):
            return self.tokens
        return int(self.pointers[sequence]) // self.dtype.itemsize


def read_sequence_index(path: Path, data_bytes: int) -> SequenceIndex:
    """The index at `path` of a .bin of `data_bytes` bytes.

    Raises InputError for anything but a version 1 index whose sequences follow each other from the
    beginning to the end of the .bin.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            header = file.read(_HEADER.size)
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    if not header.startswith(MAGIC):
        raise InputError(f"{path}: not an mmap index of Megatron-LM or GPT-NeoX (MMIDIDX)")
    if len(header) < _HEADER.size:
        raise InputError(f"{path}: cut off after {len(header)} bytes, inside its header")
    _, version, code, sequences, documents = _HEADER.unpack(header)
    if version != VERSION:
        raise InputError(f"{path}: index version {version}, expected {VERSION}")
    if code not in DTYPES:
        raise InputError(f"{path}: dtype code {code}, expected one of {sorted(DTYPES)} (integers)")
    needed = _HEADER.size + 12 * sequences + 8 * documents
    if size != needed:
        raise InputError(
            f"{path}: {size:,} bytes, but {sequences:,} sequences and {documents:,} documents "
            f"need {needed:,}"
        )
    mapped: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    sizes, pointers, doc_idx = _arrays(mapped, sequences, documents)
    dtype = np.dtype(DTYPES[code])
    tokens = _check_sequences(path, sizes, pointers, dtype.itemsize)
    if tokens * dtype.itemsize != data_bytes:
        raise InputError(
            f"{path}: sequences of {tokens:,} tokens, {tokens * dtype.itemsize:,} bytes, but the "
            f".bin has {data_bytes:,}"
        )
    _check_documents(path, doc_idx, sequences)
    return SequenceIndex(path, dtype, pointers, doc_idx, tokens)


def _arrays(mapped: npt.NDArray[np.uint8], sequences: int, documents: int) -> tuple[Any, Any, Any]:
    ends = np.cumsum([_HEADER.size, 4 * sequences, 8 * sequences, 8 * documents])
    sizes, pointers, doc_idx = (
        mapped[ends[i] : ends[i + 1]].view(kind) for i, kind in enumerate(("<i4", "<i8", "<i8"))
    )
    return sizes, pointers, doc_idx


def _check_sequences(path: Path, sizes: Any, pointers: Any, itemsize: int) -> int:
    """Tokens of all sequences, whose pointers must be the running sum of the sizes."""
    tokens = 0
    for begin in range(0, len(sizes), _PIECE):
        part = sizes[begin : begin + _PIECE].astype(np.int64)
        if part.min() < 0:
            wrong = begin + int(np.argmin(part))
            raise InputError(f"{path}: sequence {wrong} has the size {int(part.min())}")
        starts = (tokens + np.cumsum(part) - part) * itemsize
        wrong_at = np.flatnonzero(starts != pointers[begin : begin + _PIECE])
        if len(wrong_at):
            at = int(wrong_at[0])
            raise InputError(
                f"{path}: sequence {begin + at} begins at byte {int(pointers[begin + at])}, "
                f"expected {int(starts[at])}, the end of the one before"
            )
        tokens += int(part.sum())
    return tokens


def _check_documents(path: Path, doc_idx: Any, sequences: int) -> None:
    if not len(doc_idx) and not sequences:
        return
    if not len(doc_idx) or doc_idx[0] != 0 or doc_idx[-1] != sequences:
        raise InputError(f"{path}: its documents do not begin at 0 and end at {sequences}")
    for begin in range(0, len(doc_idx), _PIECE):
        if (np.diff(doc_idx[begin : begin + _PIECE + 1]) < 0).any():
            raise InputError(f"{path}: its documents are out of order")


def index_bytes(
    dtype: np.dtype[Any], documents: int, sizes: Callable[[], Iterator[npt.NDArray[np.int64]]]
) -> Iterator[bytes]:
    """An index of one sequence a document, piece by piece; `sizes` yields their tokens, in pieces
    of any length, and is called twice. Raises InputError for a document beyond 32 bits.
    """
    code = next(c for c, name in DTYPES.items() if np.dtype(name) == dtype)
    yield _HEADER.pack(MAGIC, VERSION, code, documents, documents + 1)
    for part in sizes():
        if len(part) and int(part.max()) > _LARGEST_SIZE:
            raise InputError(
                f"a document of {int(part.max()):,} tokens; an .idx holds up to {_LARGEST_SIZE:,}"
            )
        yield part.astype("<i4").tobytes()
    end = 0
    for part in sizes():
        ends = end + np.cumsum(part, dtype=np.int64)
        yield ((ends - part) * dtype.itemsize).astype("<i8").tobytes()
        end = int(ends[-1]) if len(ends) else end
    for begin in range(0, documents + 1, _PIECE):
        yield np.arange(begin, min(begin + _PIECE, documents + 1), dtype="<i8").tobytes()


def file_size(path: Path) -> int:
    """Bytes of a regular file. Raises InputError."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error


_BLOCK = 1 << 20
"""Tokens in a block."""


class BinSource:
    """`.bin` files in the order given. A mark is (file, token)."""

    def __init__(self, paths: Sequence[Path], vocabulary: StreamVocabulary, ends: Ends) -> None:
        self.ends = ends
        self.paths = tuple(paths)
        self.indexes = tuple(_read_index(path) for path in paths)
        kinds = {".bin without .idx" if i is None else ".bin with .idx" for i in self.indexes}
        counts = [_tokens(p, i) for p, i in zip(self.paths, self.indexes, strict=True)]
        files = tuple((str(path), file_size(path)) for path in paths)
        self.facts = StreamFacts(
            kind=" and ".join(sorted(kinds)),
            files=files,
            unit="tokens",
            vocabulary=vocabulary,
            items=sum(counts),
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


def _read_index(path: Path) -> SequenceIndex | None:
    index = path.with_suffix(".idx")
    return read_sequence_index(index, file_size(path)) if index.exists() else None


def id_limit(path: Path) -> int | None:
    """How many ids a .bin can hold, where that is fewer than 2^31."""
    index = _read_index(path)
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


NAME = "tokens"
_PARTS = "parts"
_BINARY_PIECE = 1 << 22


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
        facts = {
            "tokens": count,
            "documents": int(eos.sum()),
            "ended": bool(eos[-1]),
            "output": output,
        }
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
        with open(fetch(part), "rb") as file:
            while piece := file.read(_BINARY_PIECE):
                yield piece
