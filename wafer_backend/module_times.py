"""The op profile: how long each module takes, forward and backward, on this host.

Forward hooks, there for the profiled leaves only, tell which module runs. Autograd numbers its
nodes as they are made, so those made while a module ran are that module's, and hooks on them time
backward. A time is the module's own, without the modules inside it, and with its waiting for
weights; so times add up to the whole. A module that several names share goes by its first one.

What is recomputed in backward counts as forward again. Accumulation into the parameters of a target
that keeps its weights belongs to no module.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wafer_backend.structure import tensors_in
from wafer_backend.timeline import Clock

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
