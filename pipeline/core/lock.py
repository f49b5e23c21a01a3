"""One writer per run directory: an advisory lock that dies with its process."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from pipeline.core import storage
from pipeline.core.errors import ReadOnlyError, ResourceError

_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Hold DIRECTORY/.lock for the life of the block, in which nothing is written through symbolic
    links below DIRECTORY (`storage.confined`). The holder's host and pid are in the file.

    Raises ResourceError naming the holder when another process has it, and ReadOnlyError where this
    process may not write. Network file systems without flock are not covered (docs/guarantees.md).
    """
    with contextlib.ExitStack() as stack:
        try:
            storage.make_directory(directory)
            flags = os.O_RDWR | os.O_CREAT
            handle = stack.enter_context(storage.open_file(directory / ".lock", flags))
            _take(handle, directory)
        except OSError as error:
            refused = ReadOnlyError if error.errno in _READ_ONLY else ResourceError
            raise refused(f"{directory}: cannot write: {error.strerror}") from error
        stack.enter_context(storage.confined(directory))
        yield


def _take(handle: int, directory: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
        raise ResourceError(f"{directory}: in use by {holder}; wait for it or stop it") from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
