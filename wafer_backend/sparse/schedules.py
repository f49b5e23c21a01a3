"""Numbers that change during training, the steps at which masks do, and checks of their keys.

Schedules are pure functions. Steps are optimizer steps, counted from 1; 0 is before training.
`updates` counts mask updates, the one at hand included; 0 is the first mask.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.words import did_you_mean, did_you_mean_or_all
from wafer_backend.errors import BackendConfigError


def check_keys(where: str, given: Mapping[str, Any], kind: Callable[..., Any]) -> None:
    """Raises BackendConfigError for a key that `kind(...)` does not take, or one it misses."""
    fields = inspect.signature(kind).parameters
    for key in given:
        if key not in fields:
            raise BackendConfigError(
                f"{where}: unknown key {key!r}{did_you_mean_or_all(key, fields)}"
            )
    for name, field in fields.items():
        if field.default is inspect.Parameter.empty and name not in given:
            raise BackendConfigError(f"{where}: {name!r} is missing")


UpdateSchedule = Callable[[int], bool]


class HyperParameterSchedule(ABC):
    """A number as a function of the step."""

    def __call__(self, step: int, updates: int = 0) -> float:
        """The value at `step`, after `updates` mask updates."""
        return self._value(step, updates)

    @abstractmethod
    def _value(self, step: int, updates: int) -> float: ...


@dataclass(frozen=True)
class Constant(HyperParameterSchedule):
    """y = value."""

    value: float

    def _value(self, step: int, updates: int) -> float:
        return self.value


@dataclass(frozen=True)
class Linear(HyperParameterSchedule):
    """y = init + slope * step."""

    init: float
    slope: float

    def _value(self, step: int, updates: int) -> float:
        return self.init + self.slope * step


@dataclass(frozen=True)
class Exp(HyperParameterSchedule):
    """y = final + (init - final) * exp(gamma * step); gamma < 0 approaches `final`."""

    init: float
    gamma: float
    final: float = 1.0

    def _value(self, step: int, updates: int) -> float:
        return self.final + (self.init - self.final) * math.exp(self.gamma * step)


@dataclass(frozen=True)
class Power(HyperParameterSchedule):
    """y = init * beta ** step."""

    init: float
    beta: float

    def _value(self, step: int, updates: int) -> float:
        return float(self.init * self.beta**step)


@dataclass(frozen=True)
class Cosine(HyperParameterSchedule):
    """From `init` to `minimum` in `half_period` steps and back, along a cosine."""

    init: float
    half_period: float
    minimum: float = 0.0

    def _value(self, step: int, updates: int) -> float:
        """The value at `step`."""
        middle = (self.init + self.minimum) / 2
        return middle + (self.init - middle) * math.cos(step * math.pi / self.half_period)


@dataclass(frozen=True)
class Cycling(HyperParameterSchedule):
    """The next of `values` at every mask update, from the start again after the last."""

    values: Sequence[float]

    def _value(self, step: int, updates: int) -> float:
        return self.values[updates % len(self.values)]


@dataclass(frozen=True)
class Lambda(HyperParameterSchedule):
    """y = fn(step)."""

    fn: Callable[[int], float]

    def _value(self, step: int, updates: int) -> float:
        return float(self.fn(step))


_TYPES: dict[str, type[HyperParameterSchedule]] = {
    "constant": Constant,
    "linear": Linear,
    "exp": Exp,
    "power": Power,
    "cosine": Cosine,
    "cycling": Cycling,
}


def make_schedule(name: str, value: Any) -> HyperParameterSchedule:
    """A schedule of what a user gave as `name`.

    A number (constant), a list (cycling), a callable of the step, a schedule, or a dict
    {"type": "cosine", "init": 0.3, "half_period": 1000}.
    """
    if isinstance(value, HyperParameterSchedule):
        return value
    if isinstance(value, int | float):
        return Constant(float(value))
    if isinstance(value, list | tuple) and value:
        return Cycling(tuple(float(v) for v in value))
    if callable(value):
        return Lambda(value)
    if not isinstance(value, Mapping):
        raise BackendConfigError(f"{name} is {value!r}: give a number, a list or a schedule")
    arguments = dict(value)
    kind = str(arguments.pop("type", "no type")).lower()
    if kind not in _TYPES:
        raise BackendConfigError(
            f"{name}: the type of a schedule is one of {', '.join(_TYPES)}; got "
            f"{kind!r}{did_you_mean(kind, _TYPES)}"
        )
    check_keys(f"{name}, type {kind}", arguments, _TYPES[kind])
    return _TYPES[kind](**arguments)


@dataclass(frozen=True)
class EverySteps:
    """Updates at start + freq * i before `stop`, and not before step 1."""

    freq: int = 1
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.freq < 1 or self.start < 0:
            raise BackendConfigError(
                f"update: freq is {self.freq} and start {self.start}; give a freq of at least 1 "
                "and a start of at least 0"
            )

    def __call__(self, step: int) -> bool:
        """Whether masks change after `step`."""
        running = step >= max(self.start, 1) and (self.stop is None or step < self.stop)
        return running and (step - self.start) % self.freq == 0


@dataclass(frozen=True)
class AtSteps:
    """Updates at the steps that are listed."""

    steps: Sequence[int]

    def __call__(self, step: int) -> bool:
        """Whether masks change after `step`."""
        return step in self.steps


def make_update_schedule(value: Any) -> UpdateSchedule:
    """The steps of mask updates of what a user gave as `update`.

    None (every step), {"freq", "start", "stop"} with `stop` excluded, {"steps": [...]}, or a
    callable of the step.
    """
    if value is None:
        return EverySteps()
    if callable(value):
        update: UpdateSchedule = value
        return update
    if not isinstance(value, Mapping):
        raise BackendConfigError(f"update is {value!r}: give {{freq, start, stop}} or {{steps}}")
    kind = AtSteps if "steps" in value else EverySteps
    check_keys("update", value, kind)
    return kind(**value)
