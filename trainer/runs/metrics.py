"""metrics.jsonl and eval.jsonl, one JSON object per line, cut back to the checkpoint on resume; and
scalars for TensorBoard, in MODEL_DIR/train and MODEL_DIR/eval.

A start that resumes after step s makes TensorBoard forget points after s that an earlier process
wrote (`purge_step`), so no step has two. Every point is written at once, on the thread that adds
it: none is lost to a kill, and a full disk ends the run by name instead of blocking a queue.
"""

import importlib.util
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.directories import make_directory
from pipeline.core.errors import ResourceError

TRAINING = "metrics.jsonl"
EVALUATION = "eval.jsonl"


def append_metrics(path: Path, record: dict[str, Any]) -> None:
    """Add one line; key order is that of `record`. Raises ResourceError, such as on a full disk."""
    storage.append_log_line(path, json.dumps(record))


def cut_back(path: Path, last_step: int) -> None:
    """Remove lines of steps after `last_step`, and a line that was cut off by a kill."""
    if not path.exists():
        return
    data = path.read_bytes()
    kept = b"".join(
        line
        for line in data.splitlines(keepends=True)
        if (step := _read_step(line)) is not None and step <= last_step
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


def _read_step(line: bytes) -> int | None:
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
    return any(_read_step(line) == step for line in path.read_bytes().splitlines(keepends=True))


TRAINING_EVENTS, EVALUATION_EVENTS = "train", "eval"
TENSORBOARD_MISSING = (
    "No TensorBoard events: tensorboardX is not installed (pip install 'wafermill[tensorboard]')"
)


def has_tensorboard() -> bool:
    """Whether events can be written."""
    return importlib.util.find_spec("tensorboardX") is not None


class Events:
    """Scalars of one directory. Its file is made for the first one."""

    def __init__(self, directory: Path, purge_step: int | None = None) -> None:
        self._directory = directory
        self._purge_step = purge_step
        self._writer: Any = None

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        """Record values by name at a step, None left out. Raises ResourceError."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        points = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if value is not None
        ]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=points))
        make_directory(self._directory)
        try:
            writer = self._opened()
            writer.write_event(event)
            writer.flush()
        except OSError as error:
            raise ResourceError(f"{self._directory}: cannot write: {error.strerror}") from error

    def _opened(self) -> Any:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        if self._writer is None:
            # The name of the file has whole seconds; two starts within one must not share it.
            prefix = str(self._directory / "events")
            self._writer = EventsWriter(prefix, f".{time.monotonic_ns()}")
            if self._purge_step is not None:
                start = SessionLog(status=SessionLog.START)
                event = Event(wall_time=time.time(), step=self._purge_step, session_log=start)
                self._writer.write_event(event)
        return self._writer

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
