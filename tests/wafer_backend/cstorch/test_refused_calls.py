"""Calls of a compiled module that are refused or fail: what is named, and what stays as it was."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.wafer_backend.calls import CONFIG, Mean, Nested, gradients, inputs
from tests.wafer_backend.modules import compiled, state_of
from wafer_backend.compiled import CompiledModule
from wafer_backend.errors import BackendConfigError, StepError


@pytest.mark.parametrize("make", [Mean, Nested])
def test_backward_twice_is_named(make: type):
    made = compiled(make, CONFIG)
    x_BF, target_BF = inputs()
    loss = made(x_BF, target=target_BF) if make is Mean else made(x_BF).rows.sum()
    loss.backward(retain_graph=True)
    with pytest.raises(StepError, match=r"backward ran a second time .* call the module again"):
        loss.backward()


def test_weights_changed_between_forward_and_backward_are_named():
    made = compiled(Nested, CONFIG)
    x_BF, _ = inputs()
    loss = made(x_BF).rows.sum()
    with torch.no_grad():
        made.module.layer.weight.add_(1)
    with pytest.raises(StepError, match=r"'layer.weight' was modified in place between"):
        loss.backward()


def test_inputs_changed_between_forward_and_backward_are_named():
    made = compiled(Nested, CONFIG)
    x_BF, _ = inputs()
    loss = made(x_BF).rows.sum()
    x_BF.add_(1)
    with pytest.raises(StepError, match="an input was modified in place"):
        loss.backward()


class Fails(nn.Module):
    """Raises in the third call, after BatchNorm has moved on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x_BF: Tensor) -> Tensor:
        self.calls += 1
        y_BF = self.norm(x_BF)
        if self.calls == 3:
            raise RuntimeError("third")
        return y_BF.sum()


@pytest.mark.parametrize("call", [lambda made, x: made(x), None])
def test_a_failed_call_leaves_buffers_and_gradients_alone(call: Any):
    made = compiled(Fails, CONFIG)
    if call is None:
        call = lambda made, x: made.train_step(x, step=1, learning_rate=0.1)  # noqa: E731
    before = state_of(made.module)
    with pytest.raises(RuntimeError, match="third"):
        call(made, torch.randn(8, 4))
    for name, tensor in made.module.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert made.step == 1
    assert not gradients(made.module)


def test_more_systems_than_leaves_is_refused_in_training_only():
    made = compiled(Nested, CONFIG, num_csx=4)
    x_BF, _ = inputs()
    with pytest.raises(BackendConfigError, match="num_csx = 4 but the global batch has only 3"):
        made(x_BF)
    with torch.no_grad():
        assert made(x_BF).rows.shape == (5, 2)


def test_inputs_that_cannot_be_cut_are_named():
    made = compiled(Mean, CONFIG)
    with pytest.raises(BackendConfigError, match=r"have different numbers of samples: \[5, 6\]"):
        made(torch.zeros(5, 4), target=torch.zeros(6, 3))
    with pytest.raises(BackendConfigError, match="no first dimension"):
        made(torch.zeros(()), target=torch.zeros(()))
    with pytest.raises(BackendConfigError, match="an input requires grad"):
        made(torch.zeros(5, 4, requires_grad=True), target=torch.zeros(5, 3))


class Uneven(nn.Module):
    """Returns what cannot be joined: a number, or another width, that depends on the leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x_BF: Tensor, *, kind: str) -> Any:
        y_BF = self.layer(x_BF)
        return {
            "number": (y_BF, len(x_BF)),
            "width": y_BF[:, : len(x_BF)],
            "structure": [y_BF] * len(x_BF),
        }[kind]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("number", "returned 2 and something else"),
        ("width", r"shapes \(1, 1\), \(2, 2\)"),
        ("structure", "different structure"),
    ],
)
def test_outputs_that_cannot_be_joined_are_named(kind: str, message: str):
    with pytest.raises(StepError, match=message):
        compiled(Uneven, CONFIG)(inputs()[0], kind=kind)


@pytest.mark.parametrize(
    "change",
    [
        {"num_csx": 0},
        {"micro_batch_size": 0},
        {"threads": 0},
        {"precision": "bf16"},
        {"activations": "none"},
        {"target": "TPU"},
        {"max_wgt_servers": -1},
    ],
)
def test_bad_configurations_are_named(change: dict[str, Any]):
    (name,) = change
    with pytest.raises(BackendConfigError, match=name):
        compiled(Mean, CONFIG, **change)


def test_a_module_without_parameters_is_refused():
    with pytest.raises(BackendConfigError, match="no parameters"):
        CompiledModule(nn.ReLU(), CONFIG)
