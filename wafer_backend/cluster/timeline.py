"""Who did what when, and how long each module took, on this host: Chrome trace and op profile.

Roles that would run at the same time on a cluster take turns here, and the trace shows that; it is
no simulation of a CS-2. Forward hooks tell which module runs; autograd numbers its nodes as they
are made, so hooks on those made meanwhile time that module's backward. A time is the module's own,
without modules inside it, and includes waiting for weights. Forward that is recomputed in backward
counts as forward; accumulation into parameters that stay on a target belongs to no module.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from pipeline.core import storage
from pipeline.core.storage import WrittenFile
from wafer_backend.streaming.weights import tensors_in

Clock = Callable[[], int]
Kind = Literal["step", "stream", "compute", "reduce", "optimizer", "stall"]

COORDINATOR, MEMORYX, SWARMX = "coordinator", "MemoryX", "SwarmX"
ACTIVATION_WORKER = "activation worker"
_FIRST = (COORDINATOR, MEMORYX, SWARMX)
_NOTE = "times measured on this host, not of a CS-2"


def wafer_role(system: int) -> str:
    """The track of one wafer."""
    return f"wafer {system}"


def make_clock(device: torch.device) -> Clock:
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
    are peaks since the start of the run. `clock`: nanoseconds, see `make_clock`.
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

    def note_resident(self, role: str, **sizes: int) -> None:
        """Bytes that a role holds; the most is kept. They are drawn as a curve beside its track."""
        most = self.resident.setdefault(role, {})
        for what, size in sizes.items():
            most[what] = max(size, most.get(what, 0))
        self._counts.append(_Count(role, "resident bytes", self.now(), sizes))

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


_UNNUMBERED = 2**64 - 1  # autograd's number of nodes that accumulate into a leaf tensor
_COLUMNS = ("PYTORCH MODULE NAME", "CSX TIME (in ms)", "% CSX TIME")
_HEADING = "Op profile: times measured on this host, not of a CS-2"


@dataclass(frozen=True)
class ModuleTime:
    """One row: `name` ends with .fwd or .bwd; milliseconds; percent of all modules' time."""

    name: str
    milliseconds: float
    percent: float


class ModuleTimes:
    """Times by module and direction, added up over all leaves that ran inside `leaf`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spent: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0
        self._firsts: list[int] = []
        self._timed: set[int] = set()
        self._outside: object = None

    @contextlib.contextmanager
    def leaf(self, module: nn.Module) -> Iterator[None]:
        """Time the modules of `module` inside the block, which runs forward and backward of one."""
        handles = []
        self._outside = torch._C._current_autograd_node()
        try:
            for name, child in module.named_modules():
                before, after = self._hooks(name or type(module).__name__)
                handles.append(child.register_forward_pre_hook(before, prepend=True))
                handles.append(child.register_forward_hook(after, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._open.clear()
            self._firsts.clear()
            self._timed.clear()
            self._outside = None

    def rows(self, top: int = 10) -> list[ModuleTime]:
        """The `top` times, longest first; equal ones by name."""
        total = sum(self._spent.values()) or 1
        longest = sorted(self._spent.items(), key=lambda item: (-item[1], item[0]))[:top]
        return [ModuleTime(name, spent / 1e6, 100 * spent / total) for name, spent in longest]

    def table(self, top: int = 10) -> str:
        """The rows as text, in the columns of the cstorch profiler."""
        body = [(r.name, f"{r.milliseconds:.3f}", f"{r.percent:.2f}") for r in self.rows(top)]
        widths = [max(map(len, column)) for column in zip(_COLUMNS, *body, strict=True)]
        rule = ["-" * (width + 2) for width in widths]
        lines = [_line(_COLUMNS, widths), f"|{'+'.join(rule)}|"]
        lines += [_line(row, widths) for row in body]
        edge = f"+{'+'.join(rule)}+"
        return "\n".join([_HEADING, edge, *lines, edge])

    def _hooks(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        forward, backward = f"{name}.fwd", f"{name}.bwd"

        def before(child: nn.Module, args: Any) -> None:
            self._firsts.append(torch._C._autograd._get_sequence_nr())
            self._enter(forward)

        def after(child: nn.Module, args: Any, output: Any) -> None:
            first = self._firsts.pop()
            # Nodes of a forward that is run again in backward only hold what they saved.
            again = torch._C._current_autograd_node() is not self._outside
            if torch.is_grad_enabled() and not again:
                self._time_nodes(output, first, backward)
            self._leave()

        return before, after

    def _time_nodes(self, output: Any, first: int, name: str) -> None:
        """Put hooks on the nodes made since `first`, but on those of modules inside."""
        waiting = [t.grad_fn for t in tensors_in(output)]
        seen: set[int] = set()
        while waiting:
            node = waiting.pop()
            number = _UNNUMBERED if node is None else node._sequence_nr()
            if node is None or not first <= number < _UNNUMBERED or number in seen:
                continue
            seen.add(number)
            if number not in self._timed:
                self._timed.add(number)
                node.register_prehook(lambda gradients: self._enter(name))
                node.register_hook(lambda inputs, outputs: self._leave())
            waiting += [following for following, _ in node.next_functions]

    def _enter(self, name: str) -> None:
        self._credit()
        self._open.append(name)

    def _leave(self) -> None:
        self._credit()
        self._open.pop()

    def _credit(self) -> None:
        """Time since the last change belongs to the innermost that is open."""
        now = self._clock()
        if self._open:
            self._spent[self._open[-1]] += now - self._since
        self._since = now


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    name, *numbers = (
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join([name, *numbers])} |"
