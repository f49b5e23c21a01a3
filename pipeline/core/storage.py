"""The only writer of files: atomic publishing, verified reading, append-only logs.

Publishing: bytes -> hash -> exclusive temporary file in the same directory -> write -> fsync ->
rename -> fsync of the directory. A path therefore holds its old content or its new content, never
part of either. Without the two fsyncs that is so when a process is killed; after a power cut the
file may be gone or cut short, until `make_durable`. An fsync error abandons the attempt and is
never retried: the kernel may have dropped the dirty pages (docs/guarantees.md). Below a directory
that mirrors one in a bucket (`pipeline.core.mirror`) the bytes are put into the bucket before the
rename, and removals are made there first.

No file is written through a symbolic link of its own name. Inside `confine_writes` neither is one
written through a link in the place of a directory: each is opened from the one above it.
"""

import contextlib
import errno
import json
import mmap
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pipeline.core import failpoint, mirror
from pipeline.core.bucket import EXTRAS
from pipeline.core.errors import ConfigError, IntegrityError, ResourceError, escape_text
from pipeline.core.lease import delete, delete_tree, upload
from pipeline.core.mirror import fetch

_READ_BLOCK = 1 << 22
TEMP_MARK = mirror.TEMP_MARK
BUCKETS = tuple(EXTRAS)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_confined: list[tuple[Path, str]] = []
"""Directories that this process is confined to: as they were given, and as absolute paths."""


@dataclass(frozen=True)
class WrittenFile:
    """What was written: size in bytes and xxh3-128 hash in hex."""

    size: int
    hash: str


def check_local(path: Path) -> Path:
    """The path. Raises ConfigError for a URL, which `Path` turns into a directory such as `s3:`,
    and for a name that is not UTF-8."""
    url = _URL.match(str(path))
    if url:
        shown = f"{url[1]}://{escape_text(str(path)[url.end() :].partition('?')[0])}"
        raise ConfigError(f"{shown}: a URL; expected a path on this machine")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise ConfigError(f"{shown}: the name is not UTF-8; choose another one") from None
    return path


def open_place(path: Path) -> Path:
    """The directory on this machine behind a path of the command line: the path itself, or, for a
    URL of a bucket, the directory that mirrors it. Raises ConfigError for anything else."""
    url = _URL.match(str(path))
    if url is None or url[1] not in BUCKETS:
        return check_local(path)
    root = mirror.mirror_path(url[1], str(path)[url.end() :])
    mirror.open_mirror(root)
    return root


def is_in_bucket(url: str, name: str) -> bool:
    """Whether it is the URL of a directory in a bucket that holds a file of this name."""
    match = _URL.match(url)
    if match is None or match[1] not in BUCKETS:
        return False
    with contextlib.suppress(ConfigError):  # no directory, or its files are read in another way
        return mirror.is_stored(mirror.mirror_path(match[1], url[match.end() :]) / name)
    return False


def open_below(base: Path, path: str) -> Path:
    """The directory that a config names: a path from `base` on, or as for `open_place`."""
    return open_place(Path(path) if _URL.match(path) else base / path)


def hash_bytes(data: bytes | memoryview) -> str:
    """xxh3-128 of `data`, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_file(path: Path) -> str:
    """xxh3-128 of a file's bytes, read in blocks; 32 hex digits."""
    digest = xxhash.xxh3_128()
    with open(fetch(path), "rb") as file:
        while block := file.read(_READ_BLOCK):
            digest.update(block)
    return digest.hexdigest()


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
    with _explain_errors(path, size), _open_directory(path.parent, True, durable) as parent:
        mirror.free_room(path, size)
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
            _sync(parent)
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
    with _explain_errors(path), open_file(path, os.O_RDONLY) as handle:
        try:
            failpoint.hit("storage.make_durable")
            os.fsync(handle)
        except OSError:
            path.unlink(missing_ok=True)
            raise


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
def _open_directory(directory: Path, create: bool = False, durable: bool = True) -> Iterator[int]:
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
        _refuse_link(handle, name, path)
        raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=handle)
        if durable:
            _sync(handle)
    return os.open(name, flags, dir_fd=handle)


def _refuse_link(parent: int, name: str, path: Path) -> None:
    """Raises IntegrityError when `name` is a symbolic link."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise IntegrityError(
                f"{path}: a symbolic link, and nothing is written through links; expected a file "
                "or directory; delete the link, or move what it points to here"
            )


def _free_bytes(directory: Path) -> int:
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return shutil.disk_usage(directory).free


@contextlib.contextmanager
def _explain_errors(path: Path, size: int = 0) -> Iterator[None]:
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


def map_scratch(directory: Path, size: int) -> mmap.mmap:
    """Zeros in a mapped file without a name, which is gone once nothing refers to it. Its pages can
    leave memory. Raises ResourceError when the disk is full."""
    with (
        _explain_errors(directory / "scratch", size),
        tempfile.TemporaryFile(dir=directory) as file,
    ):
        os.posix_fallocate(file.fileno(), 0, max(1, size))  # a full disk later would be a signal
        return mmap.mmap(file.fileno(), max(1, size))


def make_directory(directory: Path) -> None:
    """Create `directory` and its missing parents, durably. Raises ResourceError."""
    with _explain_errors(directory), _open_directory(directory, create=True):
        pass


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


def sync_directory(directory: Path) -> None:
    """Make renames and removals inside `directory` durable."""
    with _open_directory(directory) as handle:
        _sync(handle)


def _sync(directory: int) -> None:
    os.fsync(directory)


@contextlib.contextmanager
def open_file(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of the file at `path`, opened with these flags of `os.open`. Raises
    IntegrityError for a symbolic link, OSError."""
    with _open_directory(path.parent) as parent:
        try:
            mode = flags | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(path.name, mode, 0o666, dir_fd=parent)
        except OSError:
            _refuse_link(parent, path.name, path)
            raise
    try:
        yield handle
    finally:
        os.close(handle)


