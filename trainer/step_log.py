"""What a finished step leaves behind: a line of metrics.jsonl, one on the console, an event."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.order import Schedule, samples_before_step
from trainer import metrics, pulse
from trainer.config import Params
from trainer.progress import Rate, Say
from trainer.stability import StepFindings
from trainer.tensorboard import Events
from wafer_backend.compiled import Target
from wafer_backend.coordinator import StepResult


@dataclass(frozen=True)
class StepTime:
    """`seconds`: the whole step; `stalled`: the part of it spent waiting for its batch."""

    samples: int
    seconds: float
    stalled: float


@dataclass
class StepLog:
    """Tells of the steps of one run.

    `path`: metrics.jsonl; None for a rank that does not write. `events`: None where TensorBoard is
    not fed. `sparsity`: what measures the share of pruned weights, None for a dense run. `rate`: of
    all steps so far; `stalled`: seconds they waited for their batches.
    """

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
        """Tell of the step that was `watched`; `pause` is the step after which an evaluation is
        next, or the end."""
        step = watched.step
        self.rate.add(time.samples, time.seconds)
        self.stalled += time.stalled
        shown = step == 1 or step % self.params.runconfig.log_steps == 0
        pruned = self.sparsity() if shown and self.sparsity is not None else {}
        if self.path is not None:
            line = self._line(result, learning_rate, time, watched)
            metrics.append(self.path, line | ({"sparsity": pruned} if pruned else {}))
        if shown or pulse.is_due(time.seconds):
            self.say(self._shown(step, result, time, pause))
        if shown:
            self._summarize(step, result, learning_rate, time)
        if self.events is not None and pruned:
            self.events.add(step, {f"sparsity/{name}": share for name, share in pruned.items()})
        if self.events is not None and watched.scalars:
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
        if self.params.model.precision == "float16":
            line |= {"loss_scale": result.loss_scale, "skipped": result.skipped}
        return line

    def _shown(self, step: int, result: StepResult, time: StepTime, pause: int) -> str:
        """Model Zoo's line. TimeRemaining is a lower bound, as there: evaluations and checkpoints
        come on top."""
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

    def _summarize(
        self, step: int, result: StepResult, learning_rate: float, time: StepTime
    ) -> None:
        if self.events is None:
            return
        values = {
            "loss": result.loss,
            "grad_norm": None if result.skipped else result.grad_norm,
            "learning_rate": learning_rate,
            "local_samples_per_sec": time.samples / time.seconds,
            "avg_samples_per_sec": self.rate.overall,
            "stall_share": time.stalled / time.seconds,
        }
        if self.params.model.precision == "float16":
            values["loss_scale"] = result.loss_scale
        self.events.add(step, values)
