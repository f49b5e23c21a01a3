"""Outputs of a module over a global batch, made of those of its leaves and taken apart.

Tensors with a first dimension are concatenated on it, leaf after leaf, whatever its size in each.
A 0-d float is a mean over the samples of its leaf: the global one is weighted by samples. A 0-d
integer counts: the global one is the sum. Everything else must be the same in all leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils import _pytree

from wafer_backend.errors import StepError

Join = Literal["rows", "mean", "sum", "same"]


@dataclass(frozen=True)
class _Slot:
    """One place of the output: how leaves join, the global value, the rows of every leaf."""

    join: Join
    value: Any
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class GlobalOutput:
    """The output over all leaves. `samples`: of every leaf."""

    structure: _pytree.TreeSpec
    slots: tuple[_Slot, ...]
    samples: tuple[int, ...]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The global tensors, in order."""
        return [slot.value for slot in self.slots if slot.join != "same"]

    def rebuilt(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the module would return for the whole batch, with these tensors in it."""
        given = iter(tensors)
        values = [s.value if s.join == "same" else next(given) for s in self.slots]
        return _pytree.tree_unflatten(values, self.structure)

    def leaf_gradients(
        self, leaf: int, output: Any, gradients: Sequence[torch.Tensor | None]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(tensor, gradient) of one leaf's output, from the gradients of `tensors`."""
        values, structure = _pytree.tree_flatten(output)
        if structure != self.structure:
            raise StepError("the module returned a different structure when its forward ran again")
        given = iter(gradients)
        pairs = []
        for slot, value in zip(self.slots, values, strict=True):
            gradient = None if slot.join == "same" else next(given)
            if gradient is not None:
                pairs.append((value, self._share(slot, leaf, value, gradient)))
        return pairs

    def _share(
        self, slot: _Slot, leaf: int, value: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor:
        if slot.join == "rows":
            first = sum(slot.rows[:leaf])
            share = gradient[first : first + slot.rows[leaf]]
        elif slot.join == "mean":
            share = gradient * (self.samples[leaf] / sum(self.samples))
        else:
            share = gradient
        if share.shape != value.shape:
            raise StepError(
                f"an output had the shape {tuple(share.shape)}, and {tuple(value.shape)} when its "
                "forward ran again"
            )
        return share.to(value.dtype)


def join_outputs(outputs: Sequence[Any], samples: Sequence[int], *, scalars: Join) -> GlobalOutput:
    """The global output; `scalars`: how 0-d floats join, "mean" or "sum".

    Raises StepError when leaves differ in structure, in trailing dimensions, or in what must agree.
    """
    flat = [_pytree.tree_flatten(output) for output in outputs]
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise StepError("the module returned different structures for two leaves of one batch")
    columns = zip(*(values for values, _ in flat), strict=True)
    slots = tuple(_slot(values, samples, scalars) for values in columns)
    return GlobalOutput(structure, slots, tuple(samples))


def _slot(values: tuple[Any, ...], samples: Sequence[int], scalars: Join) -> _Slot:
    first = values[0]
    if not isinstance(first, torch.Tensor):
        if scalars == "sum" and isinstance(first, int) and not isinstance(first, bool):
            return _Slot("same", sum(values))
        if any(value != first for value in values):
            raise StepError(
                f"leaves of one batch returned {first!r} and something else in the same place; "
                "return tensors for what depends on the samples"
            )
        return _Slot("same", first)
    if first.ndim:
        return _Slot("rows", _concatenated(values), tuple(len(value) for value in values))
    if not first.is_floating_point() or scalars == "sum":
        return _Slot("sum", _number(sum(value.item() for value in values), first))
    weighted = sum(value.item() * count for value, count in zip(values, samples, strict=True))
    return _Slot("mean", _number(weighted / sum(samples), first))


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def _concatenated(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
    if len({(value.shape[1:], value.dtype) for value in values}) > 1:
        shapes = sorted({str(tuple(value.shape)) for value in values})
        raise StepError(
            f"leaves of one batch returned tensors of shapes {', '.join(shapes)}; all but the "
            "first dimension must agree"
        )
    return torch.cat(values)
