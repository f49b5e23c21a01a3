"""Files that tasks read parts of: each block has a hash, so that a task verifies the blocks that it
touches, and brings them from a bucket, and no others.

The hashes are in the file itself, between the data and the footer of an Arrow file, where readers
of such files see nothing; the shard names the hash of this end of the file. What is verified is
known to all processes of the host. Of a file that is here, the table of `pipeline.engine.verified`
says it. Of one in a bucket a sparse file keeps the blocks that were read, and marks of them behind.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from dedup.arrays import I64, U32
from pipeline.core import failpoint
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import hash_bytes
from pipeline.core.manifest import Shard, ShardEnd
from pipeline.core.mirror import fetching
from pipeline.core.mirror.absent import free_room
from pipeline.core.mirror.paths import locate
from pipeline.engine import verified

BLOCK = 1 << 16
LEAST = 16 * BLOCK
"""A smaller file is verified, and brought, whole: that takes no longer than a part of it."""
_LARGE = 4 << 20
"""Of a larger file the system is told what will be read. It would read megabytes around every page
that is touched, and nothing ahead."""
_IN_ORDER = 1 << 20
_ADVISED = 1 << 17
"""Bytes that every system reads ahead at once."""
_HASH_BYTES = 16
_TRAILER = 10
"""Bytes behind the footer of an Arrow file: its length and ARROW1."""
_RUN = 64
"""Blocks that one request brings at most."""
_STREAMS = 8
_ATTEMPTS = 2
_REMEMBERED = 1 << 12
"""Files whose marks a process keeps."""


def add_hashes(
    pieces: Sequence[memoryview],
) -> tuple[Sequence[memoryview | bytes], ShardEnd | None]:
    """An Arrow file with the hashes of its blocks, in pieces; what the shard has to say of it."""
    data, behind = list(pieces), b""
    while (cut := len(behind) - _TRAILER - int.from_bytes(behind[-_TRAILER:][:4], "little")) < 0:
        behind = bytes(data.pop()) + behind
    data.append(memoryview(behind)[:cut])
    if sum(map(len, data)) < LEAST:
        return pieces, None
    end = b"".join((*_hash_blocks(data), behind[cut:]))
    return [*data, end], ShardEnd(len(end), hash_bytes(end))


def _hash_blocks(pieces: Iterable[memoryview]) -> Iterator[bytes]:
    digest, room = xxhash.xxh3_128(), BLOCK
    for piece in pieces:
        for start in (0, *range(room, len(piece), BLOCK)):
            part = piece[start : start + room]
            digest.update(part)
            room -= len(part)
            if not room:
                yield digest.digest()
                digest.reset()
                room = BLOCK
    if room < BLOCK:
        yield digest.digest()


class _Marks:
    """Which blocks of a file are verified, as all processes of the host see it: one entry per
    block, of the file's stamp and its number, from byte `place` of `entries` on. Without these no
    other process sees it."""

    def __init__(
        self, stamp: bytes, count: int, place: int = 0, entries: verified.Entries | None = None
    ) -> None:
        self.known = np.zeros(count, bool)
        self._stamp = stamp
        self._place = place
        self._entries = entries

    def look(self) -> None:
        """Learn what other processes have verified."""
        if self._entries is None:
            return
        data = self._entries.read(len(self.known) * _HASH_BYTES, self._place)
        found = np.frombuffer(data, np.uint32, len(data) // 16 * 4).reshape(-1, 4)
        expected = self._make_entries(np.arange(len(found)))
        self.known[: len(found)] |= (found == expected).all(axis=1)

    def add(self, blocks: I64) -> None:
        """Note that these, which ascend, are verified."""
        self.known[blocks] = True
        if self._entries is None:
            return
        for run in _find_runs(blocks):
            place = self._place + int(run[0]) * _HASH_BYTES
            self._entries.write(self._make_entries(run).tobytes(), place)

    def _make_entries(self, blocks: I64) -> U32:
        entries = np.empty((len(blocks), 4), np.uint32)
        entries[:, :3], entries[:, 3] = np.frombuffer(self._stamp, np.uint32, 3), blocks
        return entries


def _find_runs(blocks: I64, most: int = 1 << 62) -> list[I64]:
    """Ascending numbers cut where one is left out, and after `most`."""
    gaps = np.flatnonzero(np.diff(blocks) != 1) + 1
    runs = np.split(blocks, gaps)
    return [run[i : i + most] for run in runs for i in range(0, len(run), most)]


@lru_cache(_REMEMBERED)
def _find_marks(stamp: bytes, count: int, whole: bytes) -> _Marks:
    """Those of a file in this state, which has the stamp `whole` where all of it was verified."""
    table = verified.open_table()
    marks = _Marks(stamp, count, verified.find_place(stamp, count), table)
    marks.known[:] = verified.is_known(whole, table)
    return marks


class BlockFile:
    """A file on this machine, mapped as `buffer`. Bytes are read only after `verify`. Raises
    IntegrityError where they are not those that were published."""

    def __init__(self, path: Path, shard: Shard, end: ShardEnd, handle: int, marks: _Marks) -> None:
        self._path, self._end, self._marks = path, end, marks
        self._size = shard.size
        self._data_size = shard.size - end.size
        self._count = _count_blocks(shard, end)
        self._mapped = mmap.mmap(handle, shard.size, prot=mmap.PROT_READ)
        self.is_advised = shard.size > _LARGE
        """Whether the system is told what will be read."""
        if self.is_advised:
            self._advise(mmap.MADV_RANDOM, 0, shard.size)
        self.buffer = pa.py_buffer(self._mapped)
        self._address: int = self.buffer.address
        self._bytes = memoryview(self._mapped)
        if not marks.known[self._count]:
            self._require(np.array([self._count]))

    @property
    def is_verified(self) -> bool:
        """Whether nothing is left to verify."""
        return bool(self._marks.known.all())

    @property
    def footer(self) -> memoryview:
        """What stands behind the hashes."""
        return self._bytes[self._data_size + self._count * _HASH_BYTES :]

    def verify(self, start_N: I64, stop_N: I64) -> None:
        """Verify bytes [start, stop) of N ranges of the data, at these addresses."""
        if len(start_N) == 1:  # for one range numpy takes longer than the work
            self.verify_span(int(start_N[0]), int(stop_N[0]))
            return
        is_any = stop_N > start_N
        first = (start_N[is_any] - self._address) // BLOCK
        last = (stop_N[is_any] - 1 - self._address) // BLOCK
        begun = np.bincount(first, minlength=self._count + 1)
        ended = np.bincount(last + 1, minlength=self._count + 1)
        touched = np.flatnonzero(np.cumsum(begun - ended))
        for run in _find_runs(touched) if self.is_advised and len(touched) else ():
            self._read_ahead(int(run[0]), int(run[-1]) + 1)
        self._require(touched)

    def verify_span(self, start: int, stop: int) -> None:
        """Verify bytes [start, stop) of the data, at these addresses."""
        if start >= stop:
            return
        first, end = (start - self._address) // BLOCK, -(-(stop - self._address) // BLOCK)
        self._read_ahead(first, end)
        if not self._marks.known[first:end].all():
            self._require(np.arange(first, end))

    def read_in_order(self) -> None:
        """From now on what is around a page is wanted too, by other tasks."""
        if self.is_advised:
            self._advise(mmap.MADV_NORMAL, 0, self._size)
            self.is_advised = False

    def _read_ahead(self, first: int, stop: int) -> None:
        """Have these blocks read: of a few all at once, of many as the reader goes on."""
        if not self.is_advised or first >= stop:
            return
        start, end = first * BLOCK, min(stop * BLOCK, self._size)
        if end - start > _IN_ORDER:
            self._advise(mmap.MADV_NORMAL, start, end - start)
            return
        for place in range(start, end, _ADVISED):
            self._advise(mmap.MADV_WILLNEED, place, min(_ADVISED, end - place))

    def _advise(self, advice: int, start: int, size: int) -> None:
        with contextlib.suppress(OSError):  # not every system listens
            self._mapped.madvise(advice, start, size)

    def _require(self, blocks: I64) -> None:
        left = blocks[~self._marks.known[blocks]]
        if len(left):
            self._marks.look()
            left = left[~self._marks.known[left]]
        if len(left):
            self._check(left)

    def _check(self, blocks: I64) -> None:
        """Verify blocks that no process has verified."""
        for block in blocks.tolist():
            start, stop = self._bounds(block)
            problem = self._find_problem(block, self._bytes[start:stop])
            if problem is not None:
                raise problem
        self._marks.add(blocks)

    def _bounds(self, block: int) -> tuple[int, int]:
        """The bytes of a block; the one after the last is the end of the file."""
        if block == self._count:
            return self._data_size, self._size
        return block * BLOCK, min((block + 1) * BLOCK, self._data_size)

    def _find_problem(self, block: int, data: memoryview) -> IntegrityError | None:
        start, stop = self._bounds(block)
        place = self._data_size + block * _HASH_BYTES
        is_end = block == self._count
        expected = self._end.hash if is_end else self._bytes[place : place + _HASH_BYTES].hex()
        actual = hash_bytes(data)
        if actual == expected:
            return None
        return IntegrityError(
            f"{self._path}: damaged: expected hash {expected} of bytes {start:,} to {stop:,}, "
            f"found {actual}; to rebuild it, run again the command that made it"
        )


class _FarBlockFile(BlockFile):
    """A file in a bucket, of which a sparse file here keeps the blocks that were read. A block has
    its mark only when its bytes are there; marks of before the machine's start are none."""

    def __init__(self, path: Path, shard: Shard, end: ShardEnd) -> None:
        count = _count_blocks(shard, end) + 1
        handle = fetching.open_parts(path, end.hash, shard.size + count * _HASH_BYTES)
        self._handle = handle
        stamp = xxhash.xxh3_128_digest(f"{end.hash} {verified.name_boot()}".encode())
        marks = _Marks(stamp, count, shard.size, verified.Entries(handle))
        super().__init__(path, shard, end, handle, marks)

    def _check(self, blocks: I64) -> None:
        """Bring them, one process at a time."""
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        try:
            free_room(self._path, len(blocks) * BLOCK)
            self._marks.look()
            runs = _find_runs(blocks[~self._marks.known[blocks]], _RUN)
            if len(runs) == 1:
                self._bring(runs[0])
            elif runs:
                with ThreadPoolExecutor(_STREAMS) as pool:
                    list(pool.map(self._bring, runs))
        finally:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _bring(self, blocks: I64) -> None:
        first, stop = self._bounds(int(blocks[0]))[0], self._bounds(int(blocks[-1]))[1]
        for attempt in range(_ATTEMPTS):
            data = memoryview(fetching.read_span(self._path, first, stop))
            bounds = [(block, *self._bounds(block)) for block in blocks.tolist()]
            found = [self._find_problem(n, data[a - first : b - first]) for n, a, b in bounds]
            problems = list(filter(None, found))
            if problems and attempt == _ATTEMPTS - 1:
                raise problems[0]
            if not problems:
                break
        fetching.keep_part(self._path, self._handle, first, data)
        failpoint.hit("blocks.bring.written")
        self._marks.add(blocks)


