"""`prep log`: what happened to a run directory, from its journal and its event log.

The journal says when a command began, which stages it made and why, and whether it came to its end;
the event log who screened, reviewed, released, purged or took down what.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.core import journal
from pipeline.core.errors import InputError
from pipeline.core.journal import read_events
from pipeline.runs.events import Event, verify_events

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
    if not directory.is_dir():
        raise InputError(f"{directory}: no such run directory")
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
