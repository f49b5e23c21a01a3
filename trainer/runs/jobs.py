"""A small local list of jobs, in the manner of `csctl`: one JSON file per job, no daemon; and a
run's own entry in it.

A job is QUEUED while its data is made ready, RUNNING while it trains, and ends SUCCEEDED, FAILED or
CANCELLED (stopped by a signal, after writing a checkpoint). Changes are made under a lock of the
directory and published whole, so any number of runs may share it. A job whose process is gone
without a report is shown as FAILED, or as CANCELLED when that was asked for; a process is
identified by pid and start time. Trouble with the list is reported and never stops a run.

Limits: Linux (/proc). Jobs of another host, or from before a restart of this one, are shown as they
were left, or as FAILED; only jobs of this host can be cancelled. Nothing is ever deleted. Nothing
here may import torch: `train jobs` answers in a fifth of a second.
"""

import contextlib
import fcntl
import getpass
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from dedup.user_cache import user_cache
from pipeline.core.directories import make_directory
from pipeline.core.errors import ConfigError, ResourceError
from pipeline.core.storage import write_json

_PREFIX = "wsjob-"
_FILE = re.compile(rf"{_PREFIX}(\d{{6,}})\.json")
_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_SIGNALLED = {128 + signal.SIGTERM, 128 + signal.SIGINT}


class Phase(StrEnum):
    """Where a job is in its life."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


_ACTIVE = frozenset({Phase.QUEUED, Phase.RUNNING})


@dataclass(frozen=True)
class Process:
    """A process of a host. `boot`: the kernel's id of this start of the machine. `start`: start
    time in clock ticks since."""

    host: str
    boot: str
    pid: int
    start: int

    @classmethod
    def current(cls) -> "Process":
        """This process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot_id(), pid, _start_time(pid) or 0)

    @property
    def here(self) -> bool:
        """Whether it belongs to this host."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether it still runs, as far as this host can tell."""
        if not self.here:
            return True
        return self.boot == _boot_id() and _start_time(self.pid) == self.start


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run. Times are seconds since 1970 UTC, None while they lie ahead. `systems`: emulated
    CS-2 systems, 0 for a run on CPU or GPU. `cancelling`: `cancel` was called."""

    name: str
    user: str
    command: tuple[str, ...]
    systems: int
    process: Process
    created: float
    phase: Phase = Phase.QUEUED
    started: float | None = None
    ended: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    cancelling: bool = False

    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return self.phase in _ACTIVE

    def seen(self) -> "Job":
        """As it is to be shown: a dead process has not succeeded."""
        if not self.active or self.process.alive:
            return self
        return replace(self, phase=Phase.CANCELLED if self.cancelling else Phase.FAILED)


class JobStore:
    """The jobs in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def default(cls) -> "JobStore":
        """`$WAFERMILL_JOBS`, else jobs/ in the user's cache directory."""
        if given := os.environ.get("WAFERMILL_JOBS", ""):
            return cls(Path(given))
        cache = user_cache()
        if cache is None:
            raise ConfigError(
                "no home directory for the list of jobs; set WAFERMILL_JOBS to a directory"
            )
        return cls(cache / "jobs")

    def register(self, *, command: Sequence[str], systems: int, labels: Mapping[str, str]) -> str:
        """Enter this process as a new job; its name, of the next free number. Raises
        ResourceError."""
        with self._locked():
            numbers = [int(path.stem.removeprefix(_PREFIX)) for path in self._files()]
            job = Job(
                name=f"{_PREFIX}{max(numbers, default=0) + 1:06d}",
                user=current_user(),
                command=tuple(command),
                systems=systems,
                process=Process.current(),
                created=_now(),
                labels=dict(labels),
            )
            self._write(job)
        return job.name

    def jobs(self) -> list[Job]:
        """All jobs as they are to be shown, oldest first. Raises ConfigError."""
        return [self._read(path).seen() for path in self._files()]

    def job(self, name: str) -> Job:
        """One job as it is to be shown. Raises ConfigError when there is none."""
        return self._read(self._path(name)).seen()

    def cancel(self, name: str) -> None:
        """Ask the process to write a checkpoint and stop (SIGTERM). Raises ConfigError when it
        has ended, is being cancelled, or cannot be reached."""
        with self._locked():
            job = self.job(name)
            _check_cancellable(job)
            _terminate(job)
            self._write(replace(job, cancelling=True))

    def label(self, name: str, changes: Mapping[str, str | None]) -> Job:
        """Set labels, and remove those whose value is None; returns the job."""
        with self._locked():
            job = self._read(self._path(name))
            merged = {**job.labels, **changes}
            kept = {key: value for key, value in sorted(merged.items()) if value is not None}
            self._write(replace(job, labels=kept))
        return self.job(name)

    def advance(self, name: str, phase: Phase) -> None:
        """Record a new phase with its time."""
        with self._locked():
            job = self._read(self._path(name))
            if phase is Phase.RUNNING:
                job = replace(job, phase=phase, started=_now())
            else:
                job = replace(job, phase=phase, ended=_now())
            self._write(job)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        make_directory(self.directory)
        handle = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _files(self) -> list[Path]:
        paths = [path for path in self.directory.glob("*.json") if _FILE.fullmatch(path.name)]
        return sorted(paths, key=lambda path: int(path.stem.removeprefix(_PREFIX)))

    def _path(self, name: str) -> Path:
        path = self.directory / f"{name}.json"
        if not _FILE.fullmatch(path.name) or not path.is_file():
            raise ConfigError(
                f"{name}: no such job in {self.directory}; `train jobs get -a` lists all"
            )
        return path

    def _read(self, path: Path) -> Job:
        try:
            value = json.loads(path.read_bytes())
            value["command"], value["phase"] = tuple(value["command"]), Phase(value["phase"])
            value["process"] = Process(**value["process"])
            return Job(**value)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: not a job file ({error}); delete it") from error

    def _write(self, job: Job) -> None:
        write_json(self.directory / f"{job.name}.json", job_to_json(job))


