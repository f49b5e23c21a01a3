"""Who did what when: spans of the roles, bytes moved, bytes resident, and the Chrome trace of them.

Times are of this host. Roles that would run side by side on a cluster take turns here, and the
trace shows that: it is no simulation of a CS-2 (`performance_model` is).
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from pipeline.core import storage
from pipeline.core.storage import WrittenFile

Clock = Callable[[], int]
Kind = Literal["step", "stream", "compute", "reduce", "optimizer", "stall"]

COORDINATOR, MEMORYX, SWARMX = "coordinator", "MemoryX", "SwarmX"
ACTIVATION_WORKER = "activation worker"
_FIRST = (COORDINATOR, MEMORYX, SWARMX)
_NOTE = "times measured on this host, not of a CS-2"


def wafer_role(system: int) -> str:
    """The track of one wafer."""
    return f"wafer {system}"


def clock_of(device: torch.device) -> Clock:
    """Nanoseconds on this host; on a GPU after all that was launched has finished.

    Waiting for a GPU at both ends of a span makes its time true and the step slower.
    """
    if device.type != "cuda":
        return time.perf_counter_ns

    def settled() -> int:
        torch.cuda.synchronize(device)
        return time.perf_counter_ns()

    return settled


class Span(NamedTuple):
    """What one role did, in nanoseconds since the timeline began; spans of a role nest."""

    role: str
    kind: Kind
    name: str
    start: int
    end: int


class _Count(NamedTuple):
    """Values of one role at one time."""

    role: str
    name: str
    at: int
    values: dict[str, int]


@dataclass
class BytesMoved:
    """Bytes that passed a role: weights towards the wafers, gradients away from them."""

    weights_down: int = 0
    gradients_up: int = 0


class Timeline:
    """Records spans and bytes; `CompiledModule.profile` makes an engine tell it.

    `moved`: bytes by role. `resident`: peak bytes by role, then by what they hold; those of wafers
    are peaks since the start of the run. `clock`: nanoseconds, see `clock_of`.
    """

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self.clock = clock
        self.spans: list[Span] = []
        self.moved: dict[str, BytesMoved] = {}
        self.resident: dict[str, dict[str, int]] = {}
        self._counts: list[_Count] = []
        self._begun = clock()

    def now(self) -> int:
        """Nanoseconds since the timeline began."""
        return self.clock() - self._begun

    @contextlib.contextmanager
    def span(self, role: str, kind: Kind, name: str) -> Iterator[None]:
        """`role` does something of this kind inside the block, errors included."""
        start = self.now()
        try:
            yield
        finally:
            self.add(Span(role, kind, name, start, self.now()))

    def add(self, span: Span) -> None:
        """Record a span that has ended."""
        self.spans.append(span)

    def count_moved(self, role: str, *, down: int = 0, up: int = 0) -> None:
        """Count bytes of weights down, and of gradients up."""
        moved = self.moved.setdefault(role, BytesMoved())
        moved.weights_down += down
        moved.gradients_up += up

    def note_resident(self, role: str, **held: int) -> None:
        """Bytes that a role holds; the most is kept. They are drawn as a curve beside its track."""
        known = self.resident.setdefault(role, {})
        for what, size in held.items():
            known[what] = max(size, known.get(what, 0))
        self._counts.append(_Count(role, "resident bytes", self.now(), held))

    def trace(self, keep: Callable[[str], bool] = lambda role: True) -> dict[str, Any]:
        """The Chrome trace (JSON object format), times in microseconds; `keep`: of which roles.

        One track per role. Bytes moved and resident are in `otherData`, curves in counter events.
        """
        counts = [c for c in self._counts if keep(c.role)]
        spans = [s for s in self.spans if keep(s.role)]
        named = {span.role for span in spans} | {count.role for count in counts}
        roles = sorted(named | set(filter(keep, _FIRST)), key=_order)
        tracks = {role: number for number, role in enumerate(roles, start=1)}
        events = [_named("process_name", 0, {"name": "wafer_backend"})]
        for role, track in tracks.items():
            events.append(_named("thread_name", track, {"name": role}))
            events.append(_named("thread_sort_index", track, {"sort_index": track}))
        # Outer spans first: viewers nest events of a track by the order of equal starts.
        for span in sorted(spans, key=lambda s: (s.start, -s.end)):
            events.append(_complete(span, tracks[span.role]))
        events += [_counter(count, tracks[count.role]) for count in counts]
        moved = {role: asdict(m) for role, m in self.moved.items() if keep(role)}
        resident = {role: dict(held) for role, held in self.resident.items() if keep(role)}
        other = {"note": _NOTE, "bytes_moved": moved, "resident_bytes": resident}
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}

    def write(self, path: Path, keep: Callable[[str], bool] = lambda role: True) -> WrittenFile:
        """Publish the trace, for Perfetto or chrome://tracing. Raises ResourceError."""
        return storage.write_json(path, self.trace(keep))


def _order(role: str) -> tuple[int, int, str]:
    """Tracks as data flows: coordinator, MemoryX, SwarmX, wafers by number, others."""
    if role in _FIRST:
        return 0, _FIRST.index(role), role
    word, _, number = role.rpartition(" ")
    return (1, int(number), role) if word == "wafer" else (2, 0, role)


def _named(name: str, track: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": 1, "tid": track, "args": args}


def _complete(span: Span, track: int) -> dict[str, Any]:
    times = {"ts": span.start / 1000, "dur": (span.end - span.start) / 1000}
    return {"ph": "X", "name": span.name, "cat": span.kind, "pid": 1, "tid": track} | times


def _counter(count: _Count, track: int) -> dict[str, Any]:
    name = f"{count.role}: {count.name}"
    event = {"ph": "C", "name": name, "pid": 1, "tid": track, "ts": count.at / 1000}
    return event | {"args": count.values}
