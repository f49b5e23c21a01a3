"""Tensors on the backend's device, names and NumPy."""

import numpy as np
import pytest
import torch

import wafer_backend as cstorch


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.int32])
def test_filled_tensors(dtype):
    like = torch.empty(2, 3, dtype=torch.float16)
    for made, value in (
        (cstorch.full((2, 3), 7, dtype), 7),
        (cstorch.ones([2, 3], dtype), 1),
        (cstorch.zeros(torch.Size([2, 3]), dtype), 0),
        (cstorch.full_like(like, 7, dtype), 7),
        (cstorch.ones_like(like, dtype), 1),
        (cstorch.zeros_like(like, dtype), 0),
    ):
        assert made.shape == (2, 3)
        assert bool((made == value).all())
        assert dtype is None or made.dtype == dtype


def test_tensor_and_constant():
    made = cstorch.tensor([1, 2], dtype=torch.float32)
    assert made.tolist() == [1.0, 2.0]
    assert not cstorch.make_constant(made.requires_grad_()).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_to_numpy_and_back(dtype):
    value = torch.tensor([1.5, -2.0]).to(dtype)
    assert torch.equal(cstorch.from_numpy(cstorch.to_numpy(value)).to(dtype), value)


def test_from_numpy_copies():
    array = np.zeros(2)
    made = cstorch.from_numpy(array)
    array[0] = 5
    assert made.tolist() == [0, 0]


def test_name_scope_is_a_context_and_a_decorator():
    @cstorch.name_scope("layer")
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    with cstorch.name_scope("block"):
        assert double(torch.ones(())).item() == 2
