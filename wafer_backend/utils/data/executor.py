"""`DataExecutor`: the loop over a loader, with the closures at the end of every step.

`Schedule` says at which steps something happens, and `compute_num_steps` how many steps there are.
"""

import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipeline.core.directories import make_directory
from wafer_backend.backends.base import ClusterConfig
from wafer_backend.errors import BackendConfigError, LoaderError
from wafer_backend.utils.data.loader import DataLoader
from wafer_backend.utils.data.workers import infer_batch_size
from wafer_backend.utils.profiler import ExecutorProfiler


@dataclass
class Range:
    """The steps start, start + step, … below `end` (None: without end), 0-based, and with
    `include_last` the step `end` - 1 too.
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
        """Whether `step` (0-based) is one of them."""
        within = step >= self.start and (self.end is None or step < self.end)
        return within and ((step - self.start) % self.step == 0 or self._is_last(step))

    def range(self) -> Sequence[int]:
        """Its steps without the last one that `include_last` adds. It needs an end."""
        return range(self.start, self._required_end(), self.step)

    def next_immediate_step(self, step: int) -> int:
        """The first of its steps that is not before `step`; `end` when there is none."""
        beyond = max(0, -(-(step - self.start) // self.step))
        following = self.start + beyond * self.step
        if self.end is None or following < self.end:
            return following
        return self.end - 1 if self.include_last and step < self.end else self.end

    def __len__(self) -> int:
        """How many steps it has. It needs an end."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[int]:
        regular = itertools.count(self.start, self.step) if self.end is None else self.range()
        yield from regular
        if self.end is not None and self._is_last(self.end - 1) and self.end - 1 not in regular:
            yield self.end - 1

    def _is_last(self, step: int) -> bool:
        return self.include_last and self.end is not None and self.start <= step == self.end - 1

    def _required_end(self) -> int:
        if self.end is None:
            raise BackendConfigError(f"{self} has no end, so its steps cannot be counted")
        return self.end


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
        """Whether `step` (0-based) is in a range."""
        return any(interval.match(step) for interval in self.intervals)


def cadence(steps: "int | Schedule | None", num_steps: int, what: str) -> Schedule:
    """A schedule from what a user gives: a number means after every so many steps and the last.

    None and 0 mean never. Raises BackendConfigError for a negative number, naming `what`.
    """
    if isinstance(steps, Schedule):
        return steps
    if steps is None or steps == 0:
        return Schedule([])
    if type(steps) is not int or steps < 0:
        raise BackendConfigError(f"{what} = {steps!r}: expected a number of steps or a Schedule")
    first = min(steps, num_steps) - 1
    return Schedule([Range(first, num_steps, steps, include_last=True)])


def period(schedule: Schedule) -> int:
    """The greatest number that divides the count of steps done after every step of a schedule; 0
    for an empty one."""
    counts = []
    for interval in schedule.intervals:
        single = interval.end is not None and interval.end <= interval.start + interval.step
        empty = interval.end == interval.start
        counts += (
            [] if empty else [interval.start + 1] if single else [interval.start + 1, interval.step]
        )
        if interval.include_last and interval.end is not None and not empty:
            counts.append(interval.end)
    return math.gcd(*counts)


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


_numbers = itertools.count(1)

MbsSetting = int | Literal["auto", "explore"] | dict[str, Any] | None
"""What `micro_batch_size` may be in params files."""


