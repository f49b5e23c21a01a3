"""Schedules as closed forms: each maps a step (0-based int) to a value (float64) and does no more.

The step alone decides, so a schedule resumes exactly at any step. Argument names are those of the
cstorch schedulers that adjust any value (`initial_val`, `end_val`, ...); `lr_scheduler` and
`weight_decay_scheduler` spell them for what they adjust. t below is the step. A schedule of
`total_iters` = 0 is at its end at once.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

from wafer_backend.errors import BackendConfigError


def constant(step: int, val: float, total_iters: int | None = None) -> float:
    """`val`; `total_iters` only says when a schedule that follows begins."""
    return val


def linear(
    step: int, initial_val: float, end_val: float, total_iters: int, cycle: bool = False
) -> float:
    """initial + (end - initial) * s, s = min(t / total_iters, 1).

    With `cycle`, s = t / (total_iters * max(1, ceil(t / total_iters))).

    >>> [linear(step, 0.0, 1.0, 4) for step in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    return _line(initial_val, end_val, _progress(step, total_iters, cycle))


def polynomial(
    step: int,
    initial_val: float,
    end_val: float,
    total_iters: int,
    power: float = 1.0,
    cycle: bool = False,
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
    step: int, initial_val: float, total_iters: int, decay_rate: float, staircase: bool = False
) -> float:
    """initial * decay_rate ** (t / total_iters); the exponent is rounded down with `staircase`.

    >>> exponential(10, 1.0, 5, 0.5)
    0.25
    """
    exponent = step / _at_least("total_iters", total_iters, 1)
    return initial_val * float(decay_rate ** (math.floor(exponent) if staircase else exponent))


def inverse_exponential_time_decay(
    step: int,
    initial_val: float,
    step_exponent: int,
    total_iters: int,
    decay_rate: float,
    staircase: bool = False,
) -> float:
    """initial / (1 + decay_rate * a), a = t ** step_exponent / total_iters, or its floor.

    >>> inverse_exponential_time_decay(8, 1.0, 1, 4, 0.5)
    0.5
    """
    elapsed = float(step**step_exponent) / _at_least("total_iters", total_iters, 1)
    return initial_val / (1.0 + decay_rate * (math.floor(elapsed) if staircase else elapsed))


def inverse_square_root_decay(
    step: int, initial_val: float = 1.0, scale: float = 1.0, warmup_steps: float = 1.0
) -> float:
    """initial * scale / sqrt(max(t, warmup_steps)).

    >>> inverse_square_root_decay(16, scale=2.0)
    0.5
    """
    if warmup_steps <= 0:
        raise BackendConfigError(f"warmup_steps is {warmup_steps}; expected more than 0")
    return initial_val * scale / math.sqrt(max(step, warmup_steps))


def cosine_decay(step: int, initial_val: float, end_val: float, total_iters: int) -> float:
    """end + (initial - end) * (1 + cos(pi * s)) / 2, s = min(t / total_iters, 1).

    >>> cosine_decay(5, 1.0, 0.0, 10), cosine_decay(12, 1.0, 0.25, 10)
    (0.5, 0.25)
    """
    return _half_cosine(initial_val, end_val, _progress(step, total_iters))


def piecewise_constant(step: int, vals: Sequence[float], milestones: Sequence[int]) -> float:
    """vals[i], i the number of milestones that are <= t.

    >>> [piecewise_constant(step, [3.0, 2.0, 1.0], [2, 4]) for step in (1, 2, 3, 4)]
    [3.0, 2.0, 2.0, 1.0]
    """
    if len(vals) != len(milestones) + 1:
        raise BackendConfigError(
            f"{len(vals)} values for {len(milestones)} milestones; expected one value more"
        )
    return vals[bisect_right(_increasing(milestones), step)]


def multi_step(step: int, initial_val: float, gamma: float, milestones: Sequence[int]) -> float:
    """initial * gamma ** (number of milestones that are <= t)."""
    return initial_val * float(gamma ** bisect_right(_increasing(milestones), step))


def step_decay(step: int, initial_val: float, step_size: int, gamma: float) -> float:
    """initial * gamma ** floor(t / step_size)."""
    return initial_val * float(gamma ** (step // _at_least("step_size", step_size, 1)))


def cosine_annealing(step: int, initial_val: float, T_max: int, eta_min: float = 0.0) -> float:
    """eta_min + (initial - eta_min) * (1 + cos(pi * t / T_max)) / 2, period 2 * T_max."""
    return _half_cosine(initial_val, eta_min, step / _at_least("T_max", T_max, 1))


def cosine_annealing_warm_restarts(
    step: int, initial_val: float, T_0: int, T_mult: int = 1, eta_min: float = 0.0
) -> float:
    """`cosine_annealing` that starts anew after T_0, then T_0 * T_mult, T_0 * T_mult ** 2 steps.

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


def multiplicative(step: int, initial_val: float, coefficient: float) -> float:
    """initial * coefficient ** t."""
    return initial_val * float(coefficient**step)


def cyclic(
    step: int,
    base_val: float,
    max_val: float,
    step_size_up: int = 2000,
    step_size_down: int | None = None,
    mode: str = "triangular",
    gamma: float = 1.0,
    scale_mode: str = "cycle",
) -> float:
    """A triangle from base to max and back (Smith, arXiv 1506.01186), scaled by mode.

    Scale: 1 (triangular), 2 ** (1 - x) (triangular2), gamma ** x (exp_range), x the number of the
    cycle from 1 or, with `scale_mode` = "iterations", the step.
    """
    up = _at_least("step_size_up", step_size_up, 1)
    length = up + (up if step_size_down is None else _at_least("step_size_down", step_size_down, 0))
    cycle, within = divmod(step, length)
    height = within / up if within <= up else (length - within) / (length - up)
    x = cycle + 1 if _one_of("scale_mode", scale_mode, _SCALE_MODES) == "cycle" else step
    scales: dict[str, Callable[[], float]] = {
        "triangular": lambda: 1.0,
        "triangular2": lambda: 2.0 ** (1 - x),
        "exp_range": lambda: float(gamma**x),
    }
    return base_val + (max_val - base_val) * height * scales[_one_of("mode", mode, scales)]()


def one_cycle(
    step: int,
    initial_val: float,
    max_val: float,
    total_steps: int = 1000,
    pct_start: float = 0.3,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
    anneal_strategy: str = "cos",
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
    anneal = _ANNEALING[_one_of("anneal_strategy", anneal_strategy, _ANNEALING)]
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


def _one_of(name: str, value: str, known: Collection[str]) -> str:
    if value not in known:
        raise BackendConfigError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    return value
