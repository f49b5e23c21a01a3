"""Mirrored files whose bytes are in the bucket only: how they look, and which become such when the
cache is full.

The modification time of a mirrored file is that of the object, rounded up to seconds, with thirty
bits of its ETag as nanoseconds: that shows which files are still those of the bucket.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import time
from pathlib import Path

import xxhash

from pipeline.core.bucket import StoredObject
from pipeline.core.mirror.paths import COMMITTED, LEASE, PLACE, TEMP_MARK, locate, mirrors_top

ABSENT = stat.S_IWUSR
"""The permissions of a file whose bytes are in the bucket only: it cannot be read by mistake."""
_AT_ONCE = (".json", ".head", ".log", ".html")
_TABLE = ".parquet"
PARTS = ".parts"
"""The directory, next to the mirrors, of files that hold parts of objects."""
_SPARE, _ROOM = 10, 5
"""The cache is full when less than one part in so many of its file system is free; then room is
made until so many are, since finding out what goes means looking at all that is there."""


def is_absent(path: Path) -> bool:
    """Whether a file is in the bucket only. False for one that is not there at all."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(os.stat(path).st_mode) == ABSENT
    return False


def state_of(path: Path) -> int:
    """What tells one state of a file of this size from others: the time of its modification in ns,
    or, if it is mirrored, what every machine has of its ETag. Raises OSError."""
    time_ns = os.stat(path).st_mtime_ns
    return time_ns if locate(path) is None else time_ns % 10**9


def make_time(etag: str, seconds: float) -> int:
    """A modification time in nanoseconds."""
    bits = xxhash.xxh3_64_intdigest(etag.encode()) & ((1 << 30) - 1)
    return (int(-(-seconds // 1)) * 10**9) + bits % 10**9


def place_absent(path: Path, stored: StoredObject) -> None:
    """An empty file that looks like the object, and takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = temp_of(path)
    handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, ABSENT)
    try:
        os.fchmod(handle, ABSENT)
        os.ftruncate(handle, stored.size)
    finally:
        os.close(handle)
    give_name(temp, path, stored)


def temp_of(path: Path) -> Path:
    """A new name next to `path` for a file that becomes it."""
    return path.with_name(f"{TEMP_MARK}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def give_name(temp: Path, path: Path, stored: StoredObject) -> None:
    """Make `temp` the file at `path`, with the times that a copy of this object has."""
    stamp = make_time(stored.etag, stored.modified)
    os.utime(temp, ns=(time.time_ns(), stamp))
    os.replace(temp, path)


def is_always_read(path: Path, is_top: bool) -> bool:
    """Whether it is a table at the top of a run, a part of one, or describes others."""
    if path.suffix in _AT_ONCE or path.name in COMMITTED:
        return True
    return (path.suffix == _TABLE and is_top) or path.parent.suffix == _TABLE


def free_room(path: Path, size: int) -> None:
    """Before so many bytes of what `path` mirrors are written here: where little room is free,
    empty the files of all mirrors that were not used for longest."""
    if locate(path) is None:
        return
    top = Path(mirrors_top() or "")
    top.mkdir(parents=True, exist_ok=True)
    usage = shutil.disk_usage(top)
    if usage.free >= usage.total // _SPARE + size:
        return
    left = usage.total // _ROOM + size - usage.free
    there = []
    for file in top.rglob("*"):
        with contextlib.suppress(OSError):
            status = os.stat(file)
            if stat.S_ISREG(status.st_mode) and _may_be_emptied(file, status):
                there.append((status.st_atime_ns, file, status))
    for _, file, status in sorted(there, key=lambda entry: entry[0]):
        if left <= 0:
            break
        if file != path and _empty(file, status):
            left -= status.st_blocks * 512


def _may_be_emptied(file: Path, status: os.stat_result) -> bool:
    is_work = file.name.startswith(TEMP_MARK) or file.name in (LEASE, PLACE)
    is_kept = is_work or is_always_read(file, (file.parent / "journal").is_dir())
    return not is_kept and stat.S_IMODE(status.st_mode) != ABSENT


def _empty(file: Path, status: os.stat_result) -> bool:
    """Leave a file in the bucket only, unless a process uses it or it changed."""
    with contextlib.suppress(OSError):
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            now = os.stat(file)
            if (now.st_ino, now.st_mtime_ns) != (status.st_ino, status.st_mtime_ns):
                return False
            if file.parent.name == PARTS:
                file.unlink()
                return True
            temp = temp_of(file)
            temp.touch(ABSENT, exist_ok=False)
            os.chmod(temp, ABSENT)
            os.truncate(temp, status.st_size)
            os.utime(temp, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.replace(temp, file)
            return True
        finally:
            os.close(handle)
    return False