class DataExecutor:
    """Iterate over it: `num_steps` batches, one pass of the loader by default.

    A loader that is exhausted earlier is iterated again; a `DataLoader` goes on from where the last
    executor over it stopped. `checkpoint_steps`: at which steps
    checkpoint closures run, every so many and the last, or a Schedule. `activation_steps`: the
    script looks at outputs every so many steps; closures run at every step all the same.
    `cs_config`: the cluster, as older scripts give it. `writer`: kept as an attribute.
    `micro_batch_size`: as `backends.csx.performance.micro_batch_size`. `profiler_activities`: a
    `profiler.profile`, active while this runs; a list of names is accepted without effect.
    `listeners` other than an empty list are not supported.

    After `break` the closures of the step it ended run as well; what they raise then is printed
    by Python, not raised. Raises BackendConfigError for impossible settings, LoaderError when
    the loader yields nothing.
    """

    def __init__(
        self,
        dataloader: Iterable[Any],
        num_steps: int | None = None,
        checkpoint_steps: int | Schedule | None = None,
        activation_steps: int | None = None,
        profiler_activities: Any = None,
        cs_config: ClusterConfig | None = None,
        writer: Any = None,
        listeners: list[Any] | None = None,
        micro_batch_size: Any = None,
    ) -> None:
        self.dataloader = dataloader
        self.num_steps = _length(dataloader) if num_steps is None else num_steps
        if type(self.num_steps) is not int or self.num_steps < 1:
            raise BackendConfigError(
                f"DataExecutor: num_steps = {self.num_steps!r}: expected steps, at least 1"
            )
        if listeners:
            raise BackendConfigError("DataExecutor: listeners are not supported")
        from wafer_backend import backends

        if cs_config is not None:
            backends.configure_cluster(cs_config)
        elif backends.has_backend():
            cs_config = backends.current_backend().cluster_config
        self.cs_config = cs_config
        if micro_batch_size is not None:
            backends.csx.performance.micro_batch_size = micro_batch_size
        self.checkpoint_steps = cadence(checkpoint_steps, self.num_steps, "checkpoint_steps")
        self.activation_steps = _common(activation_steps, self.checkpoint_steps)
        self.profiler_activities = profiler_activities or []
        self.writer = writer
        self.profiler = ExecutorProfiler()
        self.user_iteration = 0
        self._number = next(_numbers)

    @property
    def iteration(self) -> int:
        """The current step, counted from 0."""
        return max(self.user_iteration - 1, 0)

    @property
    def on_final_iteration(self) -> bool:
        """Whether the current step is the last."""
        return self.user_iteration == self.num_steps

    @property
    def is_checkpoint_step(self) -> bool:
        """Whether checkpoint closures run at the end of the current step."""
        return self.checkpoint_steps.match(self.user_iteration - 1)

    @property
    def is_activation_step(self) -> bool:
        """Whether the script looks at the outputs of the current step."""
        return self.user_iteration % self.activation_steps == 0 or self.on_final_iteration

    @property
    def artifact_dir(self) -> Path:
        """A directory for files of this executor, made when first asked for."""
        from wafer_backend import backends

        directory = backends.current_backend().artifact_dir / "executors" / f"{self._number:06d}"
        make_directory(directory)
        return directory

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[Any]:
        from wafer_backend import profiler, tracing

        self.user_iteration = 0
        self.profiler.rate_tracker.reset()
        tracing.set_executor(self)
        batches = self._batches()
        try:
            with profiler.activity_profile(self.profiler_activities):
                for batch in itertools.islice(batches, _steps_to_run(self.num_steps)):
                    self.user_iteration += 1
                    try:
                        with profiler.step(self.user_iteration), tracing.watched_loop(batch):
                            yield batch
                    finally:
                        self.profiler.rate_tracker.add(infer_batch_size(batch) or 0)
                        tracing.run_closures(self)
        finally:
            batches.close()
            tracing.set_executor(None)

    def _batches(self) -> Generator[Any, None, None]:
        """The loader's batches, again and again, from where the last executor stopped."""
        loader = self.dataloader
        rest = loader.unfinished if isinstance(loader, DataLoader) else None
        for passes in itertools.count(1):
            current, empty = iter(loader) if rest is None else rest, rest is None
            try:
                for batch in current:
                    empty = False
                    yield batch
            except GeneratorExit:
                if isinstance(loader, DataLoader) and isinstance(current, Generator):
                    loader.unfinished = current
                raise
            if empty:
                raise LoaderError(
                    f"the loader yields no batch in pass {passes}, and {self.num_steps} steps were "
                    f"asked for ({self.user_iteration} have run)"
                )
            rest = None


def _steps_to_run(num_steps: int) -> int:
    """All of them; one when the backend only plans or checks, and the first of a strict check."""
    from wafer_backend import backends

    dry = backends.has_backend() and not backends.current_backend().is_e2e_execution
    return 1 if dry else min(num_steps, backends.most_steps() or num_steps)


def _length(dataloader: Any) -> int:
    try:
        return len(dataloader)
    except TypeError as error:
        raise BackendConfigError(
            "DataExecutor: the loader has no length; give num_steps"
        ) from error


def _common(activation_steps: int | None, checkpoints: Schedule) -> int:
    """The greatest cadence that meets both; 1 when not given."""
    if activation_steps is None:
        return 1
    if type(activation_steps) is not int or activation_steps < 1:
        raise BackendConfigError(
            f"activation_steps = {activation_steps!r}: expected steps, at least 1"
        )
    return math.gcd(activation_steps, period(checkpoints))
