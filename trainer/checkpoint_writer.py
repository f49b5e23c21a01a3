"""Writes checkpoints on a thread of its own, from a copy, while training goes on.

At most one is on its way: the next one waits for it. What can go wrong with it (a full disk) is
raised where the loop asks next, so the run ends with the error's own exit code; the checkpoint
before it stays, since a new one counts only once its manifest is there. The copy takes as many
bytes of host memory as the checkpoint has; where they are not to be had, training waits instead.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.core import failpoint
from pipeline.core.errors import PrepError
from pipeline.core.figures import format_bytes
from trainer import checkpoint, memory
from trainer.progress import Say
from wafer_backend.memoryx import MemoryX


class CheckpointWriter:
    """Saves checkpoints of one run and keeps the newest `keep`; a context manager.

    Leaving it waits for the checkpoint on its way, also after an error or a signal.
    """

    def __init__(self, model_dir: Path, keep: int, say: Say) -> None:
        self._model_dir = model_dir
        self._keep = keep
        self._say = say
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def save(self, step: int, memoryx: MemoryX, state: Mapping[str, Any]) -> None:
        """Copy weights and optimizer state and have them written. Raises as `finish` does."""
        self.finish()
        self._say(f"Saving checkpoint at step {step}")
        tensors = checkpoint.Tensors.of(memoryx)
        free = memory.measure_available()
        waits = free is not None and tensors.nbytes > free
        if not waits:
            tensors = tensors.copied()
        failpoint.hit("trainer.checkpoint.copied")
        self._pending = self._thread.submit(self._write, step, tensors, dict(state))
        if waits and free is not None:
            self._say(
                "Training waits for this checkpoint: a copy of the weights needs "
                f"{format_bytes(tensors.nbytes)}, but {format_bytes(free)} of memory is free"
            )
            self.finish()

    def collect(self) -> None:
        """Say so if the checkpoint on its way is there. Raises what went wrong with it."""
        if self._pending is not None and self._pending.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint on its way. Raises ResourceError if it could not be written."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._say(f"Saved checkpoint {pending.result()}")

    def _write(self, step: int, tensors: checkpoint.Tensors, state: Mapping[str, Any]) -> Path:
        path = checkpoint.save(self._model_dir, step, tensors, state)
        failpoint.hit("trainer.checkpoint.committed")
        checkpoint.prune(self._model_dir, self._keep)
        return path

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.finish()
        except PrepError as failed:
            if error is None:
                raise
            self._say(f"The checkpoint that was being written is lost: {failed}")
        finally:
            self._thread.shutdown()
