"""The only writer of files: atomic publishing, append-only logs, removal.

Publishing: bytes -> hash -> exclusive temporary file in the same directory -> write -> fsync ->
rename -> fsync of the directory. A path therefore holds its old content or its new content, never
part of either. Without the two fsyncs that is so when a process is killed; after a power cut the
file may be gone or cut short, until `make_durable`. An fsync error abandons the attempt and is
never retried: the kernel may have dropped the dirty pages (docs/guarantees.md). Below a directory
that mirrors one in a bucket (`pipeline.core.mirror`) the bytes are put into the bucket before the
rename, and removals are made there first.
"""

import contextlib
import json
import mmap
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pipeline.core import failpoint
from pipeline.core.directories import explain_errors, open_directory, open_file, refuse_link, sync
from pipeline.core.lease import delete, delete_tree, upload
from pipeline.core.mirror.absent import free_room
from pipeline.core.mirror.paths import TEMP_MARK, locate


@dataclass(frozen=True)
class WrittenFile:
    """What was written: size in bytes and xxh3-128 hash in hex."""

    size: int
    hash: str


def publish(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    accept: Callable[[WrittenFile], None] = lambda published: None,
    durable: bool = True,
) -> WrittenFile:
    """Write `data` (one buffer, or several as they come, joined) to `path` atomically, and durably
    unless somebody sees to that later (`make_durable`).

    `accept` is told size and hash before the file gets its name, and may raise to prevent it.
    Raises ResourceError when the disk is full or the directory is not writable.
    """
    pieces = (data,) if isinstance(data, bytes) else data
    size = sum(map(len, pieces)) if isinstance(pieces, Sequence) else 0
    with explain_errors(path, size), open_directory(path.parent, True, durable) as parent:
        free_room(path, size)
        published = _publish(parent, path, pieces, accept, durable)
    failpoint.hit("storage.publish.done")
    return published


def _publish(
    parent: int,
    path: Path,
    pieces: Iterable[bytes | memoryview],
    accept: Callable[[WrittenFile], None],
    durable: bool,
) -> WrittenFile:
    temp = f"{TEMP_MARK}{path.name}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        published = _write(parent, temp, pieces, durable)
        accept(published)
        failpoint.hit("storage.publish.written")
        upload(path, path.parent / temp, published.hash)
        os.replace(temp, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        failpoint.hit("storage.publish.renamed")
        if durable:
            sync(parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp, dir_fd=parent)
        raise
    return published


def _write(
    parent: int, temp: str, pieces: Iterable[bytes | memoryview], durable: bool
) -> WrittenFile:
    digest, size = xxhash.xxh3_128(), 0
    torn = failpoint.hit("storage.publish.start")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(temp, flags, 0o666, dir_fd=parent), "wb") as file:
        if torn is not None:
            whole = b"".join(pieces)
            file.write(whole[: int(len(whole) * torn)])
            file.flush()
            failpoint.die()
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            file.write(piece)
        file.flush()
        if durable:
            failpoint.hit("storage.publish.fsync")
            os.fsync(file.fileno())
    return WrittenFile(size, digest.hexdigest())


def make_durable(path: Path) -> None:
    """fsync of a file that was published without; not of its directory. What the disk refuses is
    deleted, as nobody can tell what is left of it. Raises ResourceError."""
    with explain_errors(path), open_file(path, os.O_RDONLY) as handle:
        try:
            failpoint.hit("storage.make_durable")
            os.fsync(handle)
        except OSError:
            path.unlink(missing_ok=True)
            raise


def map_scratch(directory: Path, size: int) -> mmap.mmap:
    """Zeros in a mapped file without a name, which is gone once nothing refers to it. Its pages can
    leave memory. Raises ResourceError when the disk is full."""
    with (
        explain_errors(directory / "scratch", size),
        tempfile.TemporaryFile(dir=directory) as file,
    ):
        os.posix_fallocate(file.fileno(), 0, max(1, size))  # a full disk later would be a signal
        return mmap.mmap(file.fileno(), max(1, size))


def append_log_line(path: Path, line: str) -> None:
    """Add one line to an append-only log (metrics, journal); creates the file when needed. In a
    bucket the whole log is put anew."""
    if locate(path):
        publish(path, (path.read_bytes() if path.exists() else b"") + f"{line}\n".encode())
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with (
        explain_errors(path, len(line) + 1),
        open_file(path, flags) as handle,
        open(handle, "a", encoding="utf-8", closefd=False) as file,
    ):
        file.write(line + "\n")


def truncate(path: Path, size: int) -> None:
    """Cut a log back to its first `size` bytes, durably."""
    if locate(path):
        publish(path, path.read_bytes()[:size])
        return
    with explain_errors(path), open_file(path, os.O_WRONLY) as handle:
        os.ftruncate(handle, size)
        os.fsync(handle)


def remove(path: Path) -> None:
    """Delete a file, or a symbolic link in its place, if it is there; durably."""
    delete(path)
    with explain_errors(path), _open_parent(path) as parent:
        if parent is not None:
            failpoint.hit("storage.remove")
            os.unlink(path.name, dir_fd=parent)
            sync(parent)


def remove_tree(directory: Path, durable: bool = True) -> None:
    """Delete a directory and all below it, if it is there; it may come back after a power cut
    unless `durable`. Raises IntegrityError for a symbolic link in its place."""
    delete_tree(directory)
    with explain_errors(directory), _open_parent(directory) as parent:
        if parent is not None:
            refuse_link(parent, directory.name, directory)
            failpoint.hit("storage.remove")
            shutil.rmtree(directory.name, dir_fd=parent)
            if durable:
                sync(parent)


@contextlib.contextmanager
def _open_parent(path: Path) -> Iterator[int | None]:
    """A descriptor of the directory around `path`; None where `path` is not there."""
    with contextlib.ExitStack() as stack:
        try:
            parent = stack.enter_context(open_directory(path.parent))
            os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            parent = None
        yield parent


def sweep_temps(directory: Path) -> int:
    """Delete leftovers of interrupted publishing below `directory`; returns how many."""
    swept = 0
    for _, _, files, handle in os.fwalk(directory) if directory.is_dir() else ():
        for name in files:
            if name.startswith(TEMP_MARK):
                with explain_errors(directory), contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=handle)
                swept += 1
    return swept


def canonical_json(value: Any) -> bytes:
    """JSON bytes that depend on the value alone: sorted keys, UTF-8, final newline."""
    plain = partial(json.dumps, value, sort_keys=True, ensure_ascii=False)
    try:
        text = msgspec.json.format(plain(), indent=1)  # json itself indents in Python, slowly
    except msgspec.DecodeError:  # NaN and infinities, which are no JSON
        text = plain(indent=1)
    return text.encode() + b"\n"


def write_json(path: Path, value: Any) -> WrittenFile:
    """Publish `value` as canonical JSON."""
    return publish(path, canonical_json(value))
