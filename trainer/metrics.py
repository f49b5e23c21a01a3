"""metrics.jsonl and eval.jsonl: one JSON object per line, cut back to the checkpoint on resume."""

import json
import os
from pathlib import Path
from typing import Any

from pipeline.core import storage

TRAINING = "metrics.jsonl"
EVALUATION = "eval.jsonl"


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one line; key order is that of `record`. Raises ResourceError, such as on a full disk."""
    storage.append(path, json.dumps(record))


def cut_back(path: Path, last_step: int) -> None:
    """Remove lines of steps after `last_step`, and a line that was cut off by a kill."""
    if not path.exists():
        return
    data = path.read_bytes()
    kept = b"".join(
        line
        for line in data.splitlines(keepends=True)
        if (step := _step_of(line)) is not None and step <= last_step
    )
    if kept == data:
        return
    if data.startswith(kept):
        storage.truncate(path, len(kept))
    else:
        storage.publish(path, kept)


def settle(path: Path) -> None:
    """Bring the lines so far to the disk, as a checkpoint that stands for them will be."""
    if path.exists():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _step_of(line: bytes) -> int | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def has_step(path: Path, step: int) -> bool:
    """Whether a line is there for `step`."""
    if not path.exists():
        return False
    return any(_step_of(line) == step for line in path.read_bytes().splitlines(keepends=True))
