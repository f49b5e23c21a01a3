"""What a user sees while stages run: a bar on a terminal, plain lines elsewhere, nothing when
quiet.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.core.mirror import name_urls
from pipeline.core.words import format_duration, pluralise

if TYPE_CHECKING:  # no worker shows anything
    from rich.console import Console
    from rich.progress import Progress as RichProgress

_PLAIN_EVERY_SECONDS = 5.0


class StageProgress:
    """Counts one stage's finished work; redraws a bar, or prints a line every few seconds."""

    def __init__(self, name: str, works: Sequence[int], reused: int, console: "Console") -> None:
        self.name = name
        self.works = works
        self.reused = reused
        self.finished = 0
        self.bytes = 0
        self.documents = 0
        self.started = time.monotonic()
        self._console = console
        self._last = self.started
        self._bar: RichProgress | None = None

    def done(self, position: int, counters: Mapping[str, Any]) -> None:
        """One task is finished; its documents are among the counters."""
        self.finished += 1
        self.bytes += self.works[position]
        self.documents += int(counters.get("documents", 0))
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, advance=self.works[position] + 1, description=self.line())
        elif (
            self.finished < len(self.works) and time.monotonic() - self._last > _PLAIN_EVERY_SECONDS
        ):
            self._last = time.monotonic()
            self._console.print(self.line(), markup=False)

    def seconds(self) -> float:
        """Since the stage began."""
        return time.monotonic() - self.started

    def line(self) -> str:
        """`clean: 3/12 tasks, 7,431 documents, 21.3 MB/s, 4.0s`."""
        seconds = self.seconds()
        parts = [f"{self.name}: {self.finished}/{pluralise(len(self.works), 'task')}"]
        if self.reused:
            parts.append(f"{self.reused} reused")
        if self.documents:
            parts.append(pluralise(self.documents, "document"))
        if self.bytes:
            parts.append(f"{self.bytes / 1e6 / max(seconds, 1e-3):.1f} MB/s")
        remaining = sum(self.works) - self.bytes
        if self.bytes > 0 and remaining > 0:
            parts.append(f"about {format_duration(seconds * remaining / self.bytes)} left")
        else:
            parts.append(format_duration(seconds))
        return ", ".join(parts)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar, on a terminal."""
        if not self._console.is_terminal or not self.works:
            yield
            return
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = RichProgress(*columns, console=self._console, transient=True)
        with self._bar:
            self._bar.add_task(self.line(), total=max(1, sum(self.works) + len(self.works)))
            yield


class Progress:
    """Prints to standard error, so that standard output stays for results."""

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self.timings: dict[str, tuple[float, int]] = {}
        self._rebuilding = ""

    def note(self, message: str) -> None:
        """One line the user should know."""
        self.console.print(f"note: {name_urls(message)}", markup=False)

    def rebuilding(self, stage: str, problem: str) -> None:
        """A committed shard is missing or damaged; said once per stage, the journal lists all."""
        if self._rebuilding != stage:
            self._rebuilding = stage
            self.note(problem)

    def reused(self, stage: str, tasks: int) -> None:
        """A stage was up to date."""
        self.console.print(f"{stage}: reused ({pluralise(tasks, 'task')})", markup=False)

    @contextmanager
    def stage(self, name: str, works: Sequence[int], reused: int) -> Iterator[StageProgress]:
        """Show one stage while it runs; its time and bytes are kept in `timings`."""
        state = StageProgress(name, works, reused, self.console)
        try:
            with state.shown():
                yield state
        finally:
            self.timings[name] = (state.seconds(), state.bytes)
        self.console.print(state.line(), markup=False)
