"""Calls of a compiled module: what they return, and what backward delivers."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.wafer_backend.calls import (
    CONFIG,
    Mean,
    Nested,
    Result,
    Sum,
    assert_close,
    gradients,
    inputs,
    plain,
)
from tests.wafer_backend.modules import GPT2, Classifier, Mixed, compiled, points, state_of, tokens
from wafer_backend.cluster import precision
from wafer_backend.cluster.precision import LossScale
from wafer_backend.cluster.wafer import leaf_seed
from wafer_backend.errors import BackendConfigError


@pytest.mark.parametrize("target", ["CSX", "CPU"])
@pytest.mark.parametrize(("make", "reduction"), [(Mean, "mean"), (Sum, "sum")])
def test_a_scalar_is_weighted_by_samples_or_summed(make: type, reduction: str, target: str):
    made = compiled(make, CONFIG, loss_reduction=reduction, target=target)
    x_BF, target_BF = inputs()  # leaves of 2, 2 and 1 samples
    loss = made(x_BF, target=target_BF)
    assert loss.ndim == 0
    expected = plain(make)
    expected_loss = expected(x_BF, target=target_BF)
    torch.testing.assert_close(loss, expected_loss)
    (3 * loss).backward()
    (3 * expected_loss).backward()
    assert_close(gradients(made.module), gradients(expected))
    assert made.module.calls == 3


def test_the_pair_means_what_it_means_for_the_module_itself():
    make = lambda: Mixed(dropout=0.0)  # noqa: E731
    made, expected = compiled(make, CONFIG), plain(make)
    batch = tokens(1, 7)
    loss_sum, counted = made(batch)
    expected_sum, expected_counted = expected(batch)
    torch.testing.assert_close(loss_sum, expected_sum)
    assert torch.equal(counted, expected_counted)
    (loss_sum / counted).backward()
    (expected_sum / expected_counted).backward()
    assert_close(gradients(made.module), gradients(expected))


def test_gradients_accumulate_and_parameters_stay_the_same_objects():
    made, expected = compiled(Mean, CONFIG), plain(Mean)
    before = dict(made.module.named_parameters())
    x_BF, target_BF = inputs()
    for _ in range(2):
        made(x_BF, target=target_BF).backward()
        expected(x_BF, target=target_BF).backward()
    assert_close(gradients(made.module), gradients(expected))
    assert all(dict(made.module.named_parameters())[name] is p for name, p in before.items())
    made(x_BF, target=target_BF)  # never run backward: changes nothing
    assert_close(gradients(made.module), gradients(expected))


@pytest.mark.parametrize("target", ["CSX", "CPU"])
def test_nested_outputs_have_the_plain_gradients(target: str):
    made, expected = compiled(Nested, CONFIG, target=target), plain(Nested)
    x_BF, _ = inputs()

    def total(result: Result) -> Tensor:
        pairs, weights = result.more["pairs"], torch.tensor([1.0, 2.0])
        return (result.rows * weights).sum() + (pairs**2).sum() + 5 * result.more["mean"]

    result, expected_result = made(x_BF), expected(x_BF)
    assert type(result) is Result
    assert result.more["name"] == "nested"
    torch.testing.assert_close(result.rows, expected_result.rows)
    torch.testing.assert_close(result.more["mean"], expected_result.more["mean"])
    assert torch.equal(result.more["count"], expected_result.more["count"])
    assert torch.equal(result.more["best"], expected_result.more["best"])
    assert result.more["pairs"].shape == expected_result.more["pairs"].shape
    assert not result.more["best"].requires_grad
    total(result).backward()
    total(expected_result).backward()
    assert_close(gradients(made.module), gradients(expected))


def test_the_path_is_remembered():
    made = compiled(Nested, CONFIG)
    x_BF, _ = inputs()
    made(x_BF).rows.sum().backward()
    assert made.module.calls == 1 + 3 + 3  # a leaf too many, forward, replay
    made(x_BF).rows.sum().backward()
    assert made.module.calls == 7 + 3 + 3


class Either(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x_BF: Tensor, *, loss: bool) -> Tensor:
        y_BF = self.norm(self.layer(x_BF))
        return (y_BF**3).mean() if loss else y_BF


def test_a_module_may_change_what_it_returns():
    made, fresh = compiled(Either, CONFIG), compiled(Either, CONFIG)
    x_BF = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    for loss in (False, True, True, False):
        output = made(x_BF, loss=loss)
        (output**3).mean().backward()
    for loss in (False, True, True, False):
        (fresh(x_BF, loss=loss) ** 3).mean().backward()
    assert int(made.module.norm.num_batches_tracked) == 4 * 2
    for name, tensor in made.module.state_dict().items():
        assert torch.equal(tensor, fresh.module.state_dict()[name])


def plain_leaves(module: nn.Module, step: int, x_BF: Tensor, size: int) -> Tensor:
    """Forward per leaf with a graph, as path b promises it: seeds, then buffers in leaf order."""
    outputs = []
    for index, part in enumerate(x_BF.split(size)):
        torch.manual_seed(leaf_seed(0, step, index))
        outputs.append(module(part))
    return torch.cat(outputs)


@pytest.mark.parametrize("num_csx", [1, 3])
@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_buffers_and_dropout_are_those_of_the_first_forward(num_csx: int, activations: str):
    made = compiled(Classifier, CONFIG, micro_batch_size=4, num_csx=num_csx)
    expected = plain(Classifier)
    for step in (1, 2):
        x_BF, classes_B = points(step, 12)
        loss = F.nll_loss(made(x_BF), classes_B)
        expected_loss = F.nll_loss(plain_leaves(expected, step, x_BF, 4), classes_B)
        assert torch.equal(loss, expected_loss)
        after_forward = state_of(made.module)
        loss.backward()
        expected_loss.backward()
        assert_close(gradients(made.module), gradients(expected))
        for name, buffer in expected.named_buffers():
            assert torch.equal(buffer, after_forward[name])
            assert torch.equal(buffer, made.module.get_buffer(name))


@pytest.mark.parametrize("target", ["CSX", "CPU"])
@pytest.mark.parametrize("make", [Mean, Nested])
def test_weights_may_be_frozen_and_thawed(make: type, target: str):
    made = compiled(make, CONFIG, target=target)
    x_BF, target_BF = inputs()
    for trained in (False, True):
        for parameter in made.module.parameters():
            parameter.requires_grad_(trained)
        loss = made(x_BF, target=target_BF) if make is Mean else made(x_BF).rows.sum()
        assert loss.requires_grad == trained
    loss.backward()
    assert all(p.grad is not None for p in made.module.parameters())


def test_two_calls_before_one_backward():
    made, expected = compiled(Nested, CONFIG), plain(Nested)
    x_BF, _ = inputs()
    (made(x_BF).rows.sum() * made(2 * x_BF).rows.sum()).backward()
    (expected(x_BF).rows.sum() * expected(2 * x_BF).rows.sum()).backward()
    assert_close(gradients(made.module), gradients(expected))


def test_evaluation_and_no_grad_return_plain_values():
    made, expected = compiled(Classifier, CONFIG, num_csx=5), plain(Classifier)
    x_BF, _ = points(1, 6)  # three leaves: two systems rest
    made.module.eval()
    expected.eval()
    log_probabilities = made(x_BF)
    assert not log_probabilities.requires_grad
    torch.testing.assert_close(log_probabilities, expected(x_BF))
    made.module.train()
    with torch.no_grad():
        assert not made(x_BF).requires_grad
    with torch.inference_mode():
        made(x_BF)
    assert made.step == 1
    pair = compiled(GPT2, CONFIG)
    pair.module.eval()
    loss_sum, counted = pair(tokens(1, 5))
    assert (float(loss_sum), int(counted)) == pytest.approx(pair.evaluate(tokens(1, 5)))


def test_autograd_grad_and_hooks_work_on_parameters():
    made, expected = compiled(Mean, CONFIG), plain(Mean)
    x_BF, target_BF = inputs()
    weight, expected_weight = made.module.layer.weight, expected.layer.weight
    (found,) = torch.autograd.grad(made(x_BF, target=target_BF), weight)
    (wanted,) = torch.autograd.grad(expected(x_BF, target=target_BF), expected_weight)
    torch.testing.assert_close(found, wanted)
    assert weight.grad is None
    weight.register_hook(lambda gradient: 2 * gradient)
    made(x_BF, target=target_BF).backward()
    torch.testing.assert_close(weight.grad, 2 * wanted)


def test_every_call_that_learns_has_seeds_of_its_own():
    made = compiled(GPT2, CONFIG)
    first = made(tokens(1, 4))[0]
    assert made.step == 2
    assert not torch.equal(first, made(tokens(1, 4))[0])
    assert torch.equal(first, compiled(GPT2, CONFIG, num_csx=1)(tokens(1, 4))[0])


@pytest.mark.parametrize("caller_scales", [False, True])
def test_the_loss_scale_is_divided_out_once(caller_scales: bool):
    made, expected = compiled(Mean, CONFIG), compiled(Mean, CONFIG)
    x_BF, target_BF = inputs()
    expected(x_BF, target=target_BF).backward()
    scale = LossScale(1024.0)
    precision.set_current_loss_scale(scale)
    try:
        loss = made(x_BF, target=target_BF)
        (loss * 1024 if caller_scales else loss).backward()
    finally:
        precision.set_current_loss_scale(None)
    for name, gradient in gradients(made.module).items():
        wanted = gradients(expected.module)[name] * (1024 if caller_scales else 1)
        assert torch.equal(gradient, wanted)


def test_state_of_a_run_is_kept():
    made, other = (compiled(GPT2, CONFIG, precision="float16") for _ in range(2))
    made(tokens(1, 4))
    assert made.loss_scale is not None
    made.loss_scale.update(False)
    other.load_state_dict(made.state_dict())
    assert other.state_dict() == made.state_dict()
    assert other.step == 2
    with pytest.raises(BackendConfigError, match="micro_batch_size is 2, but was 3"):
        other.load_state_dict({**made.state_dict(), "micro_batch_size": 3})


@pytest.mark.parametrize("make", [Mean, Nested], ids=["loss", "outputs"])
def test_what_a_step_returned_is_freed_with_its_last_name(make: type):
    made = compiled(make, CONFIG)
    x_BF, target_BF = inputs()
    returned = made(x_BF, target=target_BF) if make is Mean else made(x_BF)
    (tensor, *_) = [t for t in tree_leaves(returned) if isinstance(t, Tensor) and t.requires_grad]
    tensor.sum().backward()
    alive = weakref.ref(tensor)
    del returned, tensor, _
    assert alive() is None
