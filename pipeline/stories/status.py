"""`prep status`, `prep log` and `prep clean-up`: what a run directory holds and who works on it;
what happened to it; deleting what is unneeded.

The journal says when a command began, which stages it made and why, and whether it came to its end;
the event log who screened, reviewed, released, purged or took down what.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.core import journal, storage
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.journal import read_events
from pipeline.core.manifest import read_manifest, read_record, read_sealed, write_sealed
from pipeline.engine.runner import manifest_path, record_directory, removed_note
from pipeline.runs import layout
from pipeline.runs.catalogue import INTERMEDIATE_DIRECTORIES, is_off_by_default, story_entry
from pipeline.runs.events import Event, verify_events
from pipeline.runs.generations import has_generations, spared_directories
from pipeline.runs.run_directory import read_story, require_run


@dataclass(frozen=True)
class StageStatus:
    """One stage: `done`, `partial` (tasks committed, stage not) or `not started`."""

    stage: str
    state: str
    tasks: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class WorkStatus:
    """Who works on a run, or did last (`pid 7 on host since …`), and how far the stage is."""

    holder: str
    is_held: bool
    """Whether that process is still there."""
    stage: str
    """The stage that began last, "" before the first."""
    tasks: int
    """Tasks that the stage had to do, apart from `reused` ones."""
    done: int
    reused: int
    documents: int
    """Documents of the tasks that are done."""
    idle_seconds: float
    """Since a stage began or a task was done."""


def read_work(directory: Path) -> WorkStatus:
    """Who works on the run in a directory, and how far they are, from the files alone."""
    who, is_held = journal.holder(directory)
    events = [event for event in read_events(directory) if event.get("event") == "stage"]
    last = events[-1] if events else {}
    stage, tasks = str(last.get("name", "")), int(last.get("tasks", 0))
    began = int(last.get("time", time.time()) * 1e9)
    times, documents = [began], 0
    for path in record_directory(directory, stage).glob("*.json") if stage else ():
        record = read_record(path)
        if record is not None and path.stat().st_mtime_ns >= began:
            times.append(path.stat().st_mtime_ns)
            documents += int(record.counters.get("documents", 0))
    manifest = manifest_path(directory, stage)
    committed = bool(stage) and manifest.exists() and manifest.stat().st_mtime_ns >= began
    return WorkStatus(
        holder=who,
        is_held=is_held,
        stage=stage,
        tasks=tasks,
        done=tasks if committed else len(times) - 1,
        reused=int(last.get("reused", 0)),
        documents=documents,
        idle_seconds=max(0.0, time.time() - max(times) / 1e9),
    )


def read_status(directory: Path) -> tuple[bool, list[StageStatus]]:
    """Whether the run is finished, and the state of every stage, from the files alone."""
    require_run(directory)
    finished = (directory / layout.MANIFEST).exists()
    stages = []
    for stage in story_entry(read_story(directory)).stages:
        try:
            manifest = read_manifest(manifest_path(directory, stage))
        except IntegrityError:
            stages.append(StageStatus(stage, "damaged", 0, 0))
            continue
        if manifest is not None:
            size = sum(shard.size for shard in manifest.shards)
            stages.append(StageStatus(stage, "done", len(manifest.tasks), size))
            continue
        records = [
            r for p in record_directory(directory, stage).glob("*.json") if (r := read_record(p))
        ]
        if not records and (finished or is_off_by_default(stage)):
            continue
        size = sum(shard.size for record in records for shard in record.shards)
        stages.append(
            StageStatus(stage, "partial" if records else "not started", len(records), size)
        )
    return finished, stages


def delete_intermediates(directory: Path) -> tuple[list[str], int]:
    """Delete intermediates of a finished run; returns the directories removed and the bytes freed.

    What is left still verifies and traces; a later `prep run` of a changed config rebuilds them.
    """
    with journal.hold_lock(directory):
        path = directory / layout.MANIFEST
        if not path.exists():
            raise InputError(
                f"{directory}: not a finished run; clean-up would delete files it still needs; "
                "finish it first"
            )
        manifest = read_sealed(path)
        is_appended = "settings" in manifest or has_generations(directory)
        removed, freed, spared = [], 0, spared_directories(is_appended)
        for name in INTERMEDIATE_DIRECTORIES:
            if name not in spared and (directory / name).is_dir():
                freed += sum(p.stat().st_size for p in (directory / name).rglob("*") if p.is_file())
                removed.append(name)
        gone = {*manifest.get("removed", []), *removed}
        files = [f for f in manifest["files"] if f["path"].partition("/")[0] not in gone]
        write_sealed(removed_note(directory), {"removed": sorted(gone)})
        write_sealed(path, {**manifest, "files": files, "removed": sorted(gone)})
        for name in removed:
            storage.remove_tree(directory / name)
        return removed, freed


TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass
class MadeStage:
    """A stage that was made: its tasks, how many of an earlier attempt were reused, and what had
    changed since it was made last, empty for the first time."""

    stage: str
    tasks: int
    reused: int
    changed: tuple[str, ...]


@dataclass(kw_only=True)
class Session:
    """One start of a command: when (UTC), its config and story, its worker processes; the stages it
    made, files it found missing or damaged; how it ended, after how many seconds, and the hash of
    the run that it left."""

    at: str
    config: str
    story: str
    workers: int
    made: list[MadeStage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    state: str = "stopped"
    seconds: float | None = None
    reused: int | None = None
    run: str = ""


def read_run_log(directory: Path) -> list[Session | Event]:
    """Everything that is known of a run directory, oldest first. Raises InputError where there is
    none, IntegrityError for an event log that was changed."""
    require_run(directory)
    sessions = list(_read_sessions(read_events(directory)))
    if sessions and sessions[-1].state == "stopped" and journal.holder(directory)[1]:
        sessions[-1].state = "running"
    entries: list[Session | Event] = [*sessions, *verify_events(directory).events]
    return sorted(entries, key=lambda entry: entry.at)


def _read_sessions(events: list[dict[str, Any]]) -> Iterator[Session]:
    session: Session | None = None
    began = 0.0
    for event in events:
        time = float(event.get("time", 0))
        match event.get("event"):
            case "run":
                if session is not None:
                    yield session
                began, session = time, _begin(event, time)
            case "stage" if session is not None:
                session.made.append(_read_stage(event))
            case "rebuild" if session is not None:
                problem = str(event.get("problem", ""))
                session.problems += [problem] if problem not in session.problems else []
            case "done" if session is not None:
                session.state, session.seconds = "done", round(time - began, 3)
                session.reused = len(event.get("reused", ()))
                session.run = str(event.get("run", ""))
    if session is not None:
        yield session


def _begin(event: Mapping[str, Any], time: float) -> Session:
    return Session(
        at=datetime.fromtimestamp(time, UTC).strftime(TIME),
        config=str(event.get("config", "")),
        story=str(event.get("story", "")),
        workers=int(event.get("workers", 0)),
    )


def _read_stage(event: Mapping[str, Any]) -> MadeStage:
    return MadeStage(
        stage=str(event.get("name", "")),
        tasks=int(event.get("tasks", 0)),
        reused=int(event.get("reused", 0)),
        changed=tuple(map(str, event.get("changed", ()))),
    )
