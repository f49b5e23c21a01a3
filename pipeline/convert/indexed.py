"""The `.idx` file beside a `.bin`: version 1 of Megatron-LM's and GPT-NeoX's mmap index.

    magic     9 bytes  b"MMIDIDX\\x00\\x00"
    version   u64      1
    dtype     u8       1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16 (floats are refused)
    sequences u64      S
    documents u64      D: the length of the last array
    sizes     i32[S]   tokens of each sequence
    pointers  i64[S]   byte offset of each sequence in the .bin
    doc_idx   i64[D]   first sequence of each document, then S (older writers begin with 0 as well)

All little-endian. Nothing is read, or allocated, for what the size of the file does not bear out.
"""

import bisect
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError

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


def read_index(path: Path, data_bytes: int) -> SequenceIndex:
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
