"""The graph of a step: its operations in order, with shapes, dtypes and numbers, and their lines.

The first run of a step writes it down; each later one is compared operation by operation, so that a
difference is found on the line where it is, before anything of it has run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wafer_backend.strict.frames import Line

Description = tuple[Any, ...]


@dataclass(frozen=True)
class TensorShape:
    """What a graph knows of a tensor: its shape and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class Operation:
    """One operation: its name, what it was given, and where."""

    name: str
    inputs: Any
    line: Line

    def __str__(self) -> str:
        return f"{self.name}({', '.join(_words(self.inputs))})"


@dataclass(frozen=True)
class StepDifference:
    """How a step departs from the first one. `rule`: the name of the rule it breaks."""

    rule: str
    text: str


class Graph:
    """Operations of the first run, and a cursor for the run under way."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.runs = 0
        self._next = 0

    def begin(self) -> None:
        """A run begins; what a first run that was given up has left is forgotten."""
        self._next = 0
        if self.runs == 0:
            self.operations.clear()

    def add(self, name: str, inputs: Any, line: Line) -> StepDifference | None:
        """The next operation of a run; a difference if the first run had another one there."""
        if self.runs == 0:
            self.operations.append(Operation(name, inputs, line))
            return None
        at = self._next
        self._next += 1
        if at < len(self.operations):
            first = self.operations[at]
            if first.name == name and first.inputs == inputs:
                return None
            return _difference(first, Operation(name, inputs, line), at + 1)
        what = f"has operation {at + 1}, {name}, where the first run had ended"
        return StepDifference("graph-changed", what)

    def end(self) -> StepDifference | None:
        """A run is through; a difference if the first one had more operations."""
        first, self.runs = self.runs == 0, self.runs + 1
        if first or self._next >= len(self.operations):
            return None
        missing = self.operations[self._next]
        return StepDifference(
            "graph-changed",
            f"ends after {self._next} operations; the first run had {len(self.operations)}, the "
            f"next being {missing} at {missing.line}",
        )


def _difference(first: Operation, now: Operation, place: int) -> StepDifference:
    where = f"operation {place} of the first run, at {first.line}, was"
    if first.name != now.name:
        return StepDifference("graph-changed", f"runs {now}; {where} {first}")
    pairs = zip(_flat(first.inputs), _flat(now.inputs), strict=False)
    different = next(((a, b) for a, b in pairs if a != b), (first, now))
    if all(isinstance(value, int | float) for value in different):
        before, after = different
        return StepDifference(
            "scalar-changed",
            f"gives {now.name} the number {after}; in the first run it was {before}",
        )
    return StepDifference("graph-changed", f"runs {now}; {where} {first}")


def describe_arguments(value: Any) -> Any:
    """What of an operation's arguments is part of a graph: shapes, dtypes, numbers and words."""
    if isinstance(value, torch.Tensor):
        return TensorShape(tuple(value.shape), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(describe_arguments, value))
    if isinstance(value, Mapping):
        return tuple((key, describe_arguments(item)) for key, item in value.items())
    if isinstance(value, float):
        return value if value == value else "nan"
    if isinstance(value, bool | int | str | torch.dtype | None):
        return value
    return type(value).__name__


def describe_batch(value: Any, path: str = "") -> Description:
    """(path, shape) of every tensor in a batch, in order; other values are not part of a graph."""
    if isinstance(value, torch.Tensor):
        return ((path or "the input", TensorShape(tuple(value.shape), value.dtype)),)
    if isinstance(value, Mapping):
        items: Sequence[tuple[str, Any]] = [(f"{path}[{k!r}]", v) for k, v in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{i}]", v) for i, v in enumerate(value)]
    else:
        return ()
    return tuple(entry for key, item in items for entry in describe_batch(item, key))


def _flat(value: Any) -> list[Any]:
    return [x for item in value for x in _flat(item)] if isinstance(value, tuple) else [value]


def _words(inputs: Any) -> list[str]:
    return [str(value) for value in _flat(inputs) if value is not None and value != ""]
