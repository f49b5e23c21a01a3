"""The dynamic loss scale: a pure state machine, and which one is current.

A scale is a power of two, so multiplying by it and dividing it out again changes no bit of a
gradient that neither overflows nor becomes subnormal. The engine runs the backward pass of a leaf
at forward time, before a user can multiply the loss; therefore it asks `current()` for the scale.

>>> scale = LossScale(init_scale=1024.0, steps_per_increase=2)
>>> for finite in (True, True, False):
...     scale.update(finite)
...     print(scale.scale, scale.skipped)
1024.0 0
2048.0 0
1024.0 1
"""

import math
import weakref
from collections.abc import Mapping

from wafer_backend.errors import BackendConfigError

FLOAT16_MAX = 2.0**15
WIDE_MAX = 2.0**31
SMALLEST = 2.0**-14

_COUNTERS = ("finite_run", "steps_at_scale", "overflows_at_scale", "skipped")
_current: weakref.ref["LossScale"] | None = None


class LossScale:
    """Halves on overflow, doubles after `steps_per_increase` finite steps in a row.

    `init_scale`, `min_loss_scale`, `max_loss_scale`: powers of two. `overflow_tolerance`: the
    fraction in [0, 1) of the steps since the last change that may overflow before the scale is
    halved; 0 halves at once. A scale that is not `dynamic` never changes, but counts. The counters:

    - `finite_run`: finite steps in a row, since the last overflow or change;
    - `steps_at_scale`, `overflows_at_scale`: steps and overflows since the last change;
    - `skipped`: all steps that overflowed, whose update must not be applied.

    Raises BackendConfigError for a scale that is no power of two or outside its limits.
    """

    def __init__(
        self,
        init_scale: float = FLOAT16_MAX,
        *,
        steps_per_increase: int = 2000,
        min_loss_scale: float = SMALLEST,
        max_loss_scale: float = FLOAT16_MAX,
        overflow_tolerance: float = 0.0,
        dynamic: bool = True,
    ) -> None:
        self.min_loss_scale = _power_of_two("min_loss_scale", min_loss_scale)
        self.max_loss_scale = _power_of_two("max_loss_scale", max_loss_scale)
        self.scale = self._within_limits("init_scale", init_scale)
        self.steps_per_increase = _at_least_one("steps_per_increase", steps_per_increase)
        if not 0 <= overflow_tolerance < 1:
            raise BackendConfigError(
                f"overflow_tolerance is {overflow_tolerance}; give a fraction of steps in [0, 1)"
            )
        self.overflow_tolerance = overflow_tolerance
        self.dynamic = dynamic
        self.finite_run = 0
        self.steps_at_scale = 0
        self.overflows_at_scale = 0
        self.skipped = 0

    def update(self, finite: bool) -> None:
        """Count one step whose gradients were all finite, or not, and adjust the scale."""
        self.steps_at_scale += 1
        if finite:
            self.finite_run += 1
            if self.finite_run >= self.steps_per_increase:
                self._change(2.0)
            return
        self.skipped += 1
        self.overflows_at_scale += 1
        self.finite_run = 0
        if self.overflows_at_scale > self.overflow_tolerance * self.steps_at_scale:
            self._change(0.5)

    def state_dict(self) -> dict[str, float | int]:
        """The scale and its counters, as JSON numbers."""
        return {"scale": self.scale, **{name: getattr(self, name) for name in _COUNTERS}}

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        """Continue from `state_dict()`; raises BackendConfigError when it is not one."""
        expected = {"scale", *_COUNTERS}
        if state.keys() != expected:
            raise BackendConfigError(
                f"the state of a loss scale has the keys {sorted(state)}; expected "
                f"{sorted(expected)}"
            )
        self.scale = self._within_limits("scale", state["scale"])
        for name in _COUNTERS:
            setattr(self, name, int(state[name]))

    def _change(self, factor: float) -> None:
        self.finite_run = self.steps_at_scale = self.overflows_at_scale = 0
        if self.dynamic:
            self.scale = min(max(self.scale * factor, self.min_loss_scale), self.max_loss_scale)

    def _within_limits(self, name: str, value: float) -> float:
        scale = _power_of_two(name, value)
        if not self.min_loss_scale <= scale <= self.max_loss_scale:
            raise BackendConfigError(
                f"{name} is {scale}, outside [min_loss_scale, max_loss_scale] = "
                f"[{self.min_loss_scale}, {self.max_loss_scale}]"
            )
        return scale


def set_current(scale: LossScale | None) -> None:
    """Make `scale` the one that leaves are run with; None for no scaling.

    It is remembered weakly: a scale that its owner has dropped scales nothing any more.
    """
    global _current
    _current = None if scale is None else weakref.ref(scale)


def current() -> float:
    """The current loss scale; 1.0 when there is none."""
    scale = _current() if _current is not None else None
    return 1.0 if scale is None else scale.scale


def _power_of_two(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise BackendConfigError(f"{name} is {value}; give a positive power of two")
    mantissa, exponent = math.frexp(value)
    if mantissa != 0.5:
        raise BackendConfigError(
            f"{name} is {value}, which is no power of two, so it cannot be divided out exactly; "
            f"the next ones are {math.ldexp(0.5, exponent)} and {math.ldexp(1.0, exponent)}"
        )
    return float(value)


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise BackendConfigError(f"{name} is {value}; give a number of steps of at least 1")
    return value
