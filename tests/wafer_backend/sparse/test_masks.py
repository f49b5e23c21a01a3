"""Masks beside parameters: gradients, packing, NaN of a CS-2."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse import masks


def sparse_parameter() -> nn.Parameter:
    parameter = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    masks.set_mask(parameter, torch.tensor([True, False, True]))
    return parameter


def test_a_dense_parameter_gets_its_gradient_back():
    parameter, gradient = nn.Parameter(torch.ones(3)), torch.ones(3)
    assert masks.mask_gradient(parameter, gradient) is gradient
    assert masks.mask_of(parameter) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_zero_where_pruned_even_when_not_finite(dtype):
    gradient = torch.tensor([1.0, float("inf"), 2.0], dtype=dtype)
    for bad in (float("inf"), float("nan")):
        gradient[1] = bad
        masked = masks.mask_gradient(sparse_parameter(), gradient)
        assert masked.tolist() == [1.0, 0.0, 2.0]
        assert masked.dtype is dtype


def test_weights_are_zero_where_pruned():
    parameter = sparse_parameter()
    assert parameter.tolist() == [1.0, 0.0, 3.0]
    with torch.no_grad():
        parameter.fill_(float("nan"))
    masks.enforce(parameter)
    assert parameter[1] == 0


def test_the_dense_gradient_adds_up_until_gradients_are_cleared():
    parameter = sparse_parameter()
    masks.want_dense(parameter, True)
    one = torch.ones(3)
    parameter.grad = masks.mask_gradient(parameter, one)
    parameter.grad = parameter.grad + masks.mask_gradient(parameter, 2 * one)
    assert masks.dense_gradient(parameter).tolist() == [3, 3, 3]
    parameter.grad = None
    masks.mask_gradient(parameter, 4 * one)
    assert masks.dense_gradient(parameter).tolist() == [4, 4, 4]
    masks.want_dense(parameter, False)
    masks.mask_gradient(parameter, one)
    assert masks.dense_gradient(parameter) is None


def test_the_dense_gradient_is_not_clipped_by_value():
    parameter = sparse_parameter()
    masks.want_dense(parameter, True)
    parameter.grad = masks.mask_gradient(parameter, torch.full((3,), 5.0))
    torch.nn.utils.clip_grad_value_([parameter], 1.0)
    assert parameter.grad.tolist() == [1, 0, 1]
    assert masks.dense_gradient(parameter).tolist() == [5, 5, 5]


def test_masks_go_with_their_parameters():
    gc.collect()
    before = len(masks._entries)
    parameter = sparse_parameter()
    assert len(masks._entries) == before + 1
    del parameter
    gc.collect()
    assert len(masks._entries) == before


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_packed_bits_come_back(bits):
    mask = torch.tensor(bits)
    packed = masks.pack_mask(mask)
    assert packed.numel() == -(-len(bits) // 8)
    assert torch.equal(masks.unpack_mask(packed, mask.shape), mask)


@pytest.mark.parametrize("bits", [torch.zeros(2, dtype=torch.uint8), torch.zeros(1)])
def test_bits_of_another_shape_are_refused(bits):
    with pytest.raises(BackendConfigError, match="does not fit the shape"):
        masks.unpack_mask(bits, torch.Size([3]))


@pytest.mark.parametrize("mask", [torch.ones(2, dtype=torch.bool), torch.ones(3)])
def test_a_mask_must_fit(mask):
    with pytest.raises(BackendConfigError, match="does not fit a parameter"):
        masks.set_mask(nn.Parameter(torch.ones(3)), mask)


def test_nan_becomes_masks_and_zeros():
    weights = {"a": torch.tensor([[1.0, torch.nan], [0.0, 2.0]]), "b": torch.ones(2)}
    clean, found = masks.split_nan(weights)
    assert clean["a"].tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert clean["b"] is weights["b"]
    assert found.keys() == {"a"}
    assert found["a"].tolist() == [[True, False], [True, True]]
    assert torch.isnan(weights["a"]).any()
