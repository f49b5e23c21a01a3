"""What a module returns: the loss contract, and the outputs of its leaves as one.

A module of ours returns the pair (loss_sum, n_counted): a 0-d float tensor in nats, and the whole
number of labels in it. Any module may return one 0-d float tensor instead, which is the mean over
its samples, or their sum with `loss_reduction="sum"`.

Other outputs are joined over leaves: tensors with a first dimension are concatenated on it, 0-d
floats are means weighted by samples, 0-d integers are added, everything else must be equal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils import _pytree

from wafer_backend.errors import StepError

LossScaling = Literal["num_tokens", "batch_size"]
LossReduction = Literal["mean", "sum"]
LossKind = Literal["pair", "mean", "sum"]


class OtherPath(Exception):
    """A module returned no loss on the loss path, or a loss on the other: the call starts again."""


@dataclass(frozen=True)
class LossRule:
    """What the summed gradient of loss pairs is divided by, once, after reduction.

    `num_tokens`: D = counted labels of the global batch. `batch_size`: D = B / loss_weight.
    """

    scaling: LossScaling = "num_tokens"
    weight: float = 1.0

    def divisor(self, n_counted: int, batch_size: int) -> float:
        """D of one global batch."""
        return float(n_counted) if self.scaling == "num_tokens" else batch_size / self.weight


@dataclass(frozen=True)
class GlobalLoss:
    """The loss of a global batch: sums over its leaves (float64) and the first leaf's own words.

    `like`: the first leaf's loss, without its graph.
    """

    loss_sum: float
    n_counted: int
    batch_size: int
    like: "LeafLoss"

    @property
    def mean(self) -> float:
        """Nats per counted label, mean over samples, or the sum where a sum was asked for."""
        return self.loss_sum if self.like.kind == "sum" else self.loss_sum / self.n_counted

    def divisor(self, rule: LossRule) -> float:
        """D: by the rule for a pair, samples for a mean, 1 for a sum."""
        if self.like.kind == "pair":
            return rule.divisor(self.n_counted, self.batch_size)
        return 1.0 if self.like.kind == "sum" else float(self.batch_size)


@dataclass(frozen=True)
class LeafLoss:
    """The loss of one leaf: `weight` * `value` is its share of the loss sum.

    `value`: what the module returned, 0-d, with its graph. `n_counted`: labels of a pair, else
    samples. `counted`: n_counted as the module returned it, for a pair.
    """

    kind: LossKind
    value: torch.Tensor
    weight: int
    n_counted: int
    counted: Any = None

    @property
    def loss_sum(self) -> float:
        """The share of the loss sum, float64."""
        return float(self.value.detach()) * self.weight

    def backward(self, scale: float) -> None:
        """Backward of `scale` times the share of the loss sum."""
        if self.value.requires_grad:
            start = torch.full_like(self.value, scale * self.weight)
            torch.autograd.backward([self.value], [start])


def leaf_loss(output: Any, samples: int, reduction: LossReduction) -> LeafLoss | None:
    """What a module returned, read as a loss; None when it is something else.

    A pair is one only if its second member is an integer: (loss, accuracy) is not.
    """
    if _is_scalar(output):
        if reduction == "sum":
            return LeafLoss("sum", output, 1, samples)
        return LeafLoss("mean", output, samples, samples)
    if _looks_like_a_pair(output) and not _is_float(output[1]):
        return LeafLoss("pair", output[0], 1, int(output[1]), output[1])
    return None


def required_loss(output: Any, samples: int, reduction: LossReduction, where: str) -> LeafLoss:
    """A loss, or StepError that names `where`; a pair may count in whole float numbers here."""
    if _looks_like_a_pair(output):
        counted = float(output[1])
        if not (counted >= 0 and counted.is_integer()):
            raise StepError(f"{where}: n_counted must be a whole number of labels, got {counted}")
        return LeafLoss("pair", output[0], 1, int(counted), output[1])
    loss = leaf_loss(output, samples, reduction)
    if loss is None:
        raise StepError(
            f"{where}: the module must return (loss_sum, n_counted) or one 0-d loss, both as "
            f"floating-point tensors; got {_described(output)}"
        )
    return loss


def check_finite(what: str, value: float, step: int) -> None:
    """Raise StepError naming the step for a loss or a norm that is not finite."""
    if not math.isfinite(value):
        raise StepError(
            f"step {step}: the {what} is {value}; weights are those after step {step - 1}"
        )


def check_same_kind(losses: Sequence[LeafLoss], step: int) -> None:
    """Raise StepError when leaves of one batch return different kinds of loss."""
    kinds = sorted({loss.kind for loss in losses})
    if len(kinds) > 1:
        raise StepError(
            f"step {step}: leaves of one batch returned losses of different kinds: {kinds}"
        )


def check_counted(n_counted: int, step: int) -> None:
    """Raise StepError naming the step for a batch without labels (D = 0)."""
    if n_counted == 0:
        raise StepError(
            f"step {step}: no label of the global batch counts (D = 0): every loss mask is zero"
        )


def _looks_like_a_pair(output: Any) -> bool:
    if not (isinstance(output, tuple) and len(output) == 2 and _is_scalar(output[0])):
        return False
    counted = output[1]
    if isinstance(counted, torch.Tensor):
        return counted.ndim == 0 and counted.dtype != torch.bool
    return isinstance(counted, int | float) and not isinstance(counted, bool)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point()


def _is_float(value: Any) -> bool:
    return (
        value.is_floating_point() if isinstance(value, torch.Tensor) else isinstance(value, float)
    )


def _described(output: Any) -> str:
    if isinstance(output, torch.Tensor):
        return f"a tensor of shape {tuple(output.shape)} and {output.dtype}"
    if isinstance(output, tuple):
        return f"({', '.join(_described(item) for item in output)})"
    return type(output).__name__


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
        return share.to(value.device, value.dtype)


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
