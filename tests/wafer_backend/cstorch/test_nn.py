"""`cstorch.nn`: products with sparse inputs next to dense ones, the loss of segmentation next to
its formula written out in numpy.

Legend: B samples, S positions, E experts, N inputs, K outputs, C classes.
"""

import numpy as np
import pytest
import torch
from torch import nn as torch_nn

import wafer_backend as cstorch
from wafer_backend.cstorch import nn


def dense(values: torch.Tensor, indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Every expert for every row, of which one is taken."""
    every = torch.einsum("bsin,ken->bsiek", values, weight)
    return every.take_along_dim(indices[..., None, None], 3).squeeze(3)


def test_sparse_products_and_their_gradients_are_those_of_dense_ones() -> None:
    torch.manual_seed(0)
    values = torch.randn(3, 5, 2, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 7, 4, dtype=torch.float64, requires_grad=True)
    indices = torch.randint(0, 6, (3, 5, 2))  # expert 6 has no row
    made = nn.functional.sparse_matmul(values, indices, weight)
    torch.testing.assert_close(made, dense(values, indices, weight))
    mine = torch.autograd.grad(made.sin().sum(), [values, weight])
    theirs = torch.autograd.grad(dense(values, indices, weight).sin().sum(), [values, weight])
    torch.testing.assert_close(mine, theirs)
    assert not mine[1][:, 6].any()


def test_no_row_and_wrong_shapes_and_indices() -> None:
    weight = torch.zeros(6, 7, 4)
    empty = nn.sparse_matmul(torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.int64), weight)
    assert empty.shape == (2, 0, 6)
    with pytest.raises(cstorch.BackendConfigError, match=r"expected \(…, rows, N\)"):
        nn.sparse_matmul(torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64), weight)
    with pytest.raises(cstorch.StepError, match="an index is 7, of 7 experts"):
        nn.sparse_matmul(torch.zeros(1, 4), torch.tensor([7]), weight)
    with pytest.raises(cstorch.BackendConfigError, match="65,536 experts"):
        nn.sparse_matmul(torch.zeros(1, 1), torch.tensor([0]), torch.zeros(1, 2**16, 1))


def test_rows_that_are_masked_are_zero() -> None:
    torch.manual_seed(0)
    values = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 1]], dtype=torch.int16)
    made = nn.sparse_act_matmul(values, mask, weight, 3)
    expected = (values @ weight.T) * mask[..., None]
    torch.testing.assert_close(made, expected)
    mine = torch.autograd.grad(made.sin().sum(), [values, weight])
    torch.testing.assert_close(mine, torch.autograd.grad(expected.sin().sum(), [values, weight]))
    with pytest.raises(cstorch.StepError, match="3 rows are used; dense_capacity is 2"):
        nn.sparse_act_matmul(values, mask, weight, 2)
    with pytest.raises(cstorch.BackendConfigError, match="the mask has the shape"):
        nn.sparse_act_matmul(values, mask[:, :2], weight)


@pytest.mark.parametrize("include_background", [True, False])
def test_dice_and_cross_entropy(include_background: bool) -> None:
    draw = np.random.default_rng(0)
    logits, labels = draw.normal(size=(2, 3, 4, 5, 6)), draw.integers(0, 3, (2, 4, 5, 6))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    cross, dice = [], []
    for sample in range(2):
        for voxel in np.ndindex(4, 5, 6):
            cross.append(-np.log(p[(sample, labels[(sample, *voxel)], *voxel)]))
        for c in range(0 if include_background else 1, 3):
            t = labels[sample] == c
            dice.append(2 * (t * p[sample, c]).sum() / (t.sum() + p[sample, c].sum() + 1e-6))
    loss = nn.DiceCELoss(3, include_background, wc=0.3, wd=0.7)
    made = loss(torch.tensor(logits), torch.tensor(labels), [2, 3, 4, 5, 6])
    assert made.item() == pytest.approx(0.3 * np.mean(cross) + 0.7 * (1 - np.mean(dice)), rel=1e-12)


def test_dice_needs_a_class() -> None:
    with pytest.raises(cstorch.BackendConfigError, match="without the background there must be 2"):
        nn.DiceCELoss(1, include_background=False)


def test_marks_change_nothing() -> None:
    values = torch.randn(3)
    scope = nn.Scope("KERNEL")
    assert isinstance(scope, torch_nn.Module)
    assert scope.exit(scope(values)) is values
