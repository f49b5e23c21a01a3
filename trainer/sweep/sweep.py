"""The story of a sweep: trials as ordinary runs -> results and page -> the best one.

Trials are child processes: ordinary runs by the ordinary command, some at a time. A crash of one
ends with its process; a signal is passed on to all that run, which write a checkpoint each.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline.core import storage
from pipeline.core.errors import (
    ConfigError,
    InputError,
    IntegrityError,
    PrepError,
    ResourceError,
    escape_text,
)
from pipeline.core.journal import hold_lock
from pipeline.core.words import pluralise
from trainer.data import prepare
from trainer.errors import LostRankError, StopRequest, StopSignal, TrainingError, catch_signals
from trainer.report.facts import read_curves
from trainer.runs import checkpoint, metrics
from trainer.runs.console import Say
from trainer.sweep import results
from trainer.sweep.config import Trial
from trainer.sweep.plan import SweepPlan, as_yaml, check_same_sweep
from trainer.sweep.results import TrialResult

_PAUSE = 0.05
_LAST_BYTES = 4096

Command = Callable[[Trial], Sequence[str]]
Ended = Callable[[Trial, int, str], None]


@dataclass(frozen=True)
class _RunningTrial:
    """A trial under way, and what it writes to standard error."""

    trial: Trial
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def last_words(self) -> str:
        size = self.errors.seek(0, 2)
        self.errors.seek(max(0, size - _LAST_BYTES))
        lines = self.errors.read().decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")


def run_all(
    trials: Iterable[Trial], jobs: int, command: Command, ended: Ended, stop: StopRequest
) -> None:
    """Run all trials in order, `jobs` at a time. `ended` (trial, exit code, last line of
    standard error) may raise to end it all. Raises StopSignal after a signal. Trials under way
    are then stopped and waited for."""
    waiting = iter(trials)
    running: list[_RunningTrial] = []
    try:
        while True:
            stop.check()
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                with each.errors:
                    ended(each.trial, each.process.returncode, each.last_words())
            while len(running) < jobs and (trial := next(waiting, None)) is not None:
                stderr = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
                process = subprocess.Popen(
                    [sys.executable, "-m", "trainer.cli", *command(trial)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                )
                running.append(_RunningTrial(trial, process, stderr))
            if not running:
                return
            time.sleep(_PAUSE)
    finally:
        for each in running:
            each.process.terminate()
        for each in running:
            each.process.wait()
            each.errors.close()


TRIALS = "trials"
_STEP_FAILED = TrainingError.exit_code
_ERRORS: dict[int, type[PrepError]] = {
    kind.exit_code: kind
    for kind in (ConfigError, InputError, IntegrityError, ResourceError, LostRankError)
}


@dataclass
class Sweep:
    """A sweep under way. `data`: the prep run or shards of all trials, None for those of the params
    file; `by_trial`: results by trial."""

    plan: SweepPlan
    out: Path
    data: Path | None
    say: Say
    by_trial: dict[int, TrialResult]

    def command(self, trial: Trial) -> Sequence[str]:
        """The arguments of `train` for a trial, whose params file is written."""
        variant = self.plan.variants[trial.index]
        params = self.out / TRIALS / f"{trial.name}.yaml"
        head = f"Trial {trial.index} of {self.plan.path.name}: {format_values(trial.values)}"
        storage.publish(params, as_yaml(variant.sections, head))
        words = [self.plan.config.target, "--params", str(params), "--mode", "train_and_eval"]
        words += ["--model_dir", str(self.model_dir(trial)), "--max_steps", str(self.plan.steps)]
        words += ["--logging", "ERROR"]
        return words if self.data is None else [*words, "--data", str(self.data)]

    def model_dir(self, trial: Trial) -> Path:
        """Where a trial runs."""
        return self.out / TRIALS / trial.name

    def ended(self, trial: Trial, code: int, last_words: str) -> None:
        """Note how a trial ended. Raises what ended it, if that was no step that failed."""
        failed = code == _STEP_FAILED and last_words.startswith("error: ")
        if code and not failed:
            raise _trouble(trial, code, last_words)
        result = self._result(trial, last_words.removeprefix("error: ") if failed else "")
        self.by_trial[trial.index] = result
        results.write_results(self.out, self.by_trial)
        results.write_page(self.out, self.plan, self.by_trial)
        best = " (best so far)" if results.find_best(self.by_trial) is result else ""
        outcome = f"loss {result.loss:.4f}{best}" if result.loss is not None else "diverged"
        self.say(
            f"Trial {result.trial} ({len(self.by_trial)} of {len(self.plan.variants)}): {outcome}  "
            f"{format_values(result.values)}"
        )
        self.drop_checkpoints()

    def _result(self, trial: Trial, failure: str) -> TrialResult:
        params, where = self.plan.variants[trial.index].params, self.model_dir(trial)
        curves = read_curves(
            where / metrics.TRAINING,
            where / metrics.EVALUATION,
            params.train_input.schedule,
            params.model.max_position_embeddings,
        )
        step, loss, reason = curves.last_step, None, escape_text(failure)
        if not failure:
            step = self.plan.steps
            loss = dict(curves.validation.get("loss", ())).get(float(step))
            reason = "" if loss is not None else "its validation loss is not finite"
        return TrialResult(
            trial=trial.index,
            values=trial.values,
            state="diverged" if loss is None else "done",
            step=step,
            loss=loss,
            reason=reason,
        )

    def drop_checkpoints(self) -> None:
        """Delete the checkpoints of all trials that have ended but the best."""
        if self.plan.config.keep_checkpoints == "all":
            return
        leader = results.find_best(self.by_trial)
        for index in self.by_trial:
            model_dir = self.model_dir(self.plan.variants[index].trial)
            if leader is not None and leader.trial == index:
                continue
            for path in checkpoint.list_committed(model_dir):
                storage.remove(path / "manifest.json")
            if (model_dir / "checkpoints").is_dir():
                storage.remove_tree(model_dir / "checkpoints")


def run_sweep(plan: SweepPlan, out: Path, jobs: int, say: Say) -> int:
    """Run the trials that have not ended, `jobs` at a time; returns the exit code. Raises
    ConfigError when `out` holds another sweep, and what ended a trial other than a failed step,
    which counts as diverged."""
    with hold_lock(out), catch_signals() as stop:
        check_same_sweep(out, plan)
        ended = {k: r for k, r in results.read_results(out).items() if k < len(plan.variants)}
        waiting = [v.trial for v in plan.variants if v.trial.index not in ended]
        data = prepare.data_directories(plan.config.data).ready if waiting else None
        sweep = Sweep(plan, out, data, say, ended)
        sweep.drop_checkpoints()
        if ended:
            say(f"Already finished: {len(ended)} of {pluralise(len(plan.variants), 'trial')}")
        try:
            run_all(waiting, jobs, sweep.command, sweep.ended, stop)
        except StopSignal as stopped:
            say(f"Stopped by {stopped}; run the same command to resume")
            return stopped.exit_code
        results.write_page(out, plan, ended)
    return 0


def format_values(values: Mapping[str, object]) -> str:
    """Values for a line.

    >>> format_values({"learning_rate": 0.006, "model.nonlinearity": "relu"})
    'learning_rate 0.006  model.nonlinearity relu'
    """
    return "  ".join(f"{name} {escape_text(str(value), 40)}" for name, value in values.items())


def _trouble(trial: Trial, code: int, last_words: str) -> PrepError | StopSignal:
    said = escape_text(last_words.removeprefix("error: "), 1000) or "no message was printed"
    if code in (130, 143):
        return StopSignal(code - 128)
    if code < 0:
        return ResourceError(
            f"trial {trial.index} was killed by signal {-code}, possibly because memory ran out; "
            "run the same command with fewer --jobs to resume"
        )
    return _ERRORS.get(code, PrepError)(f"trial {trial.index}: {said}")
