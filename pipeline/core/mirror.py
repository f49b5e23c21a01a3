"""Directories in buckets, as directories on the local disk that mirror them.

`s3://BUCKET/KEY` is the path `buckets/s3/BUCKET/KEY` in the user's cache, so every process knows
from a path alone whether it is mirrored, and what. What is written there is put into the bucket
first, under its lease (`pipeline.core.lease`). `open_mirror` makes the names below a path those of
the bucket: files that a command always needs are fetched at once, others stand there empty until
`fetch` brings their bytes (`is_absent`). When the cache is full, those that were not used for
longest become empty again.

The modification time of a mirrored file is that of the object, rounded up to seconds, with thirty
bits of its ETag as nanoseconds: that shows which files are still those of the bucket.
"""

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import shutil
import stat
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from pipeline.core.bucket import EXTRAS, Bucket, StoredObject, Version, ask_often
from pipeline.core.errors import ConfigError, IntegrityError, ResourceError

LEASE = ".lock"
PLACE = ".id"
TEMP_MARK = ".tmp-"
_ABSENT = stat.S_IWUSR
"""The permissions of a file whose bytes are in the bucket only: it cannot be read by mistake."""
_AT_ONCE = (".json", ".head", ".log", ".html")
_TABLE = ".parquet"
COMMITTED = ("manifest.json", "events.jsonl", "events.head", "reviews.jsonl", "holds.jsonl")
"""Files that are only replaced in the state in which this process has seen them."""
_STREAMS = 16
_PARTS = ".parts"
"""The directory, next to the mirrors, of files that hold parts of objects."""
_PINNED, _PINNED_SHARE = 256, 64
"""A process holds on to what it asked for last: so many files, on one part of the file system in so
many; but at least to one."""
_SPARE, _ROOM = 10, 5
"""The cache is full when less than one part in so many of its file system is free; then room is
made until so many are, since finding out what goes means looking at all that is there."""
_CLOCK_NS = 50_000_000
"""By how much the times of files may be behind the clock."""

seen: dict[str, Version | str] = {}
"""By local path: the state of what `COMMITTED` names, when this process last looked; "none"."""
_pins: deque[tuple[int, int]] = deque()
"""Descriptor and size of files that stay; several threads of a task ask for files."""
_pinning = threading.Lock()
os.register_at_fork(
    before=_pinning.acquire, after_in_parent=_pinning.release, after_in_child=_pinning.release
)


def mirrors_top() -> str | None:
    """The directory of all mirrors, with a slash at its end."""
    from dedup.user_cache import user_cache  # not for help

    cache = user_cache()
    return None if cache is None else f"{_resolve(cache)}/buckets/"


@functools.cache
def _resolve(cache: Path) -> str:
    """Its one name, which paths have that commands resolved."""
    return os.path.realpath(cache)


@functools.cache
def _bucket(scheme: str, name: str) -> Bucket:
    return Bucket(scheme, name)


def locate(path: Path) -> tuple[Bucket, str] | None:
    """The bucket and key that a local path mirrors; None for a path that mirrors nothing."""
    text = str(path)
    if text.startswith("/") and "/buckets/" not in text:
        return None
    text = os.path.abspath(text)
    if "/buckets/" not in text or (top := mirrors_top()) is None or not text.startswith(top):
        return None
    scheme, name, *parts = text[len(top) :].split("/")
    return _bucket(scheme, name), "/".join(parts)


def mirror_path(scheme: str, place: str) -> Path:
    """The local path that mirrors BUCKET/KEY. Raises ConfigError."""
    top = mirrors_top()
    if "@" in place.partition("/")[0]:
        raise ConfigError(
            f"{scheme}://…@{place.partition('@')[2]}: no credentials in a URL; set them in the "
            "environment, or where the store's own tools look"
        )
    url = f"{scheme}://{place}"
    if scheme not in EXTRAS:
        raise ConfigError(f"{url}: expected a path on this machine, or a URL of s3:// or gs://")
    if top is None:
        raise ConfigError(f"{url}: needs a cache on this machine; set WAFERMILL_CACHE to its path")
    parts = place.strip("/").split("/")
    if len(parts) < 2 or set(parts) & {"", ".", ".."}:
        raise ConfigError(f"{url}: expected {scheme}://BUCKET/DIRECTORY")
    return Path(top, scheme, *parts)


