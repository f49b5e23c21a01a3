"""The training loop: step, metrics, evaluation, checkpoint; and what happens when it is stopped."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.order import Schedule, batch_size_at, samples_before_step
from trainer.config import Params
from trainer.data import BatchPrefetcher, TrainingData, batches
from trainer.errors import StopRequest, StopSignal, as_prep_errors, interruption_by
from trainer.evaluation.loss import Evaluator
from trainer.loop import sparsity
from trainer.loop.callbacks import CallbackList, Request, TrainingState
from trainer.model.optimizer import learning_rate
from trainer.runs import checkpoint, console, metrics, record
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
    those of sparse weights, None for a dense run. `callbacks`: of the process that writes."""

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
    callbacks: CallbackList = field(default_factory=CallbackList)
    state: TrainingState = field(init=False)
    _leaves: tuple[int, int] = field(default=(0, 0), init=False)
    """Leaves of the step under way: done, and all."""
    _saved: int | None = field(default=None, init=False)
    """The step of the newest checkpoint of this directory, written or on its way."""
    _has_callbacks: bool = field(default=False, init=False)
    """Whether the process that writes has some."""

    def __post_init__(self) -> None:
        self.state = self._describe_state()

    @property
    def last_step(self) -> int:
        """The step after which the run is through."""
        last = self.params.runconfig.max_steps
        assert last is not None, "length.resolved sets it"
        return last

    def run(self) -> None:
        """Train to the last step, or until a callback stops it, with a checkpoint of the last whole
        step; a signal writes one too and raises StopSignal. A checkpoint on its way is waited for,
        whatever ends the loop."""
        keep = self.params.runconfig.max_checkpoints
        self._has_callbacks = bool(self.compiled.transport.agreed(len(self.callbacks)))
        here = checkpoint.checkpoint_directory(self.model_dir, self.step)
        self._saved = self.step if checkpoint.find_newest(self.model_dir) == here else None
        ahead = BatchPrefetcher(self.data, first_step=self.step + 1, last_step=self.last_step)
        with CheckpointWriter(self.model_dir, keep, self.say) as writer, ahead:
            try:
                self._loop(writer, ahead)
            except StopSignal:
                self._save_last(writer)
                raise
            console.doing("writing the checkpoint")
            self._save_last(writer)
        if self.writes and self.is_cut_short and self.callbacks.stop is not None:
            stopped = {"step": self.step, **asdict(self.callbacks.stop)}
            path = self.model_dir / record.NAME
            storage.write_json(path, {**self.record, record.STOPPED: stopped})
        if self._has_callbacks:  # other ranks return the same result
            self.compiled.transport.agreed(0)

    @contextlib.contextmanager
    def reported_end(self) -> Iterator[None]:
        """What is inside ends the run: callbacks learn that it did, or why not."""
        try:
            with as_prep_errors():
                yield
            self.callbacks.call("on_train_end", self.state)
        except BaseException as error:
            raised = interruption_by(error.exit_code) if isinstance(error, StopSignal) else error
            self.callbacks.call_on_exception(self.state, raised, self.say)
            raise

    @property
    def is_cut_short(self) -> bool:
        """Whether it was stopped before its last step, by a callback or a signal."""
        return self.step < self.last_step

    def close(self) -> None:
        """Close the files of events."""
        if self.log.events is not None:
            self.log.events.close()
        if self.validation is not None:
            self.validation.close()

    def _loop(self, writer: CheckpointWriter, ahead: BatchPrefetcher) -> None:
        self.callbacks.call("on_train_start", self.state)
        if self.step == 0 and self.params.runconfig.save_initial_checkpoint:
            self._save(writer)
        self._evaluate_if_due()
        if self._is_asked(Request.SAVE):
            self._save_last(writer)
        while self.step < self.last_step and not self._is_asked(Request.STOP):
            if self.compiled.transport.processes > 1:  # all ranks stop if rank 0 got a signal
                self.stop.raise_for(self.compiled.transport.agreed(self.stop.number))
            self._advance(ahead)
            writer.collect()
            self._evaluate_if_due()
            every = self.params.runconfig.checkpoint_steps
            due = self.step == self.last_step or (every > 0 and self.step % every == 0)
            if self._is_asked(Request.SAVE) or due:
                self._save(writer)

    def _is_asked(self, request: Request) -> bool:
        """Whether a callback asks for it. All ranks call it, and find what the one that writes
        does."""
        if not self._has_callbacks:
            return False
        asked = self.compiled.transport.agreed(self.callbacks.requests)
        if request is not Request.STOP:
            self.callbacks.requests &= ~request
        return bool(asked & request)

    def _describe_state(self) -> TrainingState:
        """How far the run is, for callbacks."""
        samples = samples_before_step(self.step + 1, self.data.schedule)
        return TrainingState(
            model_dir=self.model_dir,
            step=self.step,
            last_step=self.last_step,
            samples=samples,
            tokens=samples * self.params.model.positions,
        )

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
        self.state = replace(
            self._describe_state(),
            loss=result.loss,
            learning_rate=rate,
            grad_norm=None if result.skipped else result.grad_norm,
        )
        may = {"save"} if self.validation is None else {"validate", "save"}
        self.callbacks.call("on_train_batch_end", self.state, may=may)

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
        """Evaluate where due or asked for, also after a resume from a checkpoint made by a
        signal."""
        asked = self._is_asked(Request.VALIDATE)
        if self.validation is None or self.step == 0:
            return
        frequency = self.params.runconfig.eval_frequency
        due = self.step == self.last_step or (frequency and self.step % frequency == 0)
        if (asked or due) and not metrics.has_step(self.model_dir / metrics.EVALUATION, self.step):
            self.callbacks.call("on_validate_start", self.state)
            evaluation = self.validation.run(self.step)
            self.callbacks.call("on_validate_end", self.state, evaluation, may={"save"})

    def _save_last(self, writer: CheckpointWriter) -> None:
        """Have a checkpoint of this step on the disk."""
        if self._saved != self.step:
            self._save(writer)
        writer.finish()

    def _save(self, writer: CheckpointWriter) -> None:
        self._saved = self.step
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
            report = functools.partial(self.callbacks.call, "on_after_save_checkpoint", self.state)
            writer.save(self.step, self.compiled.memoryx, state, report)
