"""One writer per run directory: an advisory lock that dies with its process."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.errors import ResourceError
from pipeline.core.storage import make_directory


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Hold DIRECTORY/.lock for the life of the block; the holder's host and pid stand in the file.

    Raises ResourceError naming the holder when another process has it. Network file systems without
    flock are not covered (docs/guarantees.md).
    """
    try:
        make_directory(directory)
        handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ResourceError(f"{directory}: cannot write: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise ResourceError(
                f"{directory}: in use by {holder}; wait for it or stop it"
            ) from error
        _name_holder(handle, directory)
        yield
    finally:
        os.close(handle)


def _name_holder(handle: int, directory: Path) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError as error:
        raise ResourceError(f"{directory}: cannot write: {error.strerror}") from error
