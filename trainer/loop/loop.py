"""The training loop: step, metrics, evaluation, checkpoint; and what happens when it is stopped."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.order import Schedule, batch_size_at, samples_before_step
from trainer.config import Params
from trainer.data import BatchPrefetcher, TrainingData, batches
from trainer.errors import StopRequest, StopSignal
from trainer.evaluation.loss import Evaluator
from trainer.loop import sparsity
from trainer.model.optimizer import learning_rate
from trainer.runs import checkpoint, console, metrics
from trainer.runs.checkpoint import CheckpointWriter
from trainer.runs.console import Rate, Say
from trainer.runs.metrics import Events
from trainer.stability import StepFindings, Watch
from wafer_backend.cluster.coordinator import StepResult
from wafer_backend.cluster.precision import SCALED
from wafer_backend.cluster.tree import leaf_count
from wafer_backend.compiled import CompiledModule, Target
from wafer_backend.profiler import StepProfile
from wafer_backend.sparse import Group


@dataclass(frozen=True)
class StepTime:
    """`seconds`: the whole step; `stalled`: the part of it spent waiting for its batch."""

    samples: int
    seconds: float
    stalled: float


@dataclass(kw_only=True)
class StepLog:
    """Reports the steps of one run: a line of metrics.jsonl, one on the console, an event for
    TensorBoard. `path`: metrics.jsonl; None for a rank that does not write. `events`: None where
    TensorBoard is not fed. `sparsity`: measures the share of pruned weights, None for a dense
    run. `rate`: of all steps so far; `stalled`: seconds they waited for their batches."""

    params: Params
    target: Target
    schedule: Schedule
    path: Path | None
    events: Events | None
    say: Say
    sparsity: Callable[[], dict[str, float]] | None = None
    rate: Rate = field(default_factory=Rate)
    stalled: float = 0.0

    def step(
        self,
        result: StepResult,
        learning_rate: float,
        time: StepTime,
        pause: int,
        watched: StepFindings,
    ) -> None:
        """Report the step that was `watched`; `pause`: the step before the next evaluation, or
        the last."""
        step = watched.step
        self.rate.add(time.samples, time.seconds)
        self.stalled += time.stalled
        shown = step == 1 or step % self.params.runconfig.log_steps == 0
        pruned = self.sparsity() if shown and self.sparsity is not None else {}
        if self.path is not None:
            line = self._line(result, learning_rate, time, watched)
            metrics.append_metrics(self.path, line | ({"sparsity": pruned} if pruned else {}))
        if shown or console.is_due(time.seconds):
            self.say(self._shown(step, result, time, pause))
        if self.events is not None:
            if shown:
                values = {
                    "loss": result.loss,
                    "grad_norm": None if result.skipped else result.grad_norm,
                    "learning_rate": learning_rate,
                    "local_samples_per_sec": time.samples / time.seconds,
                    "avg_samples_per_sec": self.rate.overall,
                    "stall_share": time.stalled / time.seconds,
                }
                if self.params.model.precision in SCALED:
                    values["loss_scale"] = result.loss_scale
                self.events.add(step, values)
            if pruned:
                self.events.add(step, {f"sparsity/{name}": x for name, x in pruned.items()})
            if watched.scalars:
                self.events.add(step, watched.scalars)

    def _line(
        self, result: StepResult, learning_rate: float, time: StepTime, watched: StepFindings
    ) -> dict[str, object]:
        line = {
            "step": watched.step,
            "loss": result.loss,
            "loss_hex": result.loss.hex(),
            "grad_norm": None if result.skipped else result.grad_norm,
            "learning_rate": learning_rate,
            "samples_per_second": time.samples / time.seconds,
            "stall_seconds": time.stalled,
            "num_csx": self.params.runconfig.num_csx,
            "leaves_per_csx": list(result.leaves_per_csx),
            **watched.fields,
        }
        if self.params.model.precision in SCALED:
            line |= {"loss_scale": result.loss_scale, "skipped": result.skipped}
        return line

    def _shown(self, step: int, result: StepResult, time: StepTime, pause: int) -> str:
        """Model Zoo's line. TimeRemaining is a lower bound, as there: without evaluations and
        checkpoints."""
        last = self.params.runconfig.max_steps or step
        return (
            f"| Train Device={self.target}, Step={step}, Loss={result.loss:.5f}, "
            f"Rate={time.samples / time.seconds:.2f} samples/sec, "
            f"GlobalRate={self.rate.overall:.2f} samples/sec, "
            f"LoopTimeRemaining={self._time_to(pause, step)}, "
            f"TimeRemaining>{self._time_to(last, step)}"
        )

    def _time_to(self, last: int, step: int) -> str:
        done = samples_before_step(step + 1, self.schedule)
        return self.rate.time_for(samples_before_step(last + 1, self.schedule) - done)


@dataclass(kw_only=True)
class TrainingRun:
    """Everything one run needs; `step` is the last finished step, `params.runconfig.max_steps`
    the last one. `validation`: evaluates while training, None for `--mode train`. `profile`: of
    some steps. `writes`: whether this process writes files; of several ranks one does. `masks`:
    those of sparse weights, None for a dense run."""

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
        """Train to the last step; a signal checkpoints the last whole step and raises
        StopSignal. A checkpoint on its way is waited for, whatever ends the loop."""
        keep = self.params.runconfig.max_checkpoints
        ahead = BatchPrefetcher(self.data, first_step=self.step + 1, last_step=self.last_step)
        with CheckpointWriter(self.model_dir, keep, self.say) as writer, ahead:
            try:
                self._loop(writer, ahead)
            except StopSignal:
                writer.finish()
                here = checkpoint.checkpoint_directory(self.model_dir, self.step)
                if checkpoint.find_newest(self.model_dir) != here:
                    self._save(writer)
                raise
            console.doing("writing the checkpoint")

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
            if self.compiled.transport.processes > 1:  # all ranks stop if rank 0 got a signal
                self.stop.raise_for(self.compiled.transport.agreed(self.stop.number))
            self._advance(ahead)
            writer.collect()
            self._evaluate_if_due()
            every = self.params.runconfig.checkpoint_steps
            if self.step == self.last_step or (every > 0 and self.step % every == 0):
                self._save(writer)

    def _advance(self, ahead: BatchPrefetcher) -> None:
        step = self.step + 1
        size = batch_size_at(step, self.data.schedule)
        self._leaves = 0, leaf_count(size, batches.train_micro_batch(self.params))
        console.doing(f"step {step:,} of {self.last_step:,}")
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
        console.doing(f"step {self.step + 1:,} of {self.last_step:,}, leaf {done + 1} of {count}")
        self.stop.check()

    @contextlib.contextmanager
    def _profiled(self, step: int) -> Iterator[None]:
        if self.profile is None:
            yield
            return
        with self.profile.step(self.compiled, step):
            yield
        chosen = self.params.runconfig.op_profiler_config
        if chosen is not None and step == chosen.end_step:
            self.say(self.profile.table())

    def _next_pause(self) -> int:
        """The step after which an evaluation is next, or the last."""
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
