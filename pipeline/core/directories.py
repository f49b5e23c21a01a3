"""The directories that files are written in: made, opened, and synced.

No file is written through a symbolic link of its own name. Inside `confine_writes` neither is one
written through a link in the place of a directory: each is opened from the one above it.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.errors import IntegrityError, ResourceError
from pipeline.core.places import check_local

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_confined: list[tuple[Path, str]] = []
"""Directories that this process is confined to: as they were given, and as absolute paths."""


@contextlib.contextmanager
def confine_writes(directory: Path) -> Iterator[None]:
    """Within the block this process writes and deletes nothing below `directory` through a symbolic
    link: it raises IntegrityError. The directory itself may be reached through links."""
    forms = [(directory, form(directory)) for form in (os.path.abspath, os.path.realpath)]
    _confined.extend(forms)
    try:
        yield
    finally:
        for entry in forms:
            _confined.remove(entry)


@contextlib.contextmanager
def open_directory(directory: Path, create: bool = False, durable: bool = True) -> Iterator[int]:
    """A descriptor of `directory`, which with `create` is made with its missing parents."""
    top, names = _below_top(directory)
    if create:
        _make_directory(top, durable)
    handle = os.open(top, _DIRECTORY)
    try:
        for depth, name in enumerate(names):
            below = _open_below(handle, name, top.joinpath(*names[: depth + 1]), create, durable)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def _below_top(directory: Path) -> tuple[Path, tuple[str, ...]]:
    """The outermost directory around `directory` that this process is confined to, and the names
    below it; without one, `directory` itself."""
    absolute = os.path.abspath(directory)
    around = [entry for entry in _confined if f"{absolute}/".startswith(f"{entry[1]}/")]
    if not around:
        return directory, ()
    top, prefix = min(around, key=lambda entry: len(entry[1]))
    return top, Path(absolute[len(prefix) + 1 :]).parts


def _open_below(handle: int, name: str, path: Path, create: bool, durable: bool) -> int:
    flags = _DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=handle)
    except FileNotFoundError:
        if not create:
            raise
    except OSError:
        refuse_link(handle, name, path)
        raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=handle)
        if durable:
            sync(handle)
    return os.open(name, flags, dir_fd=handle)


def refuse_link(parent: int, name: str, path: Path) -> None:
    """Raises IntegrityError when `name` is a symbolic link."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise IntegrityError(
                f"{path}: a symbolic link, and nothing is written through links; expected a file "
                "or directory; delete the link, or move what it points to here"
            )


def _make_directory(directory: Path, durable: bool) -> None:
    check_local(directory)
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        if durable:
            sync_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Create `directory` and its missing parents, durably. Raises ResourceError."""
    with explain_errors(directory), open_directory(directory, create=True):
        pass


def sync_directory(directory: Path) -> None:
    """Make renames and removals inside `directory` durable."""
    with open_directory(directory) as handle:
        sync(handle)


def sync(directory: int) -> None:
    """`sync_directory`, of a descriptor."""
    os.fsync(directory)


@contextlib.contextmanager
def open_file(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of the file at `path`, opened with these flags of `os.open`. Raises
    IntegrityError for a symbolic link, OSError."""
    with open_directory(path.parent) as parent:
        try:
            mode = flags | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(path.name, mode, 0o666, dir_fd=parent)
        except OSError:
            refuse_link(parent, path.name, path)
            raise
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def explain_errors(path: Path, size: int = 0) -> Iterator[None]:
    """An error of writing so many bytes to `path` is a ResourceError that says what to do."""
    try:
        yield
    except OSError as error:
        message = f"{path}: cannot write: {error.strerror or error}"
        if error.errno in NO_ROOM:
            needed = f" {size:,} bytes" if size else ""
            room, mend = f"{_free_bytes(path.parent):,} bytes free", "free some space"
            if error.errno == errno.EFBIG:
                room, mend = "a limit on the size of files", "raise it (ulimit -f)"
            message = (
                f"{path}: no room to write{needed} ({room}); {mend} and run the same command "
                "again, finished work is kept"
            )
        raise ResourceError(message) from error


def _free_bytes(directory: Path) -> int:
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return shutil.disk_usage(directory).free