def open_blocks(path: Path, shard: Shard, end: ShardEnd) -> BlockFile:
    """The file of a shard with this end, here or in a bucket. Raises IntegrityError."""
    try:
        handle = fetching.open_here(path)
    except OSError as error:
        raise IntegrityError(f"{path}: missing; run again the command that made it") from error
    if handle is None:
        return _FarBlockFile(path, shard, end)
    try:
        return _open_here(path, shard, end, handle)
    except IntegrityError:
        if locate(path) is None:
            raise
        return _FarBlockFile(path, shard, end)  # another machine may have written it anew
    finally:
        os.close(handle)


def _open_here(path: Path, shard: Shard, end: ShardEnd, handle: int) -> BlockFile:
    status = os.fstat(handle)
    if status.st_size != shard.size:
        raise IntegrityError(
            f"{path}: damaged: expected {shard.size:,} bytes, found {status.st_size:,}; to "
            "rebuild it, run again the command that made it"
        )
    stamp, count = verified.make_stamp(end.hash, status), _count_blocks(shard, end) + 1
    if verified.is_settled(status):
        marks = _find_marks(stamp, count, verified.make_stamp(shard.hash, status))
    else:
        marks = _Marks(stamp, count)
    return BlockFile(path, shard, end, handle, marks)


def _count_blocks(shard: Shard, end: ShardEnd) -> int:
    return -(-(shard.size - end.size) // BLOCK)
