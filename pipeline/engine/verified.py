"""Files are hashed once on a host, not once in every process: what is verified is remembered.

The memory is one sparse file in the user's cache: a table of 128-bit digests, each in the place
that its first bits name, where a newer one may displace it; those of the blocks of a file
(`pipeline.engine.blocks`) are in a row. A digest is made of the hash expected,
of what the file system says of the file (device, inode, size, times of its last changes) and of the
boot of the machine, so a file that is changed or replaced is hashed again, and all are after a
restart. Without a cache that can be written, each process remembers for itself.
"""

import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import xxhash

from dedup.user_cache import user_cache
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import verify_file
from pipeline.core.mirror.absent import is_absent
from pipeline.core.mirror.paths import check_stored

_PLACES = 1 << 23
"""As many as half a terabyte has blocks."""
_DIGEST_BYTES = 16
_SETTLED_NS = 50_000_000
"""Age from which on times of a file tell its states apart; a younger one is not remembered."""
_BATCH = 32
"""Files that a thread verifies before it takes more."""
_own: set[bytes] = set()


class Entries:
    """A file in which processes of this host leave entries for each other, by its descriptor. What
    cannot be read is not there; what cannot be written is lost."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        weakref.finalize(self, os.close, handle)

    def read(self, size: int, place: int) -> bytes:
        """Bytes from `place` on; fewer where the file ends."""
        with contextlib.suppress(OSError):
            return os.pread(self.handle, size, place)
        return b""

    def write(self, data: bytes, place: int) -> None:
        """Put bytes at `place`."""
        with contextlib.suppress(OSError):
            os.pwrite(self.handle, data, place)


def verify_once(path: Path, expected: str) -> None:
    """Check the hash of a file, once on this host while the file stays the same; of one that is in
    a bucket only, what the store says. Raises IntegrityError naming file and hashes."""
    table = open_table()
    if is_verified(path, expected, table):
        return
    if is_absent(path):
        check_stored(path, expected)
        return
    try:
        status = os.stat(path)
    except OSError as error:
        raise IntegrityError(f"{path}: missing; run again the command that made it") from error
    verify_file(path, expected)
    if is_settled(status):
        digest = make_stamp(expected, status)
        _own.add(digest)
        if table is not None:
            table.write(digest, find_place(digest))


def is_verified(path: str | Path, expected: str, table: Entries | None) -> bool:
    """Whether the file at this path, as it is now, was found to have this hash on this host."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return is_known(make_stamp(expected, status), table)


def make_stamp(expected: str, status: os.stat_result) -> bytes:
    """What a file in this state is remembered by when it has the hash expected; 16 bytes."""
    times = (status.st_mtime_ns, status.st_ctime_ns)
    stamp = (expected, status.st_dev, status.st_ino, status.st_size, *times, name_boot())
    return xxhash.xxh3_128_digest(repr(stamp).encode())


def is_settled(status: os.stat_result) -> bool:
    """Whether a file may be remembered: another state of it would show."""
    last = max(status.st_mtime_ns, status.st_ctime_ns)
    return 0 <= last <= time.time_ns() - _SETTLED_NS


def is_known(stamp: bytes, table: Entries | None) -> bool:
    """Whether the file in this state was verified, whole, on this host."""
    if stamp in _own:
        return True
    return table is not None and table.read(len(stamp), find_place(stamp)) == stamp


def verify_files(
    files: Iterable[tuple[Path, str]], verify: Callable[[Path, str], None] = verify_once
) -> Iterator[IntegrityError | None]:
    """Verify many files with the hashes expected, several at a time; what is wrong with each, in
    order."""

    def find_problem(file: tuple[Path, str]) -> IntegrityError | None:
        try:
            verify(*file)
        except IntegrityError as error:
            return error
        return None

    rest = iter(files)
    batches = iter(lambda: list(islice(rest, _BATCH)), [])
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for problems in pool.map(lambda batch: [find_problem(file) for file in batch], batches):
            yield from problems


@functools.cache
def name_boot() -> str:
    """A name for the time since this machine started."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"process {os.getpid()}"


def find_place(digest: bytes, count: int = 1) -> int:
    """The byte of the table where these many digests of one file begin."""
    return int.from_bytes(digest[:4], "little") % max(1, _PLACES - count) * _DIGEST_BYTES


def open_table() -> Entries | None:
    """The table; None without a cache."""
    cache = user_cache()
    return None if cache is None else _open_table(cache)


@functools.lru_cache(1)
def _open_table(cache: Path) -> Entries | None:
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            flags |= os.O_CLOEXEC | os.O_NOFOLLOW
            return Entries(os.open(cache / "verified", flags, 0o600))
    return None
