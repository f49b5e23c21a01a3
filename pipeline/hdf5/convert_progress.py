"""Progress of a conversion on standard error: a bar on a terminal, else a line now and then."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

_LINE_EVERY_SECONDS = 5.0


class Meter:
    """Counts finished things (samples, tokens); `total` is None where it cannot be known."""

    def __init__(self, label: str, unit: str, total: int | None, console: Console) -> None:
        self.label = label
        self.unit = unit
        self.total = total
        self.done = 0
        self._console = console
        self._started = self._shown = time.monotonic()
        self._bar: RichProgress | None = None

    def advance(self, count: int, total: int | None = None) -> None:
        """`count` more are finished; `total` is a better estimate, if there is one."""
        self.done += count
        self.total = total if total is not None else self.total
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=self.done, total=self.total, description=self.line())
        elif time.monotonic() - self._shown > _LINE_EVERY_SECONDS:
            self._shown = time.monotonic()
            self._console.print(self.line(), markup=False)

    def line(self) -> str:
        """`hdf5_dataset: 4,000 of 10,000 samples, 1,234 a second`."""
        seconds = max(time.monotonic() - self._started, 1e-3)
        of = f" of {self.total:,}" if self.total is not None else ""
        return f"{self.label}: {self.done:,}{of} {self.unit}, {self.done / seconds:,.0f} a second"

    @contextmanager
    def shown(self) -> Iterator["Meter"]:
        """Show it for the life of the block."""
        if not self._console.is_terminal:
            yield self
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = RichProgress(*columns, console=self._console, transient=True)
        with self._bar:
            self._bar.add_task(self.line(), total=self.total)
            yield self


def meter(label: str, unit: str, total: int | None) -> Meter:
    """A meter that prints to standard error, so that standard output stays for results."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    return Meter(label, unit, total, console)
