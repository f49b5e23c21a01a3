"""The training loop: step, metrics, evaluation, checkpoint; and what happens when it is stopped."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.order import batch_size_at, samples_before_step
from trainer import checkpoint, leaves, metrics, pulse, sparsity
from trainer.checkpoint_writer import CheckpointWriter
from trainer.config import Params
from trainer.data import BatchPrefetcher, TrainingData
from trainer.evaluate import Evaluator
from trainer.progress import Say
from trainer.schedule import learning_rate
from trainer.stability import Watch
from trainer.step_log import StepLog, StepTime
from trainer.stop import StopRequest, StopSignal
from wafer_backend.compiled import CompiledModule
from wafer_backend.sparse import Group
from wafer_backend.step_profile import StepProfile
from wafer_backend.tree import leaf_count

PREFETCH_DEPTH = 2


@dataclass
class TrainingRun:
    """Everything one run needs; `step` is the last finished step.

    `params.runconfig.max_steps` is the last one. `validation`: evaluates while training, None for
    `--mode train`. `profile`: of some steps. `writes`: whether this process writes files; of
    several ranks one does. `masks`: those of sparse weights, None for a dense run.
    """

    params: Params
    model_dir: Path
    compiled: CompiledModule
    data: TrainingData
    record: dict[str, Any]
    stop: StopRequest
    log: StepLog
    watch: Watch
    say: Say
    validation: Evaluator | None = None
    profile: StepProfile | None = None
    writes: bool = True
    step: int = 0
    masks: Group | None = None
    _leaves: tuple[int, int] = field(default=(0, 0), init=False)
    """Leaves of the step under way: done, and all."""

    @property
    def last_step(self) -> int:
        """The step after which the run is through."""
        last = self.params.runconfig.max_steps
        assert last is not None, "length.resolved sets it"
        return last

    def run(self) -> None:
        """Train to the last step; a signal checkpoints the last whole step and raises StopSignal.

        A checkpoint on its way is waited for, whatever ends the loop.
        """
        keep = self.params.runconfig.max_checkpoints
        ahead = BatchPrefetcher(
            self.data,
            first_step=self.step + 1,
            last_step=self.last_step,
            depth=PREFETCH_DEPTH,
        )
        with CheckpointWriter(self.model_dir, keep, self.say) as writer, ahead:
            try:
                self._loop(writer, ahead)
            except StopSignal:
                writer.finish()
                here = checkpoint.directory(self.model_dir, self.step)
                if checkpoint.find_newest(self.model_dir) != here:
                    self._save(writer)
                raise
            pulse.doing("writing the checkpoint")

    def close(self) -> None:
        """Close the files of events."""
        if self.log.events is not None:
            self.log.events.close()
        if self.validation is not None:
            self.validation.close()

    def _loop(self, writer: CheckpointWriter, ahead: BatchPrefetcher) -> None:
        if self.step == 0 and self.params.runconfig.save_initial_checkpoint:
            self._save(writer)
        self._evaluate_if_due()
        while self.step < self.last_step:
            self._stop_together()
            self._advance(ahead)
            writer.collect()
            self._evaluate_if_due()
            if self._checkpoint_due():
                self._save(writer)

    def _advance(self, ahead: BatchPrefetcher) -> None:
        step = self.step + 1
        size = batch_size_at(step, self.data.schedule)
        self._leaves = 0, leaf_count(size, leaves.train_micro_batch(self.params))
        pulse.doing(f"step {step:,} of {self.last_step:,}")
        rate = learning_rate(step, self.params.optimizer.learning_rate)
        started, stalled = time.monotonic(), ahead.stall_seconds
        batch = ahead.batch(step)
        stalled = ahead.stall_seconds - stalled
        with self._profiled(step), self.watch.over(step) as gradients:
            result = self.compiled.train_step(
                batch,
                step=step,
                learning_rate=rate,
                max_gradient_norm=self.params.optimizer.max_gradient_norm,
                between_leaves=self._between_leaves,
            )
        watched = self.watch.look(step, result.loss, gradients)
        self.step = step
        spent = StepTime(size, time.monotonic() - started, stalled)
        self.log.step(result, rate, spent, self._next_pause(), watched)
        self.watch.tell(watched)

    def _between_leaves(self) -> None:
        """One process stops between leaves; ranks only between steps."""
        if self.compiled.transport.processes > 1:
            return
        done, count = self._leaves
        self._leaves = done + 1, count
        pulse.doing(f"step {self.step + 1:,} of {self.last_step:,}, leaf {done + 1} of {count}")
        self.stop.check()

    def _stop_together(self) -> None:
        """Raise StopSignal on every rank if rank 0 got a signal."""
        if self.compiled.transport.processes > 1:
            self.stop.raise_for(self.compiled.transport.agreed(self.stop.number))

    @contextlib.contextmanager
    def _profiled(self, step: int) -> Iterator[None]:
        """Profile the step if it is one of `op_profiler_config`; the last one shows the table."""
        if self.profile is None:
            yield
            return
        with self.profile.step(self.compiled, step):
            yield
        wanted = self.params.runconfig.op_profiler_config
        if wanted is not None and step == wanted.end_step:
            self.say(self.profile.table())

    def _next_pause(self) -> int:
        """The step after which training next makes way for an evaluation, or ends."""
        frequency = self.params.runconfig.eval_frequency
        if self.validation is None or frequency is None:
            return self.last_step
        return min(self.last_step, self.step + frequency - self.step % frequency)

    def _evaluate_if_due(self) -> None:
        """Evaluate where due, also after a resume from a checkpoint made by a signal."""
        if self.validation is None or self.step == 0:
            return
        frequency = self.params.runconfig.eval_frequency
        due = self.step == self.last_step or (frequency and self.step % frequency == 0)
        if due and not metrics.has_step(self.model_dir / metrics.EVALUATION, self.step):
            self.validation.run(self.step)

    def _checkpoint_due(self) -> bool:
        every = self.params.runconfig.checkpoint_steps
        return self.step == self.last_step or (every > 0 and self.step % every == 0)

    def _save(self, writer: CheckpointWriter) -> None:
        rates = self.params.optimizer.learning_rate
        state = {
            **self.record,
            "samples_consumed": samples_before_step(self.step + 1, self.data.schedule),
            "scheduler": {
                "next_step": self.step + 1,
                "learning_rate": learning_rate(self.step + 1, rates),
            },
        }
        if self.compiled.loss_scale is not None:
            state["loss_scale"] = self.compiled.loss_scale.state_dict()
        if self.masks is not None:
            state[sparsity.STATE] = sparsity.counters(self.masks)
        self.compiled.bring_home()
        if self.writes:
            for name in (metrics.TRAINING, metrics.EVALUATION):
                metrics.settle(self.model_dir / name)
            writer.save(self.step, self.compiled.memoryx, state)