def append_log_line(path: Path, line: str) -> None:
    """Add one line to an append-only log (metrics, journal); creates the file when needed. In a
    bucket the whole log is put anew."""
    if mirror.locate(path):
        publish(path, (path.read_bytes() if path.exists() else b"") + f"{line}\n".encode())
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with (
        _explain_errors(path, len(line) + 1),
        open_file(path, flags) as handle,
        open(handle, "a", encoding="utf-8", closefd=False) as file,
    ):
        file.write(line + "\n")


def truncate(path: Path, size: int) -> None:
    """Cut a log back to its first `size` bytes, durably."""
    if mirror.locate(path):
        publish(path, path.read_bytes()[:size])
        return
    with _explain_errors(path), open_file(path, os.O_WRONLY) as handle:
        os.ftruncate(handle, size)
        os.fsync(handle)


def verify_file(path: Path, expected: str) -> None:
    """Raise IntegrityError unless `path` exists and its hash is `expected`."""
    if not path.is_file():
        raise IntegrityError(f"{path}: missing; expected a file with hash {expected}")
    actual = mirror.hash_stored(path) if mirror.is_absent(path) else hash_file(path)
    if actual != expected:
        raise _explain_damage(path, expected, actual)


def read_at_most(path: Path, most: int) -> bytes | None:
    """Return the bytes of a file, None if it holds more than `most`, whatever size it states: a
    device states none. Raises OSError."""
    with open(path, "rb") as file:
        data = file.read(most + 1)
    return data if len(data) <= most else None


def read_verified(path: Path, expected: str) -> bytes:
    """Return the bytes of `path`; raises IntegrityError when missing or damaged."""
    if not fetch(path).is_file():
        raise IntegrityError(f"{path}: missing; expected a file with hash {expected}")
    data = path.read_bytes()
    actual = hash_bytes(data)
    if actual != expected:
        raise _explain_damage(path, expected, actual)
    return data


def _explain_damage(path: Path, expected: str, actual: str) -> IntegrityError:
    return IntegrityError(
        f"{path}: damaged: expected hash {expected}, found {actual}; to rebuild it, run again the "
        "command that made it"
    )


def remove(path: Path) -> None:
    """Delete a file, or a symbolic link in its place, if it is there; durably."""
    delete(path)
    with _explain_errors(path), _open_parent(path) as parent:
        if parent is not None:
            failpoint.hit("storage.remove")
            os.unlink(path.name, dir_fd=parent)
            _sync(parent)


def remove_tree(directory: Path, durable: bool = True) -> None:
    """Delete a directory and all below it, if it is there; it may come back after a power cut
    unless `durable`. Raises IntegrityError for a symbolic link in its place."""
    delete_tree(directory)
    with _explain_errors(directory), _open_parent(directory) as parent:
        if parent is not None:
            _refuse_link(parent, directory.name, directory)
            failpoint.hit("storage.remove")
            shutil.rmtree(directory.name, dir_fd=parent)
            if durable:
                _sync(parent)


@contextlib.contextmanager
def _open_parent(path: Path) -> Iterator[int | None]:
    """A descriptor of the directory around `path`; None where `path` is not there."""
    with contextlib.ExitStack() as stack:
        try:
            parent = stack.enter_context(_open_directory(path.parent))
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
                with _explain_errors(directory), contextlib.suppress(FileNotFoundError):
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


LOGS = ("events.jsonl", "events.head", "reviews.jsonl", "holds.jsonl")
"""Logs at the top of a run directory, which hold times and grow after it is finished."""


def files_below(directory: Path) -> Iterator[Path]:
    """Every file outside `journal/` and `.lock` that is no log, as sorted relative paths."""
    return map(Path, names_below(directory))


def names_below(directory: Path) -> Iterator[str]:
    """The files of `files_below` by name, with slashes."""
    for entry in _sorted_entries(directory):
        if entry.name not in ("journal", *LOGS):
            yield from _names_at(entry)


def _names_at(entry: os.DirEntry[str], above: str = "") -> Iterator[str]:
    """The file itself, or all that a directory holds."""
    if not entry.is_dir(follow_symlinks=False):
        if entry.is_file() and entry.name != ".lock":
            yield above + entry.name
        return
    for below in _sorted_entries(entry.path):
        yield from _names_at(below, f"{above}{entry.name}/")


def _sorted_entries(directory: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def tree_hash(directory: Path) -> str:
    """sha256 over the sorted sha256 of every file of `files_below`; hex."""
    import hashlib

    def digest(path: Path) -> str:
        with open(fetch(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    sums = sorted(digest(directory / relative) for relative in files_below(directory))
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()
