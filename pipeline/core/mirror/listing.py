"""The names below a mirrored directory, made those of the bucket: what other machines wrote or
deleted there, and the files that every command reads."""

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.core.bucket import StoredObject, Version
from pipeline.core.mirror.absent import is_always_read, make_time, place_absent
from pipeline.core.mirror.fetching import fetch_listed
from pipeline.core.mirror.paths import COMMITTED, LEASE, TEMP_MARK, locate, require_place

_STREAMS = 16
_CLOCK_NS = 50_000_000
"""By how much the times of files may be behind the clock."""
seen: dict[str, Version | str] = {}
"""By local path: the state of what `COMMITTED` names, when this process last looked; "none"."""


def refresh(root: Path) -> None:
    """Make the names below a directory those of the bucket, if it mirrors one: other machines may
    have written there."""
    if locate(root) is not None:
        open_mirror(root)


def open_mirror(root: Path) -> None:
    """Make the names below `root` those of the bucket, and fetch the files that commands always
    read. What this machine wrote meanwhile is left alone."""
    bucket, prefix = require_place(root)
    began = time.time_ns() - _CLOCK_NS
    objects = {root / o.key[len(prefix) + 1 :]: o for o in bucket.list_objects(f"{prefix}/")}
    _watch_committed(root, objects)
    _remove_others(root, objects, began)
    new = [path for path, stored in objects.items() if _is_stale(path, stored, began)]
    at_once = [path for path in new if is_always_read(path, path.parent == root)]
    for path in sorted(set(new).difference(at_once)):
        place_absent(path, objects[path])
    with ThreadPoolExecutor(_STREAMS) as pool:
        for _ in pool.map(fetch_listed, at_once):
            pass


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


def _is_stale(path: Path, stored: StoredObject, began: int) -> bool:
    if path.name == LEASE or _changed_ns(path) >= began:
        return False
    with contextlib.suppress(OSError):
        status = os.stat(path)
        stamp = make_time(stored.etag, 0)
        return (status.st_size, status.st_mtime_ns % 10**9) != (stored.size, stamp)
    return True


def _changed_ns(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_ctime_ns
    return 0
