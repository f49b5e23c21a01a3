"""What `cerebras.pytorch.nn` and `cerebras.pytorch.nn.functional` have: losses and layers of torch,
products with sparse inputs, a loss of segmentation, and marks that compute nothing here.

Legend: B samples, C classes, N inputs, K outputs of a weight, E experts, S positions.
"""

import sys

import torch
from torch import nn
from torch.nn import SmoothL1Loss
from torch.nn import functional as F
from torch.nn.functional import one_hot

from wafer_backend.cstorch.weight_rules import SelectiveGrad
from wafer_backend.errors import BackendConfigError, StepError

__all__ = [
    "DiceCELoss",
    "Scope",
    "SelectiveGrad",
    "SmoothL1Loss",
    "StripPadding",
    "functional",
    "one_hot",
    "sparse_act_matmul",
    "sparse_matmul",
]

functional = sys.modules[__name__]

_MOST_EXPERTS = 2**16


class StripPadding(nn.Module):
    """Marks padding that a wafer need not compute. Here every position is computed."""

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`values` as they are, of any shape."""
        return values


class Scope(nn.Module):
    """Marks where a kernel by this name begins, and with `exit` where it ends. There is no compiler
    that reads marks, so both return their tensor."""

    def __init__(self, scope_name: str) -> None:
        super().__init__()
        self.scope_name = scope_name

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The tensor as it is."""
        return input

    def exit(self, input: torch.Tensor) -> torch.Tensor:
        """The tensor as it is."""
        return input


def sparse_matmul(
    input_values: torch.Tensor, input_indices: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Each row times the weight of the expert that it goes to: out[…, i] = weight[:, e] @ in[…, i],
    where e = indices[…, i].

    `input_values` (…, rows, N), `input_indices` (…, rows) integers below E, `weight` (K, E, N);
    returns (…, rows, K). Only experts with rows are multiplied, in the order of their numbers.
    Raises BackendConfigError for shapes that do not fit, and from 2**16 experts on, as the
    operator does. Source: its docstring in `cerebras.pytorch.nn.functional`, R2.10.
    """
    if (
        weight.ndim != 3
        or input_values.shape[:-1] != input_indices.shape
        or input_values.shape[-1] != weight.shape[2]
    ):
        raise BackendConfigError(
            f"sparse_matmul: values {tuple(input_values.shape)}, indices "
            f"{tuple(input_indices.shape)}, weight {tuple(weight.shape)}; expected (…, rows, N), "
            "(…, rows) and (K, E, N)"
        )
    if weight.shape[1] >= _MOST_EXPERTS:
        raise BackendConfigError(
            f"sparse_matmul: {weight.shape[1]:,} experts; indices must fit 16 bits"
        )
    rows = input_values.reshape(-1, weight.shape[2])
    indices = input_indices.reshape(-1).long()
    order = indices.argsort(stable=True)
    counts = indices.bincount(minlength=weight.shape[1]).tolist()
    if len(counts) > weight.shape[1]:
        raise StepError(
            f"sparse_matmul: an index is {len(counts) - 1}, of {weight.shape[1]} experts"
        )
    parts = [
        part @ weight[:, expert].T
        for expert, part in enumerate(torch.split(rows[order], counts))
        if len(part)
    ]
    shape = (*input_values.shape[:-1], weight.shape[0])
    if not parts:
        return input_values.new_zeros(shape)
    return torch.cat(parts)[order.argsort()].reshape(shape)


def sparse_act_matmul(
    input_value: torch.Tensor,
    input_mask: torch.Tensor,
    weight: torch.Tensor,
    dense_capacity: int | None = None,
) -> torch.Tensor:
    """The product of the rows whose mask is 1, and zeros for the others.

    `input_value` (…, S, N), `input_mask` (…, S), `weight` (K, N); returns (…, S, K).
    `dense_capacity`: at most so many rows of each S are 1, or it is a StepError. Raises
    BackendConfigError for a mask of another shape.
    """
    if input_value.shape[:-1] != input_mask.shape:
        raise BackendConfigError(
            f"sparse_act_matmul: the mask has the shape {tuple(input_mask.shape)}; expected "
            f"{tuple(input_value.shape[:-1])}"
        )
    used = input_mask != 0
    if dense_capacity is not None and int(used.sum(-1).max()) > dense_capacity:
        raise StepError(
            f"sparse_act_matmul: {int(used.sum(-1).max())} rows are used; dense_capacity is "
            f"{dense_capacity}"
        )
    product = input_value[used] @ weight.T
    return product.new_zeros(*input_value.shape[:-1], weight.shape[0]).index_put((used,), product)


class DiceCELoss(nn.Module):
    """wc · cross entropy + wd · (1 - dice), the mean Dice coefficient of softmax probabilities.

    dice of one sample and class: 2 · Σ t p / (Σ t + Σ p + 1e-6) over the voxels, where t is 1 for
    voxels of the class and p the class's probability; its mean is over samples and classes, without
    class 0 unless `include_background`. Source: `cerebras.pytorch.nn.DiceCELoss`, R2.10.
    """

    def __init__(
        self, num_classes: int, include_background: bool, wc: float = 0.5, wd: float = 0.5
    ) -> None:
        super().__init__()
        if num_classes < 2 and not include_background:
            raise BackendConfigError(
                f"DiceCELoss: num_classes is {num_classes}; without the background there must be 2"
            )
        self.num_classes = num_classes
        self.first = 0 if include_background else 1
        self.wc, self.wd = wc, wd

    def forward(
        self, outputs: torch.Tensor, labels: torch.Tensor, input_shape: object = None
    ) -> torch.Tensor:
        """Of logits (B, C, voxels …) and classes (B, voxels …); the shape is that of `outputs`."""
        classes = labels.long()
        chosen = one_hot(classes.flatten(1), self.num_classes).to(outputs.dtype)
        probabilities = outputs.softmax(1).flatten(2).transpose(1, 2)
        both = (chosen * probabilities).sum(1)
        dice = 2 * both / (chosen.sum(1) + probabilities.sum(1) + 1e-6)
        cross = F.cross_entropy(outputs, classes)
        return self.wc * cross + self.wd * (1 - dice[:, self.first :].mean())
