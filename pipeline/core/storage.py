"""The only writer of files: atomic publishing, verified reading, append-only logs.

Publishing: bytes -> hash -> exclusive temporary file in the same directory -> write -> fsync ->
rename -> fsync of the directory. A path therefore holds its old content or its new content, never
part of either. An fsync error abandons the attempt and is never retried: the kernel may have
dropped the dirty pages (docs/guarantees.md).
"""

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from pipeline.core import failpoint
from pipeline.core.errors import IntegrityError, ResourceError

TEMP_MARK = ".tmp-"
_READ_BLOCK = 1 << 22
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Published:
    """What was written: size in bytes and xxh3-128 hash in hex."""

    size: int
    hash: str


def hash_bytes(data: bytes | memoryview) -> str:
    """xxh3-128 of `data`, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_file(path: Path) -> str:
    """xxh3-128 of a file's bytes, read in blocks; 32 hex digits."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(_READ_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def publish(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    accept: Callable[[Published], None] = lambda published: None,
) -> Published:
    """Write `data` (one buffer, or several as they come, joined) to `path` atomically and durably.

    `accept` is told size and hash before the file gets its name, and may raise to prevent it.
    Raises ResourceError when the disk is full or the directory is not writable.
    """
    temp = path.parent / f"{TEMP_MARK}{path.name}-{os.getpid()}-{secrets.token_hex(4)}"
    pieces = (data,) if isinstance(data, bytes) else data
    size = sum(map(len, pieces)) if isinstance(pieces, Sequence) else 0
    try:
        _make_directory(path.parent)
        published = _write_durably(temp, pieces)
        accept(published)
        failpoint.hit("storage.publish.written")
        os.replace(temp, path)
        failpoint.hit("storage.publish.renamed")
        sync_directory(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temp.unlink()
        if isinstance(error, OSError):
            raise _explain(error, path, size) from error
        raise
    failpoint.hit("storage.publish.done")
    return published


def _write_durably(temp: Path, pieces: Iterable[bytes | memoryview]) -> Published:
    digest, size = xxhash.xxh3_128(), 0
    torn = failpoint.hit("storage.publish.start")
    with open(temp, "xb") as file:
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
        failpoint.hit("storage.publish.fsync")
        os.fsync(file.fileno())
    return Published(size, digest.hexdigest())


def _explain(error: OSError, path: Path, size: int) -> ResourceError:
    if error.errno in _NO_ROOM:
        free = _free_bytes(path.parent)
        wanted = f" {size:,} bytes" if size else ""
        return ResourceError(
            f"{path}: no room to write{wanted} ({free:,} bytes free); "
            "free some space and run the same command again, finished work is kept"
        )
    return ResourceError(f"{path}: cannot write: {error.strerror or error}")


def _free_bytes(directory: Path) -> int:
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return shutil.disk_usage(directory).free


@contextlib.contextmanager
def _explained(path: Path, size: int = 0) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _explain(error, path, size) from error


def make_directory(directory: Path) -> None:
    """Create `directory` and its missing parents, durably. Raises ResourceError."""
    with _explained(directory):
        _make_directory(directory)


def _make_directory(directory: Path) -> None:
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames and removals inside `directory` durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append(path: Path, line: str) -> None:
    """Add one line to an append-only log (metrics, journal); creates the file when needed."""
    with _explained(path, len(line) + 1), open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def truncate(path: Path, size: int) -> None:
    """Cut a log back to its first `size` bytes, durably."""
    with _explained(path), open(path, "r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def verify_file(path: Path, expected: str) -> None:
    """Raise IntegrityError unless `path` exists and its hash is `expected`."""
    if not path.is_file():
        raise IntegrityError(f"{path}: missing; expected a file with hash {expected}")
    actual = hash_file(path)
    if actual != expected:
        raise _damaged(path, expected, actual)


def read_verified(path: Path, expected: str) -> bytes:
    """Return the bytes of `path`; raises IntegrityError when missing or damaged."""
    if not path.is_file():
        raise IntegrityError(f"{path}: missing; expected a file with hash {expected}")
    data = path.read_bytes()
    actual = hash_bytes(data)
    if actual != expected:
        raise _damaged(path, expected, actual)
    return data


def _damaged(path: Path, expected: str, actual: str) -> IntegrityError:
    return IntegrityError(
        f"{path}: damaged: expected hash {expected}, found {actual}; "
        "run the command that made it again to rebuild it"
    )


def remove(path: Path) -> None:
    """Delete a file if it is there, durably."""
    if path.exists():
        with _explained(path):
            failpoint.hit("storage.remove")
            path.unlink()
            sync_directory(path.parent)


def remove_tree(directory: Path) -> None:
    """Delete a directory and all below it, if it is there."""
    if directory.exists():
        with _explained(directory):
            failpoint.hit("storage.remove")
            shutil.rmtree(directory)
            sync_directory(directory.parent)


def sweep_temps(directory: Path) -> int:
    """Delete leftovers of interrupted publishing below `directory`; returns how many."""
    swept = 0
    for path in directory.rglob(f"{TEMP_MARK}*"):
        with _explained(path):
            path.unlink(missing_ok=True)
        swept += 1
    return swept


def canonical_json(value: Any) -> bytes:
    """JSON bytes that depend on the value alone: sorted keys, UTF-8, final newline."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()


def write_json(path: Path, value: Any) -> Published:
    """Publish `value` as canonical JSON."""
    return publish(path, canonical_json(value))


LOGS = ("events.jsonl", "events.head", "reviews.jsonl", "holds.jsonl")
"""Logs at the top of a run directory, which hold times and grow after it is finished."""


def files_below(directory: Path) -> Iterator[Path]:
    """Every file outside `journal/` and `.lock` that is no log, as sorted relative paths."""
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        relative = path.relative_to(directory)
        if relative.parts[0] not in ("journal", *LOGS) and relative.name != ".lock":
            yield relative


def tree_hash(directory: Path) -> str:
    """sha256 over the sorted sha256 of every file of `files_below`; hex."""
    import hashlib

    def digest(path: Path) -> str:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    sums = sorted(digest(directory / relative) for relative in files_below(directory))
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()
