"""Callbacks: what a run reports to the script that called `train`, and what that may ask for.

Hooks are called between steps, where `train` was called. They get frozen records and no part of the
run itself, so its bits are the same with callbacks, without them and after a resume.
"""

import enum
import inspect
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import did_you_mean
from trainer.errors import TrainingError
from trainer.evaluation.loss import Evaluation


class StopTraining(Exception):
    """Raised by a hook, it ends the run after the step that is done, with a checkpoint; its text is
    the reason in run.json and in `TrainingResult.stopped`."""


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Where a run is, as it is reported to callbacks.

    model_dir: its directory.
    step: the last step that is done, counted from 1; 0 before the first.
    last_step: the step that the run ends with.
    samples: sequences that all steps so far have read.
    tokens: positions of these sequences, padding too.
    loss: of `step`, in nats per counted label; None before the first step of this call.
    learning_rate: of `step`; None before the first step of this call.
    grad_norm: of `step`, the global 2-norm before clipping; None before the first step of this
        call, and for a step that was skipped because gradients overflowed.
    """

    model_dir: Path
    step: int
    last_step: int
    samples: int
    tokens: int
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None


class Callback:
    """Base of what `train(callbacks=[...])` reports to: a subclass overrides the hooks it needs.

    All are given `state`, a `TrainingState`. `on_train_batch_end` may return a set of what is to be
    done after the step, of `"validate"` and `"save"` (a checkpoint); `on_validate_end` may return
    `{"save"}`; the others return None. Any hook may raise `StopTraining`. Another exception ends
    the run with TrainingError; the same call resumes.
    """

    def on_train_start(self, state: TrainingState) -> None:
        """Called before the first step; `state.step` is the step that is resumed from."""

    def on_train_batch_end(self, state: TrainingState) -> Set[str] | None:
        """Called after every step."""

    def on_validate_start(self, state: TrainingState) -> None:
        """Called before an evaluation."""

    def on_validate_end(self, state: TrainingState, evaluation: Evaluation) -> Set[str] | None:
        """Called after an evaluation; `evaluation` is what it measured, an `Evaluation`."""

    def on_after_save_checkpoint(self, state: TrainingState, ckpt_path: Path) -> None:
        """Called when a checkpoint is whole, with the `state` of its step and its directory,
        `ckpt_path`.

        It is written while training goes on, so later steps may have been reported before.
        """

    def on_train_end(self, state: TrainingState) -> None:
        """Called once the run is through or was stopped by a callback, with export and report."""

    def on_train_exception(self, state: TrainingState, exception: BaseException) -> None:
        """Called before `train` raises `exception`, which a hook cannot change: an error, that of a
        callback too, or KeyboardInterrupt or SystemExit for a signal."""


_HOOKS = [name for name in vars(Callback) if name.startswith("on_")]


def check_callbacks(given: Sequence[Callback]) -> tuple[Callback, ...]:
    """The callbacks as they are. Raises ConfigError for what is none, or a hook that is none."""
    if not isinstance(given, list | tuple):
        raise ConfigError(
            f"callbacks: expected a list of instances of trainer.Callback, not {_kind(given)}"
        )
    for index, callback in enumerate(given):
        if not isinstance(callback, Callback):
            named = inspect.isclass(callback) and issubclass(callback, Callback)
            mend = f"give an instance, such as {callback.__name__}()" if named else ""
            raise ConfigError(
                f"callbacks[{index}]: expected an instance of a subclass of trainer.Callback, not "
                f"{_kind(callback)}{mend and '; '}{mend}"
            )
        for name in dir(callback):
            if name.startswith("on_") and name not in _HOOKS:
                hint = did_you_mean(name, _HOOKS) or f"; expected one of {', '.join(_HOOKS)}"
                raise ConfigError(
                    f"callbacks[{index}]: {type(callback).__name__}.{name} is no hook{hint}"
                )
    return tuple(given)


def _kind(value: object) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return f"{type(value).__name__} {escape_text(repr(value), 60)}"


class Request(enum.IntFlag):
    """What callbacks ask the loop for, as a number that ranks can agree on."""

    VALIDATE = enum.auto()
    SAVE = enum.auto()
    STOP = enum.auto()


@dataclass(frozen=True)
class Stop:
    """Who stopped a run before its last step, as `Class.hook`, and why."""

    callback: str
    reason: str


class CallbackList:
    """Calls the callbacks of a run, in their order. `requests`: what they have asked for, until the
    loop takes it back; `stop`: the first that asked to stop."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = callbacks
        self.requests = Request(0)
        self.stop: Stop | None = None

    def __len__(self) -> int:
        return len(self._callbacks)

    def call(
        self, hook: str, state: TrainingState, *more: object, may: Set[str] = frozenset()
    ) -> None:
        """Call a hook of all; `may`: what it can ask for. Raises TrainingError for one that fails
        or asks for something else."""
        for callback in self._callbacks:
            self._call(callback, hook, state, *more, may=may)

    def call_on_exception(
        self, state: TrainingState, exception: BaseException, say: Callable[[str], None]
    ) -> None:
        """Call `on_train_exception` of all. What one raises is said: `exception` is under way."""
        for callback in self._callbacks:
            try:
                self._call(callback, "on_train_exception", state, exception)
            except TrainingError as failed:
                say(str(failed))

    def _call(
        self,
        callback: Callback,
        hook: str,
        state: TrainingState,
        *more: object,
        may: Set[str] = frozenset(),
    ) -> None:
        name = f"{type(callback).__name__}.{hook}"
        try:
            answer: Any = getattr(callback, hook)(state, *more)
        except StopTraining as stop:
            self.requests |= Request.STOP
            self.stop = self.stop or Stop(name, str(stop))
            return
        except Exception as error:
            raise TrainingError(
                f"callback {name} failed at step {state.step}: {type(error).__name__}: "
                f"{escape_text(str(error))}; checkpoints are kept, and the same call resumes"
            ) from error
        if answer is None:
            return
        if not isinstance(answer, Set) or not answer <= may:
            expected = f"None{' or a set of ' * bool(may)}{', '.join(map(repr, sorted(may)))}"
            raise TrainingError(
                f"callback {name} returned {escape_text(repr(answer), 60)} at step {state.step}; "
                f"expected {expected} (after a step of a run that evaluates, 'validate' and 'save')"
            )
        for action in answer:
            self.requests |= Request[action.upper()]
