"""`cstorch.profiler`: times of modules and a Chrome trace of some steps of a script.

    schedule = cstorch.profiler.schedule(start_step=3, end_step=5)
    with cstorch.profiler.profile(schedule=schedule) as prof:
        for batch in executor:
            training_step(batch)
    print(prof.get_summary())

Steps are those of a DataExecutor, which may also be given the profile (`profiler_activities=`).
`train` profiles steps of its own with `StepProfile`. Times are of this host, not of a CS-2.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from pipeline.core import storage
from wafer_backend import backends
from wafer_backend.cluster.timeline import (
    ACTIVATION_WORKER,
    COORDINATOR,
    MEMORYX,
    SWARMX,
    ModuleTimes,
    Timeline,
    make_clock,
)
from wafer_backend.compiled import CompiledModule
from wafer_backend.errors import BackendConfigError, BackendError


@dataclass(frozen=True)
class ProfiledSteps:
    """Steps `start_step` to `end_step`, 1-based, both included.

    Raises BackendConfigError for anything else than 1 <= start_step <= end_step.
    """

    start_step: int
    end_step: int

    def __post_init__(self) -> None:
        whole = type(self.start_step) is int and type(self.end_step) is int
        if not whole or not 1 <= self.start_step <= self.end_step:
            raise BackendConfigError(
                f"profiled steps {self.start_step!r} to {self.end_step!r}: expected "
                "1 <= start_step <= end_step"
            )

    def __contains__(self, step: int) -> bool:
        return self.start_step <= step <= self.end_step


class StepProfile:
    """Profiles some steps of one compiled module into a directory.

    `step_N.json`: the Chrome trace of each; `op_profile.txt`: the table of all so far, rewritten
    after each.
    """

    def __init__(self, steps: ProfiledSteps, directory: Path) -> None:
        self._steps = steps
        self._directory = directory
        self._modules: ModuleTimes | None = None

    @contextlib.contextmanager
    def step(self, made: CompiledModule, step: int) -> Iterator[None]:
        """Run step number `step` inside; nothing happens if it is not to be profiled.

        Files are written when the block ends without an error. Raises ResourceError.
        """
        if step not in self._steps:
            yield
            return
        clock = make_clock(made.device)
        self._modules = self._modules or ModuleTimes(clock)
        timeline = Timeline(clock)
        with made.profile(timeline, self._modules):
            yield
        timeline.write(self._directory / f"step_{step}.json")
        table = self._modules.table() + "\n"
        storage.publish(self._directory / "op_profile.txt", table.encode())

    def table(self) -> str:
        """The op profile of the steps so far; empty before the first."""
        return "" if self._modules is None else self._modules.table()


# How host activities spell our roles; wafers are CSX-0, CSX-1, ...
_ACTIVITIES = {COORDINATOR: "CRD-0", MEMORYX: "WGT-0", SWARMX: "BR-0", ACTIVATION_WORKER: "ACT-0"}
_KINDS = ("ACT", "BR", "CRD", "CSX", "WGT")

_active: "profile | None" = None


class _NoSteps(ProfiledSteps):
    """What `schedule(-1, -1)` stands for: profile nothing."""

    def __init__(self) -> None:
        super().__init__(-1, -1)

    def __post_init__(self) -> None:
        pass

    def __contains__(self, step: int) -> bool:
        return False


def schedule(start_step: int, end_step: int) -> ProfiledSteps:
    """Profile these steps, 1-based, both included; -1 to -1 is none. Raises BackendConfigError."""
    return _NoSteps() if start_step == end_step == -1 else ProfiledSteps(start_step, end_step)


def tensorboard_trace_handler(directory: str | Path) -> Callable[["profile"], None]:
    """For `on_trace_ready`: write `steps_A-B.pt.trace.json`, as TensorBoard looks for it."""

    def write(finished: profile) -> None:
        first, last = finished.profiled_steps[0], finished.profiled_steps[-1]
        finished.export_chrome_trace(Path(directory) / f"steps_{first}-{last}.pt.trace.json")

    return write


class profile:  # noqa: N801
    """Profiles the steps of `schedule`, or all, of the executors that run inside.

    `host_activities`: which tracks the trace has, as patterns of ACT-0 (activation worker), WGT-0
    (MemoryX), BR-0 (SwarmX), CRD-0 (coordinator), CSX-0, CSX-1, ... (wafers); None for all.
    `on_trace_ready` is called with the profile once, after the last of its steps, or at the end.

    Raises BackendConfigError for an unknown activity, BackendError inside another profile.
    """

    def __init__(
        self,
        schedule: ProfiledSteps | None = None,
        host_activities: Sequence[str] | None = None,
        on_trace_ready: Callable[["profile"], None] | None = None,
    ) -> None:
        self.profiled_steps: list[int] = []
        self._schedule = schedule
        self._activities = None if host_activities is None else _checked(host_activities)
        self._on_trace_ready = on_trace_ready
        self._timeline: Timeline | None = None
        self._modules: ModuleTimes | None = None
        self._step: contextlib.ExitStack | None = None
        self._engines: list[CompiledModule] = []
        self._finished = False

    def __enter__(self) -> "profile":
        global _active
        if _active is not None:
            raise BackendError("profiler.profile: another profile is active; leave it first")
        _active = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        global _active
        _active = None
        if self._step is not None:  # of a loop that an error left suspended
            self._step.close()
        if kind in (None, GeneratorExit):
            self._finish()

    def get_summary(self) -> str:
        """The ten modules that took longest, forward and backward apart, as a table."""
        return (self._modules or ModuleTimes(make_clock(torch.device("cpu")))).table()

    @property
    def op_profiler_json(self) -> str | None:
        """The rows of the summary as JSON; None when no step was profiled."""
        if self._modules is None:
            return None
        return json.dumps([asdict(row) for row in self._modules.rows()])

    @property
    def appliance_response(self) -> str | None:
        """The same, as R2.4 calls it."""
        return self.op_profiler_json

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the trace of all profiled steps, of this process's wafers; of several ranks only
        the first writes. Raises BackendError when there are none."""
        if self._timeline is None:
            raise BackendError(
                "profiler.profile: no compiled module ran in a profiled step; run a DataExecutor "
                "inside it for at least start_step steps"
            )
        if not backends.is_writer():
            return
        self._timeline.write(Path(path), self._keeps)

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One step of an executor; a step inside a step belongs to the outer one."""
        due = self._schedule is None or number in self._schedule
        if self._finished or self._step is not None or not due:
            yield
            return
        try:
            with contextlib.ExitStack() as self._step:
                yield
        finally:
            self._step = None
            self._engines.clear()
            if self._timeline is not None:
                self.profiled_steps.append(number)
        if self._schedule is not None and number == self._schedule.end_step:
            self._finish()

    def attach(self, engine: CompiledModule) -> None:
        """A compiled module runs: watch it until the step ends."""
        if self._step is None or engine in self._engines:
            return
        if self._timeline is None or self._modules is None:
            clock = make_clock(engine.device)
            self._timeline, self._modules = Timeline(clock), ModuleTimes(clock)
        self._engines.append(engine)
        self._step.enter_context(engine.profile(self._timeline, self._modules))

    def _finish(self) -> None:
        if not self._finished and self.profiled_steps and self._on_trace_ready is not None:
            self._on_trace_ready(self)
        self._finished = True

    def _keeps(self, role: str) -> bool:
        if self._activities is None:
            return True
        name = _ACTIVITIES.get(role) or role.replace("wafer ", "CSX-")
        return any(fnmatchcase(name, pattern) for pattern in self._activities)


def attach(engine: CompiledModule) -> None:
    """Called by a compiled module before it runs."""
    if _active is not None:
        _active.attach(engine)


def step(number: int) -> contextlib.AbstractContextManager[None]:
    """Called by a DataExecutor around each step."""
    return contextlib.nullcontext() if _active is None else _active.step(number)


def reset_profiler() -> None:
    """No profile is active any more."""
    global _active
    _active = None


def _checked(activities: Sequence[str]) -> list[str]:
    for activity in activities:
        if activity.partition("-")[0] not in _KINDS:
            raise BackendConfigError(
                f"host_activities: {activity!r} is not one of {', '.join(_KINDS)} with a number or "
                "a pattern behind it, as in CSX-0 or WGT-*"
            )
    return list(activities)


def activity_profile(activities: Any) -> contextlib.AbstractContextManager[Any]:
    """The profile that a DataExecutor was given for `profiler_activities`, if it is one."""
    return activities if isinstance(activities, profile) else contextlib.nullcontext()
