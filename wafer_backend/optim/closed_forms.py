"""Schedules as closed forms: each maps a step (0-based int) to a value (float64) and does no more.

The step alone decides, so a schedule resumes exactly at any step. Argument names are those of the
cstorch schedulers that adjust any value (`initial_val`, `end_val`, ...); `lr_scheduler` and
`weight_decay_scheduler` spell them for what they adjust. t below is the step. A schedule of
`total_iters` = 0 is at its end at once.

A form of the learning rate is a scheduler of a params file too: its arguments after `step` are the
settings, so each has a type; limits and a description are a pydantic `Field`. Arguments of type
`Value` are learning rates. A form with `total_iters` can be followed by another scheduler.
"""

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from wafer_backend.errors import BackendConfigError

SCHEDULED = "a value that is scheduled"
Value = Annotated[float, Field(ge=0), SCHEDULED]
"""A learning rate, or a weight decay: what the schedule is of."""
Length = Annotated[int, Field(ge=1, description="length in steps")]
Steps = tuple[Annotated[int, Field(ge=0)], ...]


def form_settings(form: Callable[..., float]) -> dict[str, inspect.Parameter]:
    """The arguments of a form after `step`, by name.

    Raises BackendConfigError when one has no type, or none is a `Value`.
    """
    name = getattr(form, "__name__", repr(form))
    settings = dict(list(inspect.signature(form, eval_str=True).parameters.items())[1:])
    for argument, parameter in settings.items():
        if parameter.annotation is inspect.Parameter.empty:
            raise BackendConfigError(f"{name}: argument {argument} has no type")
    if not any(is_scheduled(parameter.annotation) for parameter in settings.values()):
        raise BackendConfigError(f"{name} has no argument of type Value, which a learning rate is")
    return settings


def is_scheduled(annotation: Any) -> bool:
    """Whether a type holds a `Value`."""
    return SCHEDULED in getattr(annotation, "__metadata__", ()) or any(
        is_scheduled(inner) for inner in get_args(annotation)
    )


def constant(step: int, val: Value, total_iters: Length | None = None) -> float:
    """`val`; `total_iters` only says when a schedule that follows begins."""
    return val


