"""What a user sees while something runs: a bar on a terminal, plain lines elsewhere, lines of JSON
for programs, nothing when quiet. It goes to standard error, so that standard output stays for
results.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.mirror.paths import name_urls
from pipeline.core.words import format_bytes, format_duration, pluralise

if TYPE_CHECKING:  # no worker shows anything
    from rich.console import Console
    from rich.progress import Progress as RichProgress

_EVERY_SECONDS = 5.0
_LEAST_RATE = 0.05
"""MB/s that are shown; some stages count documents where others count bytes."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory_in_use() -> int:
    """Bytes that this process and those it started have in memory, pages that several share
    counted once; 0 where the system does not say."""
    family, left = [], [os.getpid()]
    while left:
        process = Path(f"/proc/{left.pop()}")
        family.append(process)
        with suppress(OSError):
            for thread in (process / "task").iterdir():
                left += map(int, (thread / "children").read_text().split())
    return sum(map(_bytes_shared_out if len(family) > 1 else _bytes_resident, family))


def _bytes_resident(process: Path) -> int:
    with suppress(OSError):
        return int((process / "statm").read_text().split()[1]) * _PAGE
    return 0


def _bytes_shared_out(process: Path) -> int:
    """Each page divided by the number of processes that have it, which takes milliseconds."""
    with suppress(OSError, IndexError):
        return int((process / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0]) << 10
    return 0


class Printer:
    """Standard error, as the user wants it."""

    def __init__(self, quiet: bool = False, as_json: bool = False) -> None:
        self.is_quiet = quiet
        self._as_json = as_json and not quiet
        self._console = None if quiet or as_json else _standard_error()
        self._memory, self._look_again = 0, 0.0

    @property
    def terminal(self) -> "Console | None":
        """Where a bar can be drawn."""
        console = self._console
        return console if console is not None and console.is_terminal else None

    def memory(self) -> int:
        """Bytes in use, as of the last seconds: looking takes milliseconds for each process, here
        a hundredth of the time at most."""
        now = time.monotonic()
        if now > self._look_again:
            self._memory = memory_in_use()
            took = time.monotonic() - now
            self._look_again = now + max(1, 100 * took)
        return self._memory

    def tell(self, event: str, line: str, **facts: Any) -> None:
        """One line, or one object of JSON with the same."""
        if self._as_json:
            print(json.dumps({"event": event, **facts}), file=sys.stderr, flush=True)
        elif self._console is not None:
            self._console.print(line, markup=False)


def _standard_error() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


@dataclass
class _Amount:
    """Something that is counted while a bar, or a line every few seconds, shows how far it is."""

    output: Printer
    started: float = field(default_factory=time.monotonic, init=False)
    _told: float = field(default_factory=time.monotonic, init=False)
    _bar: "RichProgress | None" = field(default=None, init=False)

    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.started

    def facts(self) -> dict[str, Any]:
        """How far it is."""
        raise NotImplementedError

    def line(self) -> str:
        """The same in words."""
        raise NotImplementedError

    def extent(self) -> tuple[int, int | None]:
        """What is done and what there is in all, for the bar and the time that is left."""
        raise NotImplementedError

    def seconds_left(self) -> float | None:
        """As far as the part that is done tells."""
        done, total = self.extent()
        return self.seconds() * (total - done) / done if total and 0 < done < total else None

    def end_of_line(self) -> list[str]:
        """Memory and time, which all lines end with."""
        left, memory = self.seconds_left(), self.output.memory()
        words = [f"{format_bytes(memory)} in memory"] if memory else []
        if left is None:
            return [*words, format_duration(self.seconds())]
        return [*words, f"about {format_duration(left)} left"]

    def tell(self) -> None:
        """Print it now."""
        if self.output.is_quiet:
            return
        left = self.seconds_left()
        facts = {
            **self.facts(),
            "seconds": round(self.seconds(), 3),
            "seconds_left": None if left is None else round(left, 1),
            "memory_bytes": self.output.memory(),
        }
        self.output.tell("progress", self.line(), **facts)

    def changed(self) -> None:
        """Move the bar; print a line if the last one is old and there is more to come."""
        done, total = self.extent()
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=done, total=total, description=self.line())
        elif time.monotonic() - self._told > _EVERY_SECONDS and done != total:
            self._told = time.monotonic()
            self.tell()

    @contextmanager
    def bar(self) -> Iterator[None]:
        """Show a bar for the life of the block, on a terminal."""
        terminal = self.output.terminal
        if terminal is None:
            yield
            return
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = RichProgress(*columns, console=terminal, transient=True)
        with self._bar:
            self._bar.add_task(self.line(), total=self.extent()[1])
            yield