def name_urls(text: str) -> str:
    """A message, with URLs in place of paths of mirrors."""
    top = mirrors_top()
    for scheme in EXTRAS if top is not None and top in text else ():
        text = text.replace(f"{top}{scheme}/", f"{scheme}://")
    return text


def open_mirror(root: Path) -> None:
    """Make the names below `root` those of the bucket, and fetch the files that commands always
    read. What this machine wrote meanwhile is left alone."""
    bucket, prefix = require_place(root)
    began = time.time_ns() - _CLOCK_NS
    objects = {root / o.key[len(prefix) + 1 :]: o for o in bucket.list_objects(f"{prefix}/")}
    _watch_committed(root, objects)
    _remove_others(root, objects, began)
    new = [path for path, stored in objects.items() if _is_stale(path, stored, began)]
    at_once = [path for path in new if _is_always_read(path, path.parent == root)]
    for path in sorted(set(new).difference(at_once)):
        _place_absent(path, objects[path])
    with ThreadPoolExecutor(_STREAMS) as pool:
        for _ in pool.map(_fetch_listed, at_once):
            pass


def _is_always_read(path: Path, is_top: bool) -> bool:
    """Whether it is a table at the top of a run, a part of one, or describes others."""
    if path.suffix in _AT_ONCE or path.name in COMMITTED:
        return True
    return (path.suffix == _TABLE and is_top) or path.parent.suffix == _TABLE


def refresh(root: Path) -> None:
    """Make the names below a directory those of the bucket, if it mirrors one: other machines may
    have written there."""
    if locate(root) is not None:
        open_mirror(root)


def require_place(root: Path) -> tuple[Bucket, str]:
    """The bucket and key of a path that mirrors something."""
    place = locate(root)
    assert place is not None, root
    return place


def _watch_committed(root: Path, objects: dict[Path, StoredObject]) -> None:
    for name in COMMITTED:
        seen[str(root / name)] = "none"
    for path, stored in objects.items():
        if path.name in COMMITTED:
            seen[str(path)] = stored.version


def _remove_others(root: Path, objects: dict[Path, StoredObject], began: int) -> None:
    """Delete local files that are not in the bucket, except for those of work in progress."""
    for directory, _, names in os.walk(root, topdown=False):
        for path in (Path(directory, name) for name in names):
            is_ours = path.name.startswith(TEMP_MARK) or path.name == LEASE
            if path not in objects and not is_ours and _changed_ns(path) < began:
                path.unlink(missing_ok=True)
        if directory != str(root):
            with contextlib.suppress(OSError):  # it holds files
                os.rmdir(directory)


