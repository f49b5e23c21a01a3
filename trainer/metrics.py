"""metrics.jsonl and eval.jsonl: one JSON object per line, cut back to the checkpoint on resume."""

import json
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
    keep = 0
    with open(path, "rb") as file:
        for line in file:
            step = _step_of(line)
            if step is None or step > last_step:
                break
            keep += len(line)
    if keep != path.stat().st_size:
        storage.truncate(path, keep)


def _step_of(line: bytes) -> int | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def last_step(path: Path) -> int | None:
    """Step of the last line, None when there is none."""
    if not path.exists():
        return None
    lines = path.read_bytes().splitlines(keepends=True)
    return _step_of(lines[-1]) if lines else None