@dataclass(kw_only=True)
class StageProgress(_Amount):
    """One stage's finished tasks; `number` is the place of the stage among `of`, if that is known,
    `works` the bytes of each task that has to run."""

    name: str
    number: int
    of: int
    works: Sequence[int]
    reused: int
    finished: int = field(default=0, init=False)
    bytes: int = field(default=0, init=False)
    documents: int = field(default=0, init=False)

    def done(self, position: int, counters: Mapping[str, Any]) -> None:
        """One task is finished; its documents are among the counters."""
        self.finished += 1
        self.bytes += self.works[position]
        self.documents += int(counters.get("documents", 0))
        self.changed()

    def extent(self) -> tuple[int, int | None]:
        """Bytes; tasks where none reads any."""
        total = sum(self.works)
        return (self.bytes, total) if total else (self.finished, len(self.works))

    def facts(self) -> dict[str, Any]:
        """See the base class."""
        return {
            "stage": self.name,
            "number": self.number,
            "of": self.of or None,
            "tasks_done": self.finished,
            "tasks": len(self.works),
            "reused": self.reused,
            "documents": self.documents,
            "bytes": self.bytes,
            "bytes_total": sum(self.works),
        }

    def line(self) -> str:
        """`[3/32] clean: 3/12 tasks, 7,431 documents, 21.3 MB/s, 512.0 MB in memory, 4.0s`."""
        place = f"[{self.number}/{self.of}] " if self.of else ""
        parts = [f"{place}{self.name}: {self.finished}/{pluralise(len(self.works), 'task')}"]
        if self.reused:
            parts.append(f"{self.reused} reused")
        if self.documents:
            parts.append(pluralise(self.documents, "document"))
        rate = self.bytes / 1e6 / max(self.seconds(), 1e-3)
        if rate >= _LEAST_RATE:
            parts.append(f"{rate:.1f} MB/s")
        return ", ".join([*parts, *self.end_of_line()])


@dataclass(kw_only=True)
class Meter(_Amount):
    """Counts finished things (samples, tokens, rows); `total` is None where it cannot be known."""

    label: str
    unit: str
    total: int | None
    done: int = field(default=0, init=False)

    def advance(self, count: int, total: int | None = None) -> None:
        """`count` more are finished; `total` is a better estimate, if there is one."""
        self.done += count
        self.total = total if total is not None else self.total
        self.changed()

    def extent(self) -> tuple[int, int | None]:
        """See the base class."""
        return self.done, self.total

    def facts(self) -> dict[str, Any]:
        """See the base class."""
        return {"label": self.label, "unit": self.unit, "done": self.done, "total": self.total}

    def line(self) -> str:
        """`rows: 4,000 of 10,000 samples, 1,234 a second, 512.0 MB in memory, about 5s left`."""
        of = f" of {self.total:,}" if self.total is not None else ""
        rate = self.done / max(self.seconds(), 1e-3)
        first = f"{self.label}: {self.done:,}{of} {self.unit}, {rate:,.0f} a second"
        return ", ".join([first, *self.end_of_line()])


class Progress:
    """What one command shows."""

    def __init__(self, quiet: bool = False, as_json: bool = False) -> None:
        self.output = Printer(quiet, as_json)
        self.timings: dict[str, tuple[float, int]] = {}
        self._started = time.monotonic()
        self._expected = self._begun = 0
        self._rebuilding = ""

    def expect(self, stages: int) -> None:
        """About so many stages are to come; lines then say which of how many runs."""
        self._expected, self._begun = stages, 0

    def note(self, message: str) -> None:
        """One line the user should know."""
        self.output.tell("note", f"note: {name_urls(message)}", text=name_urls(message))

    def rebuilding(self, stage: str, problem: str) -> None:
        """A committed shard is missing or damaged; said once per stage, the journal lists all."""
        if self._rebuilding != stage:
            self._rebuilding = stage
            self.note(problem)

    def reused(self, stage: str, tasks: int) -> None:
        """A stage was up to date."""
        number, of = self._next()
        place = f"[{number}/{of}] " if of else ""
        line = f"{place}{stage}: reused ({pluralise(tasks, 'task')})"
        self.output.tell("reused", line, stage=stage, number=number, of=of or None, tasks=tasks)

    @contextmanager
    def stage(self, name: str, works: Sequence[int], reused: int) -> Iterator[StageProgress]:
        """Show one stage while it runs; its time and bytes are kept in `timings`."""
        number, of = self._next()
        state = StageProgress(
            output=self.output, name=name, number=number, of=of, works=works, reused=reused
        )
        try:
            with state.bar():
                yield state
        finally:
            self.timings[name] = (state.seconds(), state.bytes)
        state.tell()

    @contextmanager
    def meter(self, label: str, unit: str, total: int | None) -> Iterator[Meter]:
        """Show something that is counted while it runs."""
        state = Meter(output=self.output, label=label, unit=unit, total=total)
        with state.bar():
            yield state

    def done(self, stages: int, reused: int) -> None:
        """Everything is finished."""
        seconds = time.monotonic() - self._started
        kept = f", {reused:,} reused" if reused else ""
        line = f"done: {pluralise(stages, 'stage')}{kept}, {format_duration(seconds)}"
        self.output.tell("done", line, stages=stages, reused=reused, seconds=round(seconds, 3))

    def _next(self) -> tuple[int, int]:
        self._begun += 1
        if self._expected:
            self._expected = max(self._expected, self._begun)
        return self._begun, self._expected