def _changed_ns(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_ctime_ns
    return 0


def _is_stale(path: Path, stored: StoredObject, began: int) -> bool:
    if path.name == LEASE or _changed_ns(path) >= began:
        return False
    with contextlib.suppress(OSError):
        status = os.stat(path)
        stamp = make_time(stored.etag, 0)
        return (status.st_size, status.st_mtime_ns % 10**9) != (stored.size, stamp)
    return True


def make_time(etag: str, seconds: float) -> int:
    """A modification time in nanoseconds."""
    bits = xxhash.xxh3_64_intdigest(etag.encode()) & ((1 << 30) - 1)
    return (int(-(-seconds // 1)) * 10**9) + bits % 10**9


def is_absent(path: Path) -> bool:
    """Whether a file is in the bucket only. False for one that is not there at all."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(os.stat(path).st_mode) == _ABSENT
    return False


def state_of(path: Path) -> int:
    """What tells one state of a file of this size from others: the time of its modification in ns,
    or, if it is mirrored, what every machine has of its ETag. Raises OSError."""
    time_ns = os.stat(path).st_mtime_ns
    return time_ns if locate(path) is None else time_ns % 10**9


def _place_absent(path: Path, stored: StoredObject) -> None:
    """An empty file that looks like the object, and takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = temp_of(path)
    handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _ABSENT)
    try:
        os.fchmod(handle, _ABSENT)
        os.ftruncate(handle, stored.size)
    finally:
        os.close(handle)
    _rename(temp, path, stored)


def temp_of(path: Path) -> Path:
    """A new name next to `path` for a file that becomes it."""
    return path.with_name(f"{TEMP_MARK}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def _rename(temp: Path, path: Path, stored: StoredObject) -> None:
    stamp = make_time(stored.etag, stored.modified)
    os.utime(temp, ns=(time.time_ns(), stamp))
    os.replace(temp, path)


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


def _pin(handle: int) -> None:
    """Hold on to a file, and let go of those that were asked for longest ago."""
    most_bytes = shutil.disk_usage(mirrors_top() or "").total // _PINNED_SHARE
    with _pinning:
        _pins.append((handle, os.fstat(handle).st_size))
        while len(_pins) > 1 and (
            len(_pins) > _PINNED or sum(size for _, size in _pins) > most_bytes
        ):
            os.close(_pins.popleft()[0])


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
    directory = Path(mirrors_top() or "", _PARTS)
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


def fetch_again(path: Path) -> bool:
    """Replace what is on this machine of a mirrored file, which another machine may have written
    anew; False for a path that mirrors nothing."""
    if locate(path) is None:
        return False
    path.unlink(missing_ok=True)
    fetch(path)
    return True


def _open_pinned(path: Path) -> int | None:
    """A descriptor whose lock keeps the file here; None where its bytes are not."""
    with contextlib.suppress(FileNotFoundError):
        if is_absent(path):
            return None
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
            status = os.fstat(handle)
            is_here = stat.S_IMODE(status.st_mode) != _ABSENT
            if is_here and status.st_ino == os.stat(path).st_ino:
                return handle
        os.close(handle)
    return None


def _fetch_listed(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
        _fetch(path, is_listed=True)


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
            _rename(temp, path, stored)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise ResourceError(f"{path}: cannot keep a copy here: {error.strerror}") from error
        finally:
            temp.unlink(missing_ok=True)


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
        was_absent = stat.S_IMODE(os.fstat(handle).st_mode) == _ABSENT
        if was_absent:
            fcntl.flock(handle, fcntl.LOCK_EX)
        is_same = path.exists() and os.fstat(handle).st_ino == os.stat(path).st_ino
        yield was_absent and not is_same
    finally:
        os.close(handle)


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
    is_kept = is_work or _is_always_read(file, (file.parent / "journal").is_dir())
    return not is_kept and stat.S_IMODE(status.st_mode) != _ABSENT


def _empty(file: Path, status: os.stat_result) -> bool:
    """Leave a file in the bucket only, unless a process uses it or it changed."""
    with contextlib.suppress(OSError):
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            now = os.stat(file)
            if (now.st_ino, now.st_mtime_ns) != (status.st_ino, status.st_mtime_ns):
                return False
            if file.parent.name == _PARTS:
                file.unlink()
                return True
            temp = temp_of(file)
            temp.touch(_ABSENT, exist_ok=False)
            os.chmod(temp, _ABSENT)
            os.truncate(temp, status.st_size)
            os.utime(temp, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.replace(temp, file)
            return True
        finally:
            os.close(handle)
    return False


def check_stored(path: Path, expected: str) -> None:
    """Raise IntegrityError unless the object that `path` mirrors says that this is the hash of its
    bytes, which are read only if another program wrote it."""
    bucket, key = require_place(path)
    there = ask_often(lambda: bucket.look_up(key))
    if there is None:
        raise _missing(path)
    actual = there[1] or hash_stored(path)
    if actual != expected:
        raise IntegrityError(
            f"{path}: changed: hash {actual}; expected a file with hash {expected}"
        )


def _missing(path: Path) -> IntegrityError:
    return IntegrityError(f"{path}: missing; to rebuild it, run again the command that made it")


def is_stored(path: Path) -> bool:
    """Whether there is an object that `path` mirrors."""
    bucket, key = require_place(path)
    return bucket.look_up(key) is not None


def hash_stored(path: Path) -> str:
    """xxh3-128 of the bytes of the object that `path` mirrors, of which none are kept here. Raises
    IntegrityError if there is none."""
    bucket, key = require_place(path)
    digest = xxhash.xxh3_128()

    def read(chunks: Iterable[memoryview]) -> None:
        digest.reset()
        for chunk in chunks:
            digest.update(chunk)

    def ask() -> StoredObject | None:
        with contextlib.suppress(FileNotFoundError):
            return bucket.stream(key, read)
        return None

    if ask_often(ask) is None:
        raise _missing(path)
    return digest.hexdigest()
