"""Number formats and the dynamic loss scale: what travels in half precision, and how it is scaled.

Masters, gradient sums and optimizer state are fp32. In "bfloat16" and "float16" a weight of two or
more dimensions is cast in MemoryX before it travels; a vector (bias, norm) stays fp32. Leaves then
run under autocast without its weight cache, which finds matrices in half already and so makes no
copy of them. Gradients arrive in the format of the copy and are fp32 before anything is added.
"cbfloat16" is emulated in fp32: the same weights travel with cbfloat16 values, and leaves run under
`CbfloatCompute`.

A loss scale is a power of two, so multiplying by it and dividing it out again changes no bit of a
gradient that neither overflows nor becomes subnormal. The engine runs the backward pass of a leaf
at forward time, before a user can multiply the loss; therefore it asks `current_loss_scale()`.

>>> scale = LossScale(init_scale=1024.0, steps_per_increase=2)
>>> for finite in (True, True, False):
...     scale.update(finite)
...     print(scale.scale, scale.skipped)
1024.0 0
2048.0 0
1024.0 1
"""

import contextlib
import math
import weakref
from collections.abc import Mapping
from typing import Literal

import torch

from wafer_backend.cluster.cbfloat16 import round_to_cbfloat16
from wafer_backend.errors import BackendConfigError

Precision = Literal["float32", "bfloat16", "float16", "cbfloat16"]

SCALED: frozenset[Precision] = frozenset(("float16", "cbfloat16"))
"""Formats whose gradients need a loss scale (docs.cerebras.net, "Dynamic loss scaling")."""

_HALF: dict[Precision, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_HALVES = frozenset(_HALF.values())


def streamed_dtype(parameter: torch.Tensor, precision: Precision) -> torch.dtype:
    """The format a weight travels in.

    >>> streamed_dtype(torch.zeros(2, 2), "bfloat16"), streamed_dtype(torch.zeros(2), "bfloat16")
    (torch.bfloat16, torch.float32)
    """
    casts = precision in _HALF and _is_matrix(parameter)
    return _HALF[precision] if casts else parameter.dtype


def travelling_copy(parameter: torch.Tensor, precision: Precision) -> torch.Tensor:
    """A copy of a weight as it travels: in `streamed_dtype`, and with values of the precision."""
    master = parameter.detach()
    if travels_changed(master, precision):
        return cast_to(master, precision)
    return master.to(master.dtype, copy=True)


def cast_to(values: torch.Tensor, precision: Precision) -> torch.Tensor:
    """float32 values in a half precision; cbfloat16 is stored in float32."""
    if precision == "cbfloat16":
        return round_to_cbfloat16(values)
    return values.to(_HALF[precision])


def travels_changed(parameter: torch.Tensor, precision: Precision) -> bool:
    """Whether a weight travels in another format, or with other values, than it is kept in."""
    return precision != "float32" and _is_matrix(parameter)


def _is_matrix(parameter: torch.Tensor) -> bool:
    return parameter.ndim >= 2 and parameter.dtype == torch.float32


def use_precision(
    precision: Precision, device: torch.device
) -> contextlib.AbstractContextManager[None]:
    """What forward runs under; an autocast around the call does not reach inside."""
    dtype = _HALF.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)


def make_loss_scale(precision: Precision) -> "LossScale | None":
    """The dynamic loss scale a format needs; None for one that needs none."""
    if precision not in SCALED:
        return None
    return LossScale(max_loss_scale=FLOAT16_MAX if precision == "float16" else WIDE_MAX)


def widen(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as it is added up: half precision becomes fp32, anything else stays."""
    return gradient.float() if gradient.dtype in _HALVES else gradient


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

    `wanted`: the scale that the last update would have chosen without limits. Below `scale` it
    tells that a step overflowed at the smallest one.

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
        self.scale = self.wanted = self._within_limits("init_scale", init_scale)
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
        self.wanted = self.scale
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
        self.scale = self.wanted = self._within_limits("scale", state["scale"])
        for name in _COUNTERS:
            setattr(self, name, int(state[name]))

    def _change(self, factor: float) -> None:
        self.finite_run = self.steps_at_scale = self.overflows_at_scale = 0
        if self.dynamic:
            self.wanted = self.scale * factor
            self.scale = min(max(self.wanted, self.min_loss_scale), self.max_loss_scale)

    def _within_limits(self, name: str, value: float) -> float:
        scale = _power_of_two(name, value)
        if not self.min_loss_scale <= scale <= self.max_loss_scale:
            raise BackendConfigError(
                f"{name} is {scale}, outside [min_loss_scale, max_loss_scale] = "
                f"[{self.min_loss_scale}, {self.max_loss_scale}]"
            )
        return scale


def set_current_loss_scale(scale: LossScale | None) -> None:
    """Make `scale` the one that leaves are run with; None for no scaling.

    It is remembered weakly: a scale that its owner has dropped scales nothing any more.
    """
    global _current
    _current = None if scale is None else weakref.ref(scale)


def current_loss_scale() -> float:
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
