"""Room on the disk of a run, checked before step 1 instead of found out in the middle."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ResourceError
from pipeline.core.words import format_bytes, pluralise
from trainer.config import Params, RunConfig
from trainer.config.model_parameters import Shapes
from trainer.loop import sparsity
from trainer.model import optimizer
from trainer.runs.console import Say

_WEIGHT_BYTES = 4
_TENSOR_OVERHEAD = 512
_TENSORS = 3
_STEP_BYTES = 1024
"""Of logs a step, from above: 700 were measured."""
_SYSTEM_BYTES = 8
"""Of each system among `leaves_per_csx`."""
_MEASURE_BYTES = 6 << 10
"""Of a step that the stability watch measures, beside these: 4,600 were measured in float16."""
_FIXED_BYTES = 4 << 20
"""Report (2 MB with all its curves at their most points), run.json, card."""


@dataclass(frozen=True)
class DiskNeed:
    """Bytes a run will still write: `checkpoints` of `checkpoint_bytes` each in addition to
    those that are there when most are; and `logs`."""

    checkpoints: int
    checkpoint_bytes: int
    logs: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.checkpoints * self.checkpoint_bytes + self.logs


def checkpoint_bytes(params: Params, shapes: Shapes) -> int:
    """Bytes of a checkpoint of a model with parameters of these shapes, by name: fp32 weights, the
    state of the optimizer, masks of sparse weights; from above."""
    weights = _WEIGHT_BYTES * sum(math.prod(shape) for shape in shapes.values())
    state = optimizer.state_bytes(params.optimizer, shapes)
    overhead = _TENSORS * _TENSOR_OVERHEAD * len(shapes)
    return weights + state + sparsity.mask_bytes(params) + overhead


def measure_need(run: RunConfig, checkpoint_bytes: int, step: int, standing: int) -> DiskNeed:
    """Estimate from above what is still to be written after `step`, with `standing` checkpoints
    there.

    A new checkpoint is whole before the oldest is deleted, so one more than `max_checkpoints` is
    there at once. Logs: lines of metrics.jsonl and the console and events of TensorBoard, per step.

    >>> run = RunConfig(max_steps=10, checkpoint_steps=4, max_checkpoints=2)
    >>> moments = ((0, 0), (4, 1), (8, 2))
    >>> [measure_need(run, 4000, step, there).checkpoints for step, there in moments]
    [3, 2, 1]
    """
    last = run.max_steps or 0
    every = run.checkpoint_steps or last or 1
    due = {*range(step + every - step % every, last, every), last} if step < last else set()
    first = int(step == 0 and run.save_initial_checkpoint)
    most = min(standing + len(due) + first, run.max_checkpoints + 1)
    steps, interval = max(0, last - step), run.stability.every
    measures = 0 if interval is None else -(-steps // interval)
    logs = steps * (_STEP_BYTES + _SYSTEM_BYTES * run.num_csx) + measures * _MEASURE_BYTES
    return DiskNeed(max(0, most - standing), checkpoint_bytes, logs + _FIXED_BYTES)


def check_disk_space(model_dir: Path, need: DiskNeed, say: Say) -> None:
    """Say what the run needs. Raises ResourceError when it does not fit."""
    free = shutil.disk_usage(model_dir).free
    one = format_bytes(need.checkpoint_bytes)
    if need.total > free:
        raise ResourceError(
            f"{model_dir}: not enough disk space: "
            f"{pluralise(need.checkpoints, 'more checkpoint')} of {one} and "
            f"{format_bytes(need.logs)} of logs need {format_bytes(need.total)}, but "
            f"{format_bytes(free)} is free; free some space, lower runconfig.max_checkpoints or "
            "use another --model_dir"
        )
    say(
        f"Checkpoints: {one} each, and as much memory while one is being written; disk: "
        f"{format_bytes(need.total)} needed, {format_bytes(free)} free"
    )
