"""The bytes of mirrored files, brought to this machine when they are read: whole files, which stay
while a process needs them, and parts of files."""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.core.bucket import StoredObject, ask_often
from pipeline.core.errors import IntegrityError, ResourceError
from pipeline.core.mirror.absent import ABSENT, PARTS, free_room, give_name, is_absent, temp_of
from pipeline.core.mirror.paths import locate, mirrors_top, require_place

_PINNED, _PINNED_SHARE = 256, 64
"""A process holds on to what it asked for last: so many files, on one part of the file system in so
many; but at least to one."""
_pins: deque[tuple[int, int]] = deque()
"""Descriptor and size of files that stay; several threads of a task ask for files."""
_pinning = threading.Lock()
os.register_at_fork(
    before=_pinning.acquire, after_in_parent=_pinning.release, after_in_child=_pinning.release
)


def fetch(path: Path) -> Path:
    """The path itself, with its bytes on this machine if it is mirrored. What this process asked
    for last stays there. A path that is not in the bucket is left to the caller's own message."""
    if locate(path) is None:
        return path
    while True:
        handle = _open_pinned(path)
        if handle is None:
            try:
                _fetch(path)
            except FileNotFoundError:
                return path
            continue
        _pin(handle)
        return path


def _open_pinned(path: Path) -> int | None:
    """A descriptor whose lock keeps the file here; None where its bytes are not."""
    with contextlib.suppress(FileNotFoundError):
        if is_absent(path):
            return None
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
            status = os.fstat(handle)
            is_here = stat.S_IMODE(status.st_mode) != ABSENT
            if is_here and status.st_ino == os.stat(path).st_ino:
                return handle
        os.close(handle)
    return None


def _pin(handle: int) -> None:
    """Hold on to a file, and let go of those that were asked for longest ago."""
    most_bytes = shutil.disk_usage(mirrors_top() or "").total // _PINNED_SHARE
    with _pinning:
        _pins.append((handle, os.fstat(handle).st_size))
        while len(_pins) > 1 and (
            len(_pins) > _PINNED or sum(size for _, size in _pins) > most_bytes
        ):
            os.close(_pins.popleft()[0])


def _fetch(path: Path, is_listed: bool = False) -> None:
    """Bring the bytes of a file, one process at a time. Raises FileNotFoundError."""
    bucket, key = require_place(path)
    with _alone(path) as is_there:
        if is_there:
            return
        free_room(path, path.stat().st_size if path.exists() else 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = temp_of(path)

        def write(chunks: Iterable[memoryview]) -> None:
            with open(temp, "wb") as file:
                file.writelines(chunks)

        def ask() -> StoredObject | None:
            with contextlib.suppress(FileNotFoundError):
                return bucket.stream(key, write)
            return None

        try:
            stored = ask_often(ask) if is_listed or path.exists() else ask()
            if stored is None:
                if is_absent(path):
                    path.unlink(missing_ok=True)
                raise FileNotFoundError(path)
            give_name(temp, path, stored)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise ResourceError(f"{path}: cannot keep a copy here: {error.strerror}") from error
        finally:
            temp.unlink(missing_ok=True)


def fetch_listed(path: Path) -> None:
    """Bring the bytes of a file that the bucket had when it was listed."""
    with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
        _fetch(path, is_listed=True)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Hold the empty file at `path`, if there is one; yields whether another process filled it
    meanwhile."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        was_absent = stat.S_IMODE(os.fstat(handle).st_mode) == ABSENT
        if was_absent:
            fcntl.flock(handle, fcntl.LOCK_EX)
        is_same = path.exists() and os.fstat(handle).st_ino == os.stat(path).st_ino
        yield was_absent and not is_same
    finally:
        os.close(handle)


def fetch_again(path: Path) -> bool:
    """Replace what is on this machine of a mirrored file, which another machine may have written
    anew; False for a path that mirrors nothing."""
    if locate(path) is None:
        return False
    path.unlink(missing_ok=True)
    fetch(path)
    return True


def open_here(path: Path) -> int | None:
    """A descriptor, which keeps a mirrored file here while it, or a map made from it, is open; None
    where the bytes are not here. Raises OSError for a file that nothing mirrors."""
    if locate(path) is None:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with contextlib.suppress(PermissionError):  # emptied in this moment
        return _open_pinned(path)
    return None


def open_parts(path: Path, name: str, size: int) -> int:
    """A descriptor, to read and write, of the sparse file of this name that keeps parts of what
    `path` mirrors. It loses its name when the cache is full. Raises ResourceError."""
    directory = Path(mirrors_top() or "", PARTS)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        handle = os.open(directory / name, flags, stat.S_IRUSR | stat.S_IWUSR)
        if os.fstat(handle).st_size < size:
            os.ftruncate(handle, size)
        os.utime(handle)
    except OSError as error:
        raise ResourceError(f"{path}: cannot keep parts of it here: {error.strerror}") from error
    return handle


def read_span(path: Path, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of what `path` mirrors. Raises IntegrityError if it is not there."""
    bucket, key = require_place(path)

    def ask() -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return bucket.read_range(key, start, stop)
        return None

    data = ask_often(ask)
    if data is None:
        raise IntegrityError(f"{path}: missing; run again the command that made it")
    return data


def keep_part(path: Path, parts: int, start: int, data: memoryview) -> None:
    """Write what was read into the file that keeps parts of it. Raises ResourceError."""
    try:
        if os.pwrite(parts, data, start) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise ResourceError(f"{path}: cannot keep parts of it here: {error.strerror}") from error