def job_to_json(job: Job) -> dict[str, object]:
    """A job as JSON values."""
    return {**asdict(job), "phase": str(job.phase), "command": list(job.command)}


def parse_labels(words: Iterable[str], *, removals: bool = False) -> dict[str, str | None]:
    """`key=value` sets a label; with `removals`, `key-` removes one (value None).

    Keys and values are letters, digits and `._-` (keys `/` too), at most 63, as in csctl. Raises
    ConfigError naming the word.

    >>> parse_labels(["team=nlp", "old-"], removals=True)
    {'team': 'nlp', 'old': None}
    """
    labels: dict[str, str | None] = {}
    for word in words:
        key, sign, value = word.partition("=")
        removed = removals and not sign and word.endswith("-")
        key = word[:-1] if removed else key
        if not (sign or removed) or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            form = "key=value, or key- to remove it" if removals else "key=value"
            raise ConfigError(
                f"label {word!r}: expected {form}, of letters, digits and ._- (at most 63 each)"
            )
        labels[key] = None if removed else value
    return labels


def _check_cancellable(job: Job) -> None:
    if not job.active:
        raise ConfigError(f"{job.name} has already ended ({job.phase}); nothing to cancel")
    if job.cancelling:
        raise ConfigError(
            f"{job.name} is being cancelled and is writing a checkpoint; "
            f"`kill -9 {job.process.pid}` ends it without one"
        )
    if not job.process.here:
        raise ConfigError(
            f"{job.name} runs on {job.process.host}; cancel it there, not on {socket.gethostname()}"
        )


def _terminate(job: Job) -> None:
    """SIGTERM through a pidfd, so that it cannot reach a later process with the same pid."""
    try:
        handle = os.pidfd_open(job.process.pid)
        try:
            if not job.process.alive:
                raise ProcessLookupError(job.process.pid)
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        finally:
            os.close(handle)
    except ProcessLookupError:
        raise ConfigError(f"{job.name} has just ended; nothing to cancel") from None
    except PermissionError:
        raise ConfigError(
            f"{job.name} belongs to {job.user}; only they and root can cancel it"
        ) from None


def _start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot (field 22 of stat); None when it is no more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _now() -> float:
    return round(time.time(), 3)


def current_user() -> str:
    """The name that this user's jobs are listed under."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return str(os.getuid())


Say = Callable[[str], None]
INTERRUPTED = 130
_TROUBLE = (ResourceError, ConfigError)


@dataclass(frozen=True)
class JobEntry:
    """What a run reports of itself, as job `name`; `store` None: the run is not listed."""

    store: JobStore | None
    name: str
    say: Say

    def running(self) -> None:
        """The work proper begins."""
        self._advance(Phase.RUNNING)

    def ended(self, exit_code: int) -> None:
        """It is over: 0 succeeded, 128 + SIGTERM or SIGINT cancelled, anything else failed."""
        stopped = Phase.CANCELLED if exit_code in _SIGNALLED else Phase.FAILED
        self._advance(Phase.SUCCEEDED if exit_code == 0 else stopped)

    def _advance(self, phase: Phase) -> None:
        if self.store is None:
            return
        try:
            self.store.advance(self.name, phase)
        except _TROUBLE as error:
            self.say(f"The list of jobs could not be updated: {error}")


@contextlib.contextmanager
def list_job(labels: Sequence[str], systems: int, say: Say, *, really: bool) -> Iterator[JobEntry]:
    """List this process as a job for the life of the block, or do not (`really`). `labels`:
    key=value. `systems`: emulated CS-2 systems, 0 without. The block records how it ends; an
    exception counts as a failure. Raises ConfigError for a malformed label."""
    parsed = {key: value or "" for key, value in parse_labels(labels).items()}
    entry = JobEntry(None, "", say)
    if really:
        try:
            store = JobStore.default()
            name = store.register(command=sys.argv, systems=systems, labels=parsed)
            entry = JobEntry(store, name, say)
            say(f"Job id: {name}")
        except _TROUBLE as error:
            say(f"`train jobs get` will not show this run: {error}")
    try:
        yield entry
    except BaseException as error:
        entry.ended(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)
        raise
