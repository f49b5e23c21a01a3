"""The training loop: step, metrics, evaluation, checkpoint; and what happens when it is stopped."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.order import batch_size_at, samples_before_step
from trainer import checkpoint, metrics
from trainer.config import Params
from trainer.data import TrainingData
from trainer.evaluate import Evaluator
from trainer.schedule import learning_rate
from trainer.stop import Stopped, StopRequest
from wafer_backend.compiled import CompiledModule
from wafer_backend.coordinator import StepResult
from wafer_backend.step_profile import StepProfile

Say = Callable[[str], None]


@dataclass
class Training:
    """Everything one run needs; `step` is the last finished step.

    `validation`: evaluates while training, None for `--mode train`. `profile`: of some steps.
    `writes`: whether this process writes files; of several ranks one does.
    """

    params: Params
    model_dir: Path
    compiled: CompiledModule
    data: TrainingData
    record: dict[str, Any]
    stop: StopRequest
    say: Say
    validation: Evaluator | None = None
    profile: StepProfile | None = None
    writes: bool = True
    step: int = 0
    _rate: "Rate" = field(default_factory=lambda: Rate())

    def run(self, last_step: int) -> None:
        """Train to `last_step`; a signal checkpoints the last whole step and raises Stopped."""
        try:
            if self.step == 0 and self.params.runconfig.save_initial_checkpoint:
                self._save()
            self._evaluate_if_due(last_step)
            while self.step < last_step:
                self._stop_together()
                self._advance()
                self._evaluate_if_due(last_step)
                if self._checkpoint_due(last_step):
                    self._save()
        except Stopped:
            if checkpoint.newest(self.model_dir) != checkpoint.directory(self.model_dir, self.step):
                self._save()
            raise

    def _advance(self) -> None:
        step = self.step + 1
        rate = learning_rate(step, self.params.optimizer.learning_rate)
        started = time.monotonic()
        with self._profiled(step):
            result = self.compiled.train_step(
                self.data.batch(step),
                step=step,
                learning_rate=rate,
                max_gradient_norm=self.params.optimizer.max_gradient_norm,
                between_leaves=self._between_leaves,
            )
        seconds = time.monotonic() - started
        self.step = step
        self._log(result, rate, batch_size_at(step, self.data.schedule), seconds)

    def _between_leaves(self) -> None:
        """One process stops between leaves; ranks only between steps."""
        if self.compiled.transport.processes == 1:
            self.stop.check()

    def _stop_together(self) -> None:
        """Raise Stopped on every rank if rank 0 got a signal."""
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

    def _log(self, result: StepResult, rate: float, samples: int, seconds: float) -> None:
        self._rate.add(samples, seconds)
        line = {
            "step": self.step,
            "loss": result.loss,
            "loss_hex": result.loss.hex(),
            "grad_norm": None if result.skipped else result.grad_norm,
            "learning_rate": rate,
            "samples_per_second": samples / seconds,
            "num_csx": self.compiled.config.num_csx,
            "leaves_per_csx": list(result.leaves_per_csx),
        }
        if self.compiled.loss_scale is not None:
            line |= {"loss_scale": result.loss_scale, "skipped": result.skipped}
        if self.writes:
            metrics.append(self.model_dir / metrics.TRAINING, line)
        if self.step == 1 or self.step % self.params.runconfig.log_steps == 0:
            self.say(
                f"| Train Device={self.compiled.config.target}, Step={self.step}, "
                f"Loss={result.loss:.5f}, Rate={samples / seconds:.2f} samples/sec, "
                f"GlobalRate={self._rate.overall:.2f} samples/sec"
            )

    def _evaluate_if_due(self, last_step: int) -> None:
        """Evaluate where due, also after a resume from a checkpoint made by a signal."""
        if self.validation is None or self.step == 0:
            return
        frequency = self.params.runconfig.eval_frequency
        due = self.step == last_step or (frequency is not None and self.step % frequency == 0)
        if due and metrics.last_step(self.model_dir / metrics.EVALUATION) != self.step:
            self.validation.run(self.step)

    def _checkpoint_due(self, last_step: int) -> bool:
        every = self.params.runconfig.checkpoint_steps
        return self.step == last_step or (every > 0 and self.step % every == 0)

    def _save(self) -> None:
        self.say(f"Saving checkpoint at step {self.step}")
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
        self.compiled.bring_home()
        if not self.writes:
            return
        path = checkpoint.save(self.model_dir, self.step, self.compiled.memoryx, state)
        checkpoint.prune(self.model_dir, self.params.runconfig.max_checkpoints)
        self.say(f"Saved checkpoint {path}")


@dataclass
class Rate:
    """Samples per second over this process's steps."""

    samples: int = 0
    seconds: float = 0.0

    def add(self, samples: int, seconds: float) -> None:
        """Count one step."""
        self.samples += samples
        self.seconds += seconds

    @property
    def overall(self) -> float:
        """Samples per second so far."""
        return self.samples / self.seconds if self.seconds else 0.0
