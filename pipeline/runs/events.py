"""The event log of a run directory: who screened, reviewed, purged or took down what, and when.

`events.jsonl` has one numbered line per event, each with the sha256 of the line before it;
`events.head` has number and hash of the last one. So any event that was edited, removed, inserted
or moved shows, as long as the head, or a copy of an earlier one (`verify_events(head=…)`; reports
print it), is out of reach of whoever does it. It does not show a log and head that were both
rewritten, one more event at the end, events never written, or false times or claims. Part of a line
that a crash left is replaced by the next event.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pipeline.core import storage
from pipeline.core.directories import sync_directory
from pipeline.core.errors import ConfigError, IntegrityError, ResourceError

EVENTS = "events.jsonl"
HEAD = "events.head"
FIRST = "0" * 64
"""The hash before the first event."""

Kind = Literal["screening", "review", "quarantine", "purge", "takedown"]

_MEND = "move both files away and keep them; without them, a new log begins"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line: its number, the UTC time in ISO 8601, what happened, who did it, details, and the
    hash of the line before."""

    n: int
    at: str
    kind: str
    by: str
    what: dict[str, Any]
    prev: str


@dataclass(frozen=True)
class Head:
    """Number and hash of an event: the log up to it."""

    n: int
    hash: str


@dataclass(frozen=True)
class EventChain:
    """A log that holds together: its events, its head, and the bytes of a line that a crash left
    unfinished."""

    events: tuple[Event, ...]
    head: Head
    torn: int


def append_event(directory: Path, kind: Kind, by: str, what: dict[str, Any]) -> Event:
    """Add an event to the log of a run directory, durably; returns it.

    A line that a crash left unfinished is removed first. Raises IntegrityError, and adds nothing,
    when the log does not hold together; ConfigError when `by` is empty.
    """
    if not by.strip():
        raise ConfigError("an event needs the name of whoever is responsible for it")
    with _lock(directory):
        chain = verify_events(directory)
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        event = Event(n=chain.head.n + 1, at=at, kind=kind, by=by, what=what, prev=chain.head.hash)
        line = json.dumps(vars(event), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        append_line(directory / EVENTS, line)
        storage.write_json(directory / HEAD, vars(Head(event.n, _hash(line.encode()))))
    return event


def append_line(path: Path, line: str) -> None:
    """Add a line to a log durably, in place of one that a crash left unfinished."""
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        storage.truncate(path, whole)
    storage.append_log_line(path, line)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        raise ResourceError(f"{path}: cannot write: {error.strerror}") from error
    finally:
        os.close(handle)
    if not data:
        sync_directory(path.parent)


def verify_events(directory: Path, head: Head | None = None) -> EventChain:
    """Check the log of a run directory against its own head, or against an earlier one that was
    kept elsewhere; a directory without a log has an empty one.

    Raises IntegrityError naming the first event that was changed, removed, put in or moved.
    """
    path = directory / EVENTS
    data = path.read_bytes() if path.exists() else b""
    *lines, torn = data.split(b"\n")
    events = [_event(path, number, line) for number, line in enumerate(lines, 1)]
    own = _read_head(directory / HEAD)
    _check_links(path, events, [_hash(line) for line in lines], own)
    hashes = [FIRST, *(_hash(line) for line in lines)]
    _check_own_head(path, hashes, own)
    if head is not None:
        _check_end(path, hashes, head, "the head given")
    return EventChain(tuple(events), Head(len(events), hashes[-1]), len(torn))


@contextlib.contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """One writer of the log at a time; another lock than that of `prep run`, which writes too."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise ResourceError(f"{directory}: cannot write: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _event(path: Path, number: int, line: bytes) -> Event:
    try:
        value = json.loads(line)
        event = Event(**value)
    except (ValueError, TypeError, RecursionError) as error:
        raise _broken(
            path, number, f"event {number} was changed: the line is not an event"
        ) from error
    if not isinstance(event.n, int) or isinstance(event.n, bool):
        raise _broken(path, number, f"event {number} was changed: it has no valid number")
    return event


def _check_links(
    path: Path, events: Sequence[Event], hashes: Sequence[str], head: Head | None
) -> None:
    """Raises IntegrityError for the first line that is not what was recorded there."""
    numbers = [event.n for event in events]
    for place, event in enumerate(events):
        if event.n != place + 1:
            raise _explain_misplaced(path, numbers, place)
        if event.prev == (hashes[place - 1] if place else FIRST):
            continue
        following = {event.n: event.prev for event in events[place + 1 : place + 2]}
        next_hash = following.get(event.n + 1, head.hash if head and head.n == event.n else "")
        changed = event.n - 1 if place and next_hash == hashes[place] else event.n
        raise _broken(path, changed, f"event {changed} was changed after it was recorded")


def _explain_misplaced(path: Path, numbers: Sequence[int], place: int) -> IntegrityError:
    expected, number = place + 1, numbers[place]
    if number in numbers[:place]:
        first = numbers.index(number) + 1
        problem = f"there are two events {number} (the other on line {first}): one was inserted"
    elif expected in numbers[place:]:
        problem = f"event {number} is where event {expected} was recorded: it was moved or inserted"
    else:
        problem = f"event {expected} was removed"
    return _broken(path, place + 1, problem)


def _check_own_head(path: Path, hashes: Sequence[str], head: Head | None) -> None:
    """Only the last event can be missing from the head, after a crash."""
    events = len(hashes) - 1
    if events - (head.n if head else 0) > 1:
        state = f"ends with event {head.n}" if head else "is missing"
        raise IntegrityError(
            f"{path}: {events} events, but {HEAD} {state}: events may have been inserted or "
            f"removed at the end; restore it from a copy, or {_MEND}"
        )
    if head is not None:
        _check_end(path, hashes, head, HEAD)


def _check_end(path: Path, hashes: Sequence[str], head: Head, name: str) -> None:
    events = len(hashes) - 1
    if events < head.n:
        raise _broken(
            path,
            events + 1,
            f"events {events + 1} to {head.n}, which {name} names, were removed from the end",
        )
    if hashes[head.n] != head.hash:
        raise _broken(
            path,
            head.n,
            f"event {head.n} is not the one that {name} names: it was changed, or the log was "
            "rewritten from an earlier event on",
        )


def _read_head(path: Path) -> Head | None:
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_bytes())
        head = Head(int(value["n"]), str(value["hash"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{path}: damaged; restore it from a copy, or {_MEND}") from error
    return head


def _broken(path: Path, line: int, problem: str) -> IntegrityError:
    return IntegrityError(f"{path}:{line}: {problem}; {_MEND}")
