"""The journal: everything about a run that is not byte-stable (times, hosts, worker counts,
caches).

It lives under DIR/journal/ and is never part of a fingerprint or of the tree hash. A damaged or
missing journal costs work, never correctness.
"""

import json
import time
from pathlib import Path
from typing import Any

from pipeline.core.storage import append, make_directory

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
        append(self.path, json.dumps(entry, ensure_ascii=False, sort_keys=True))

    def events(self) -> list[dict[str, Any]]:
        """Every readable event, oldest first."""
        return read_events(self.path.parents[1])


def read_events(run_directory: Path) -> list[dict[str, Any]]:
    """Every readable event of a run, oldest first; a torn last line is passed over."""
    path = run_directory / DIRECTORY / EVENTS
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