def linear(
    step: int,
    initial_val: Value,
    end_val: Value,
    total_iters: Length,
    cycle: Annotated[bool, Field(description="start again with a longer line at the end")] = False,
) -> float:
    """initial + (end - initial) * s, s = min(t / total_iters, 1).

    With `cycle`, s = t / (total_iters * max(1, ceil(t / total_iters))).

    >>> [linear(step, 0.0, 1.0, 4) for step in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    return _line(initial_val, end_val, _progress(step, total_iters, cycle))


def polynomial(
    step: int,
    initial_val: Value,
    end_val: Value,
    total_iters: Length,
    power: Annotated[
        float, Field(gt=0, description="exponent of the share of steps that is left")
    ] = 1.0,
    cycle: Annotated[bool, Field(description="start again with a longer decay at the end")] = False,
) -> float:
    """end + (initial - end) * (1 - s) ** power, s as in `linear`.

    >>> polynomial(1, 1.0, 0.0, 2, power=2.0)
    0.25
    """
    if power == 1.0:
        return linear(step, initial_val, end_val, total_iters, cycle)
    remaining = 1.0 - _progress(step, total_iters, cycle)
    return end_val + (initial_val - end_val) * float(remaining**power)


def exponential(
    step: int,
    initial_val: Value,
    total_iters: Annotated[int, Field(ge=1, description="steps per decay, and length in steps")],
    decay_rate: Annotated[float, Field(gt=0, description="factor per decay")],
    staircase: Annotated[
        bool, Field(description="change only at multiples of total_iters")
    ] = False,
) -> float:
    """initial * decay_rate ** (t / total_iters); the exponent is rounded down with `staircase`.

    >>> exponential(10, 1.0, 5, 0.5)
    0.25
    """
    exponent = step / _at_least("total_iters", total_iters, 1)
    return initial_val * float(decay_rate ** (math.floor(exponent) if staircase else exponent))


def inverse_exponential_time_decay(
    step: int,
    initial_val: Value,
    step_exponent: Annotated[int, Field(ge=1, description="exponent of the step")],
    total_iters: Annotated[int, Field(ge=1, description="steps per decay, and length in steps")],
    decay_rate: Annotated[float, Field(ge=0, description="rate of the decay")],
    staircase: Annotated[
        bool, Field(description="round down the number that decay_rate is multiplied with")
    ] = False,
) -> float:
    """initial / (1 + decay_rate * a), a = t ** step_exponent / total_iters, or its floor.

    >>> inverse_exponential_time_decay(8, 1.0, 1, 4, 0.5)
    0.5
    """
    elapsed = float(step**step_exponent) / _at_least("total_iters", total_iters, 1)
    return initial_val / (1.0 + decay_rate * (math.floor(elapsed) if staircase else elapsed))


def inverse_square_root_decay(
    step: int,
    initial_val: Value = 1.0,
    scale: Annotated[float, Field(gt=0, description="factor for the value")] = 1.0,
    warmup_steps: Annotated[float, Field(gt=0, description="steps with a constant value")] = 1.0,
) -> float:
    """initial * scale / sqrt(max(t, warmup_steps)).

    >>> inverse_square_root_decay(16, scale=2.0)
    0.5
    """
    if warmup_steps <= 0:
        raise BackendConfigError(f"warmup_steps is {warmup_steps}; expected more than 0")
    return initial_val * scale / math.sqrt(max(step, warmup_steps))


def cosine_decay(step: int, initial_val: Value, end_val: Value, total_iters: Length) -> float:
    """end + (initial - end) * (1 + cos(pi * s)) / 2, s = min(t / total_iters, 1).

    >>> cosine_decay(5, 1.0, 0.0, 10), cosine_decay(12, 1.0, 0.25, 10)
    (0.5, 0.25)
    """
    return _half_cosine(initial_val, end_val, _progress(step, total_iters))


def piecewise_constant(
    step: int,
    vals: Annotated[tuple[Value, ...], Field(description="values, one more than milestones")],
    milestones: Annotated[
        Steps, Field(description="first step of the second and of each later value, ascending")
    ],
) -> float:
    """vals[i], i the number of milestones that are <= t.

    >>> [piecewise_constant(step, [3.0, 2.0, 1.0], [2, 4]) for step in (1, 2, 3, 4)]
    [3.0, 2.0, 2.0, 1.0]
    """
    if len(vals) != len(milestones) + 1:
        raise BackendConfigError(
            f"{len(vals)} values for {len(milestones)} milestones; expected one value more"
        )
    return vals[bisect_right(_increasing(milestones), step)]


def multi_step(
    step: int,
    initial_val: Value,
    gamma: Annotated[float, Field(gt=0, description="factor per milestone")],
    milestones: Annotated[Steps, Field(description="steps, ascending")],
) -> float:
    """initial * gamma ** (number of milestones that are <= t)."""
    return initial_val * float(gamma ** bisect_right(_increasing(milestones), step))


def step_decay(
    step: int,
    initial_val: Value,
    step_size: Annotated[int, Field(ge=1, description="steps between changes")],
    gamma: Annotated[float, Field(gt=0, description="factor per change")],
) -> float:
    """initial * gamma ** floor(t / step_size)."""
    return initial_val * float(gamma ** (step // _at_least("step_size", step_size, 1)))


def cosine_annealing(
    step: int,
    initial_val: Value,
    T_max: Annotated[int, Field(ge=1, description="steps from the largest to the smallest value")],
    eta_min: Annotated[Value, Field(description="smallest value")] = 0.0,
) -> float:
    """eta_min + (initial - eta_min) * (1 + cos(pi * t / T_max)) / 2, period 2 * T_max."""
    return _half_cosine(initial_val, eta_min, step / _at_least("T_max", T_max, 1))


def cosine_annealing_warm_restarts(
    step: int,
    initial_val: Value,
    T_0: Annotated[int, Field(ge=1, description="steps of the first half cosine")],
    T_mult: Annotated[
        int, Field(ge=1, description="how many times as long each half cosine is as the one before")
    ] = 1,
    eta_min: Annotated[Value, Field(description="smallest value")] = 0.0,
) -> float:
    """`cosine_annealing` that starts again after T_0, then T_0 * T_mult, T_0 * T_mult ** 2 steps.

    >>> [cosine_annealing_warm_restarts(step, 1.0, 2, 2) for step in (0, 1, 2, 4, 6)]
    [1.0, 0.5, 1.0, 0.5, 1.0]
    """
    _at_least("T_mult", T_mult, 1)
    period, since_restart = _at_least("T_0", T_0, 1), step
    if T_mult == 1:
        since_restart %= period
    while since_restart >= period:
        since_restart -= period
        period *= T_mult
    return cosine_annealing(since_restart, initial_val, period, eta_min)


def multiplicative(
    step: int,
    initial_val: Value,
    coefficient: Annotated[float, Field(gt=0, description="factor per step")],
) -> float:
    """initial * coefficient ** t."""
    return initial_val * float(coefficient**step)


def cyclic(
    step: int,
    base_val: Annotated[Value, Field(description="smallest value")],
    max_val: Annotated[Value, Field(description="largest value of the first cycle")],
    step_size_up: Annotated[int, Field(ge=1, description="steps of the rise")] = 2000,
    step_size_down: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Field(description="steps of the fall; null: step_size_up"),
    ] = None,
    mode: Annotated[
        Literal["triangular", "triangular2", "exp_range"],
        Field(description="triangular2: half as high every cycle; exp_range: gamma ** x"),
    ] = "triangular",
    gamma: Annotated[float, Field(gt=0, description="base of the power in exp_range")] = 1.0,
    scale_mode: Annotated[
        Literal["cycle", "iterations"],
        Field(description="x of exp_range: the number of the cycle, or of the step"),
    ] = "cycle",
) -> float:
    """A triangle from base to max and back (Smith, arXiv 1506.01186), scaled by mode.

    Scale: 1 (triangular), 2 ** (1 - x) (triangular2), gamma ** x (exp_range), x the number of the
    cycle from 1 or, with `scale_mode` = "iterations", the step.
    """
    up = _at_least("step_size_up", step_size_up, 1)
    length = up + (up if step_size_down is None else _at_least("step_size_down", step_size_down, 0))
    cycle, within = divmod(step, length)
    height = within / up if within <= up else (length - within) / (length - up)
    x = cycle + 1 if _check_choice("scale_mode", scale_mode, _SCALE_MODES) == "cycle" else step
    scales: dict[str, Callable[[], float]] = {
        "triangular": lambda: 1.0,
        "triangular2": lambda: 2.0 ** (1 - x),
        "exp_range": lambda: float(gamma**x),
    }
    return base_val + (max_val - base_val) * height * scales[_check_choice("mode", mode, scales)]()


def one_cycle(
    step: int,
    initial_val: Value,
    max_val: Annotated[Value, Field(description="largest value")],
    total_steps: Annotated[int, Field(ge=1, description="steps until the smallest value")] = 1000,
    pct_start: Annotated[
        float, Field(ge=0, le=1, description="share of the steps in the rise")
    ] = 0.3,
    final_div_factor: Annotated[
        float, Field(gt=0, description="initial value divided by the smallest")
    ] = 1e4,
    three_phase: Annotated[
        bool,
        Field(
            description="fall to the initial value in as many steps as the rise, then to the "
            "smallest"
        ),
    ] = False,
    anneal_strategy: Annotated[
        Literal["cos", "linear"], Field(description="shape: half a cosine, or a line")
    ] = "cos",
) -> float:
    """Up from initial to max, then down to initial / final_div_factor (arXiv 1708.07120).

    The turn is at step pct_start * total_steps - 1, the end at total_steps - 1, where it stays.
    With `three_phase` the way down takes as long as the way up, to initial, and the rest leads to
    the end. Each phase is a line ("linear") or half a cosine ("cos").
    """
    last = _at_least("total_steps", total_steps, 1) - 1
    phases = [(pct_start * total_steps - 1, max_val)]
    if three_phase:
        phases.append((2 * pct_start * total_steps - 2, initial_val))
    anneal = _ANNEALING[_check_choice("anneal_strategy", anneal_strategy, _ANNEALING)]
    step = min(step, last)
    begin, first = 0.0, initial_val
    for end, value in phases:
        if step <= end:
            return anneal(first, value, (step - begin) / (end - begin) if end > begin else 1.0)
        begin, first = end, value
    end_val = initial_val / final_div_factor
    return anneal(first, end_val, (step - begin) / (last - begin) if last > begin else 1.0)


def _increasing(milestones: Sequence[int]) -> Sequence[int]:
    """`milestones`, checked: strictly increasing steps, none negative."""
    if any(a >= b for a, b in zip([-1, *milestones], milestones, strict=False)):
        raise BackendConfigError(
            f"milestones are {list(milestones)}; expected strictly increasing steps from 0"
        )
    return milestones


def _line(first: float, last: float, share: float) -> float:
    return first + (last - first) * share


def _half_cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


_ANNEALING = {"cos": _half_cosine, "linear": _line}
_SCALE_MODES = ("cycle", "iterations")


def _progress(step: int, total_iters: int, cycle: bool = False) -> float:
    """The share of a decay that is over at `step`, in [0, 1]."""
    if _at_least("total_iters", total_iters, 0) == 0:
        return 1.0
    if cycle:
        return step / (total_iters * max(1, math.ceil(step / total_iters)))
    return min(step / total_iters, 1.0)


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise BackendConfigError(f"{name} is {value}; expected at least {least}")
    return value


def _check_choice(name: str, value: str, choices: Collection[str]) -> str:
    if value not in choices:
        raise BackendConfigError(f"{name} is {value!r}; expected one of {', '.join(choices)}")
    return value
