"""Which steps are profiled, and the files that come of it: for `train` and `cstorch.profiler`."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core import storage
from wafer_backend.errors import BackendConfigError
from wafer_backend.module_times import ModuleTimes
from wafer_backend.timeline import Timeline, clock_of

if TYPE_CHECKING:
    from wafer_backend.compiled import CompiledModule


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
    def step(self, made: "CompiledModule", step: int) -> Iterator[None]:
        """Run step number `step` inside; nothing happens if it is not to be profiled.

        Files are written when the block ends without an error. Raises ResourceError.
        """
        if step not in self._steps:
            yield
            return
        clock = clock_of(made.device)
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
