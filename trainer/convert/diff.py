"""Compares two checkpoints of one format tensor by tensor."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.core.errors import ConfigError
from trainer.convert.lazy import LazyTensor
from trainer.convert.sources import open_raw

_ROWS = 1024


@dataclass(frozen=True)
class TensorDifference:
    """One tensor that is not the same in both: what differs, in words."""

    name: str
    what: str


@dataclass(frozen=True)
class CheckpointComparison:
    """All tensors of both sides, and those that differ."""

    tensors: int
    differences: tuple[TensorDifference, ...]
    largest: float


def compare(
    left: Path, right: Path, tolerance: float = 0.0, unsafe: bool = False
) -> CheckpointComparison:
    """Names, shapes, dtypes and the largest absolute difference of every tensor.

    Equal means within `tolerance`; NaN equals NaN in the same place. One tensor of each side is in
    memory. Raises ConfigError for two formats, and what opening them raises.
    """
    if not tolerance >= 0:
        raise ConfigError(f"--tolerance {tolerance}: expected a number of at least 0")
    with open_raw(left, unsafe) as (left_form, ours), open_raw(right, unsafe) as (form, theirs):
        if left_form != form:
            raise ConfigError(
                f"{left} has format {left_form}, {right} has {form}; convert one of them first"
            )
        found, largest = [], 0.0
        for name in dict.fromkeys([*ours, *theirs]):
            what, size = _difference(ours.get(name), theirs.get(name), tolerance)
            largest = max(largest, size)
            if what:
                found.append(TensorDifference(name, what))
        return CheckpointComparison(len(ours.keys() | theirs.keys()), tuple(found), largest)


def _difference(
    left: LazyTensor | None, right: LazyTensor | None, tolerance: float
) -> tuple[str, float]:
    """(what differs or "", largest absolute difference)."""
    if left is None or right is None:
        return f"only in the {'right' if left is None else 'left'}", 0.0
    if left.shape != right.shape:
        return f"shape {left.shape} and {right.shape}", 0.0
    size = _largest(left, right)
    kinds = "" if left.dtype == right.dtype else f"{_short(left)} and {_short(right)}, "
    if kinds or size > tolerance:
        return f"{kinds}largest difference {size:g}", size
    return "", size


def _largest(left: LazyTensor, right: LazyTensor) -> float:
    """Largest |left - right| in float64; infinite where only one is NaN or an infinity differs."""
    largest = 0.0
    for a, b in _rows(left, right):
        x, y = a.to(torch.float64), b.to(torch.float64)
        same = (x == y) | (x.isnan() & y.isnan())
        gap = (x - y).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0.0)
        largest = max(largest, float(gap.max())) if gap.numel() else largest
    return largest


def _rows(left: LazyTensor, right: LazyTensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    a, b = left.read(), right.read()
    if a.ndim == 0:
        a, b = a[None], b[None]
    for start in range(0, len(a), _ROWS):
        yield a[start : start + _ROWS], b[start : start + _ROWS]


def _short(tensor: LazyTensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
