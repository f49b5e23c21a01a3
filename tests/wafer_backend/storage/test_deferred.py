"""A deferred tensor reads when it must, and then behaves as any tensor."""

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from wafer_backend.storage.checkpoint import DeferredTensor

VALUES = torch.arange(6.0).reshape(2, 3)


class Counted:
    """A source of a tensor that counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> torch.Tensor:
        self.reads += 1
        return VALUES.clone()


@pytest.fixture
def source() -> Counted:
    return Counted()


@pytest.fixture
def deferred(source: Counted) -> DeferredTensor:
    return DeferredTensor(source, (2, 3), torch.float32, torch.device("cpu"))


def test_shape_and_dtype_read_nothing(source: Counted, deferred: DeferredTensor) -> None:
    assert deferred.shape == (2, 3)
    assert (deferred.dtype, deferred.device) == (torch.float32, torch.device("cpu"))
    assert (deferred.numel(), deferred.dim(), len(deferred), deferred.nbytes) == (6, 2, 2, 24)
    assert deferred.is_floating_point()
    assert "DeferredTensor" in repr(deferred)
    assert source.reads == 0


def test_copying_into_a_parameter_keeps_nothing(source: Counted, deferred: Any) -> None:
    module = nn.Linear(3, 2, bias=False)
    module.load_state_dict({"weight": deferred})
    assert torch.equal(module.weight, VALUES)
    assert (source.reads, deferred._kept) == (1, None)


@pytest.mark.parametrize(
    "use",
    [
        torch.as_tensor,
        torch.clone,
        lambda d: d + 0,
        lambda d: d.to(torch.float32),
        lambda d: torch.stack([d, d])[0],
        lambda d: torch.from_numpy(np.asarray(d).copy()),
        lambda d: torch.tensor(d.tolist()),
        copy.deepcopy,
        lambda d: d.view(6).reshape(2, 3),
        lambda d: torch.zeros(2, 3).add_(d),
        lambda d: torch._foreach_add([d], 0)[0],
        lambda d: d.detach().cpu().contiguous(),
    ],
)
def test_every_use_sees_the_data(use: Callable[[Any], torch.Tensor], deferred: Any) -> None:
    assert torch.equal(use(deferred), VALUES)


def test_changes_in_place_last(deferred: Any) -> None:
    deferred.add_(1)
    deferred[0, 0] = 9
    deferred.view(6)[5] = 7
    assert deferred.tolist() == [[9, 2, 3], [4, 5, 7]]


def test_an_optimizer_holds_ordinary_tensors(deferred: Any) -> None:
    parameter = nn.Parameter(torch.zeros(2, 3))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5)
    state = optimizer.state_dict()
    state["state"] = {0: {"momentum_buffer": deferred}}
    optimizer.load_state_dict(state)
    assert type(optimizer.state[parameter]["momentum_buffer"]) is torch.Tensor
    parameter.grad = torch.zeros(2, 3)
    optimizer.step()
    assert torch.equal(parameter, -VALUES / 2)


def test_it_can_be_saved(deferred: Any) -> None:
    buffer = io.BytesIO()
    torch.save({"a": deferred}, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True)["a"], VALUES)
