"""The journal of a directory, and its lock: one writer per run directory, by an advisory lock that
dies with its process.

The journal: everything about a run that is not byte-stable (times, hosts, worker counts, caches).

It lives under DIR/journal/ and is never part of a fingerprint or of the tree hash. A damaged or
missing journal costs work, never correctness.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.core.directories import confine_writes, make_directory, open_file
from pipeline.core.errors import ReadOnlyError, ResourceError
from pipeline.core.lease import hold_lease, read_holder
from pipeline.core.mirror.paths import locate
from pipeline.core.storage import append_log_line

DIRECTORY = "journal"
EVENTS = "events.jsonl"


class Journal:
    """Append-only event log `journal/events.jsonl` of one run directory."""

    def __init__(self, run_directory: Path) -> None:
        self.path = run_directory / DIRECTORY / EVENTS
        make_directory(self.path.parent)

    def event(self, kind: str, **fields: Any) -> None:
        """Record one event with the wall-clock time in seconds."""
        entry = {"time": round(time.time(), 3), "event": kind, **fields}
        append_log_line(self.path, json.dumps(entry, ensure_ascii=False, sort_keys=True))

    def events(self) -> list[dict[str, Any]]:
        """Every readable event, oldest first."""
        return read_events(self.path.parents[1])


def read_events(run_directory: Path) -> list[dict[str, Any]]:
    """Every readable event of a run, oldest first; a torn last line is passed over."""
    path = run_directory / DIRECTORY / EVENTS
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_FILE = ".lock"
_TRIES = 4
"""`holder` has the lock for a moment when it looks, which must not stop a command that begins."""


@contextlib.contextmanager
def hold_lock(directory: Path) -> Iterator[None]:
    """Hold DIRECTORY/.lock for the life of the block, in which nothing is written through symbolic
    links below DIRECTORY (`confine_writes`). The file names the holder's pid and host, and
    since when.

    Of a directory that mirrors one in a bucket, the lease there is held as well. Raises
    ResourceError naming the holder when another process has it, and ReadOnlyError where this
    process may not write. Network file systems without flock are not covered (docs/guarantees.md).
    """
    with contextlib.ExitStack() as stack:
        try:
            make_directory(directory)
            flags = os.O_RDWR | os.O_CREAT
            handle = stack.enter_context(open_file(directory / _FILE, flags))
            if not _locked(handle):
                name = _name(handle)
                raise ResourceError(f"{directory}: in use by {name}; wait for it or stop it")
            since = datetime.now().astimezone().isoformat(" ", "seconds")
            os.ftruncate(handle, 0)
            name = f"pid {os.getpid()} on {socket.gethostname()} since {since}"
            os.pwrite(handle, f"{name}\n".encode(), 0)
        except OSError as error:
            refused = ReadOnlyError if error.errno in _READ_ONLY else ResourceError
            raise refused(f"{directory}: cannot write: {error.strerror}") from error
        stack.enter_context(confine_writes(directory))
        if locate(directory):
            stack.enter_context(hold_lease(directory, name))
        yield


def holder(directory: Path) -> tuple[str, bool]:
    """Who holds DIRECTORY/.lock, or held it last (`pid 7 on host since …`, "" if nobody ever did),
    and whether it is held now."""
    if locate(directory):
        return read_holder(directory)
    try:
        with open_file(directory / _FILE, os.O_RDONLY) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return _name(handle), True
            return _name(handle), False
    except OSError:
        return "", False


def _locked(handle: int) -> bool:
    for attempt in range(_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.05 if attempt < _TRIES - 1 else 0)
        else:
            return True
    return False


def _name(handle: int) -> str:
    return os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
