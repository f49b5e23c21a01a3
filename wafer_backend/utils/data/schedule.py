"""Steps at which something happens, and how many steps there are."""

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import ClassVar

from wafer_backend.errors import BackendConfigError


@dataclass(frozen=True)
class Range:
    """The steps start, start + step, … below `end` (None: without end), and with `include_last`
    the step `end` itself too.
    """

    start: int = 0
    end: int | None = None
    step: int = 1
    include_last: bool = False

    def __post_init__(self) -> None:
        if self.step < 1 or self.start < 0 or (self.end is not None and self.end < self.start):
            raise BackendConfigError(f"{self}: expected 0 <= start <= end and a step of at least 1")
        if self.include_last and self.end is None:
            raise BackendConfigError(f"{self}: include_last needs an end")

    def match(self, step: int) -> bool:
        """Whether `step` (1-based) is one of them."""
        if step == self.end:
            return self.include_last
        within = step >= self.start and (self.end is None or step < self.end)
        return within and (step - self.start) % self.step == 0


@dataclass(frozen=True)
class Schedule:
    """Steps in any of several ranges.

    >>> every_second = Schedule([Schedule.Range(2, 10, 2)])
    >>> [step for step in range(12) if every_second.match(step)]
    [2, 4, 6, 8]
    """

    intervals: Sequence[Range] = field(default_factory=list)
    Range: ClassVar[type[Range]] = Range

    def match(self, step: int) -> bool:
        """Whether `step` (1-based) is in a range."""
        return any(interval.match(step) for interval in self.intervals)


def cadence(steps: "int | Schedule | None", num_steps: int, what: str) -> Schedule:
    """A schedule from what a user gives: a number means every so many steps and the last one.

    None and 0 mean never. Raises BackendConfigError for a negative number, naming `what`.
    """
    if isinstance(steps, Schedule):
        return steps
    if steps is None or steps == 0:
        return Schedule([])
    if type(steps) is not int or steps < 0:
        raise BackendConfigError(f"{what} = {steps!r}: expected a number of steps or a Schedule")
    return Schedule([Range(steps, None, steps), Range(num_steps, num_steps + 1)])


def period(schedule: Schedule) -> int:
    """The greatest number of steps that divides every step of a schedule; 0 for an empty one."""
    numbers = []
    for interval in schedule.intervals:
        single = interval.end is not None and interval.end <= interval.start + interval.step
        numbers += [interval.start] if single else [interval.start, interval.step]
        if interval.include_last and interval.end is not None:
            numbers.append(interval.end)
    return math.gcd(*numbers)


def compute_num_steps(
    dataloader: Sized,
    initial_step: int = 0,
    num_steps: int | None = None,
    max_steps: int | None = None,
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    grad_accum_steps: int = 1,
) -> int:
    """Batches to run: `num_steps`, or `num_epochs` of the loader (cut to `steps_per_epoch`
    batches each), and no further than `max_steps` in all, of which `initial_step` are done.
    Steps are optimizer steps of `grad_accum_steps` batches each; an epoch is a pass over the
    loader.

    Raises BackendConfigError when nothing, or two things at once, say how long.
    """
    if num_steps is not None and num_epochs is not None:
        raise BackendConfigError("give num_steps or num_epochs, not both")
    if steps_per_epoch is not None and num_epochs is None:
        raise BackendConfigError("steps_per_epoch needs num_epochs")
    if num_steps is None and num_epochs is None and max_steps is None:
        raise BackendConfigError("give num_steps, num_epochs or max_steps")
    totals = []
    if num_steps is not None:
        totals.append(num_steps * grad_accum_steps)
    if num_epochs is not None:
        epoch = len(dataloader)
        totals.append(
            num_epochs * (epoch if steps_per_epoch is None else min(steps_per_epoch, epoch))
        )
    if max_steps is not None:
        totals.append((max_steps - initial_step) * grad_accum_steps)
    if min(totals) < 1:
        raise BackendConfigError(
            f"no step is left: {min(totals)} of num_steps {num_steps}, num_epochs {num_epochs}, "
            f"max_steps {max_steps} after step {initial_step}"
        )
    return min(totals)
