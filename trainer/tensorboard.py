"""Scalars for TensorBoard, in MODEL_DIR/train and MODEL_DIR/eval.

A start that goes on after step s tells TensorBoard to forget points after s that an earlier process
wrote (`purge_step`), so no step has two. Every point is written at once, on the thread that adds
it: none is lost to a kill, and a full disk ends the run by name instead of blocking a queue.
"""

import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import ResourceError

TRAINING, EVALUATION = "train", "eval"
MISSING = (
    "No TensorBoard events: tensorboardX is not installed (pip install 'wafermill[tensorboard]')"
)


def is_installed() -> bool:
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

        known = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if value is not None
        ]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=known))
        storage.make_directory(self._directory)
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
