"""Half precision: what travels, what is added, and the dynamic loss scale."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.wafer_backend.modules import GPT2, Mixed, compiled, tokens, train
from wafer_backend.cluster.precision import widen
from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.errors import StepError

CONFIG = BackendConfig(target="CSX", micro_batch_size=2, num_csx=2, seed=3)


@pytest.mark.parametrize(
    ("precision", "half"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_matrices_travel_in_half_and_vectors_in_fp32(precision: str, half: torch.dtype):
    made = compiled(GPT2, CONFIG, precision=precision)
    received: dict[str, set[torch.dtype]] = {}
    original = made.memoryx.receive_gradient

    def receive(leaf: int, name: str, gradient: Tensor) -> None:
        received.setdefault(name, set()).add(gradient.dtype)
        original(leaf, name, gradient)

    made.memoryx.receive_gradient = receive  # type: ignore[method-assign]
    made.train_step(tokens(1, 4), step=1, learning_rate=1e-3)
    for name, parameter in made.memoryx.parameters.items():
        expected = half if parameter.ndim >= 2 else torch.float32
        assert made.memoryx.weight(name).dtype == expected
        assert torch.equal(made.memoryx.weight(name), parameter.detach().to(expected))
        assert received[name] == {expected}
        assert parameter.dtype == torch.float32
        assert made.memoryx.streamed_bytes(name) == parameter.numel() * expected.itemsize


def test_gradients_are_widened_before_they_are_added():
    made = compiled(lambda: nn.Linear(1, 1, bias=False), CONFIG, precision="bfloat16")
    memoryx = made.memoryx
    memoryx.begin_step([range(0, 1)], 1)
    for value in (1.0, 2.0**-10):  # their sum has no bfloat16
        memoryx.receive_gradient(0, "weight", torch.full((1, 1), value, dtype=torch.bfloat16))
    sums = []
    memoryx.finish_leaf(0, 0, 0.0, 1, lambda node, partial: sums.append(partial))
    assert float(sums[0].gradients["weight"]) == 1 + 2.0**-10
    double = torch.ones(1, dtype=torch.float64)
    assert widen(double) is double


def reference(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """bf16 by hand: matrices cast once, autocast around forward, gradients back to the masters."""
    cast = {
        name: p.to(torch.bfloat16) if p.ndim >= 2 else p for name, p in module.named_parameters()
    }
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        loss_sum, _ = torch.func.functional_call(module, cast, (batch,))
    loss_sum.backward()
    return loss_sum.detach()


def test_one_leaf_is_autocast_over_cast_weights():
    made = compiled(lambda: GPT2(dropout=0.0), CONFIG, precision="bfloat16", num_csx=1)
    torch.manual_seed(0)
    expected = GPT2(dropout=0.0)
    batch = tokens(1, 2)
    loss_sum, _ = made(batch)
    loss_sum.backward()
    assert float(loss_sum.detach()) == float(reference(expected, batch))
    for name, parameter in expected.named_parameters():
        gradient = made.memoryx.parameters[name].grad
        assert parameter.grad is not None
        # Both of a tied weight's gradients are bf16; the reference adds them up in bf16.
        if name != "tokens.weight":
            assert torch.equal(gradient, parameter.grad), name


def test_an_autocast_of_the_caller_does_not_reach_inside():
    losses = []
    for enabled in (False, True):
        made = compiled(GPT2, CONFIG)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            losses.append(float(made(tokens(1, 4))[0].detach()))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", [GPT2, Mixed])
def test_half_precision_learns_as_fp32_does(kind: type):
    make = lambda: kind(dropout=0.0)  # noqa: E731 - its mask differs between formats
    full = train(make, CONFIG, 8, 4).losses
    half = train(make, CONFIG, 8, 4, precision="bfloat16").losses
    assert half != full
    for (loss, _), (expected, _) in zip(half, full, strict=True):
        assert loss == pytest.approx(expected, rel=0.005)
    # fp16 first has to find its scale; steps until then are skipped.
    made = compiled(make, CONFIG, precision="float16")
    results = [made.train_step(tokens(1, 8), step=n, learning_rate=3e-3) for n in range(1, 16)]
    assert results[0].loss == pytest.approx(full[0][0], rel=0.005)
    assert results[0].skipped
    assert not results[-1].skipped
    assert results[-1].loss < results[0].loss


class Small(nn.Module):
    """A gradient of about 1e-9, which fp16 cannot hold without a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, x_BF: Tensor) -> tuple[Tensor, int]:
        y_BF = F.linear(x_BF.half(), self.weight)
        return (y_BF.float() * 1e-9).sum(), len(x_BF)


def scaled(make: type = Small) -> CompiledModule:
    return compiled(make, CONFIG, precision="float16", num_csx=1)


def test_a_loss_scale_saves_small_gradients():
    made = scaled()
    assert made.loss_scale is not None
    result = made.train_step(torch.ones(4, 2), step=1, learning_rate=0.1)
    assert result.loss_scale == 2.0**15
    assert result.grad_norm == pytest.approx(2e-9, rel=1e-3)
    unscaled = compiled(Small, CONFIG, precision="float16")
    loss_sum, _ = unscaled(torch.ones(4, 2))  # nobody has set a scale
    loss_sum.backward()
    assert float(unscaled.memoryx.parameters["weight"].grad.abs().max()) == 0.0


class Overflowing(nn.Module):
    """Its gradient fits fp16 up to a scale of 2**12 only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1))

    def forward(self, x_BF: Tensor) -> tuple[Tensor, int]:
        return F.linear(x_BF, self.weight).float().sum() * 8, len(x_BF)


def test_an_overflow_skips_the_update_and_halves_the_scale():
    made = scaled(Overflowing)
    before = made.memoryx.parameters["weight"].detach().clone()
    results = [
        made.train_step(torch.ones(1, 1), step=step, learning_rate=0.1) for step in range(1, 5)
    ]
    assert [result.skipped for result in results] == [True, True, True, False]
    assert [result.loss_scale for result in results] == [2.0**15, 2.0**14, 2.0**13, 2.0**12]
    assert results[3].grad_norm == 8.0
    assert not torch.equal(made.memoryx.parameters["weight"], before)
    assert made.loss_scale is not None
    assert made.loss_scale.skipped == 3


class Steep(nn.Module):
    """A loss of 0 whose gradient is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x_BF: Tensor) -> tuple[Tensor, int]:
        return (x_BF * self.weight.sqrt()).sum(), len(x_BF)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_other_formats_refuse_a_gradient_that_is_not_finite(precision: str):
    made = compiled(Steep, CONFIG, precision=precision, num_csx=1)
    with pytest.raises(StepError, match="step 1: the gradient norm is inf; weights are those af"):
        made.train_step(torch.ones(2, 1), step=1, learning_rate=0.1)
    assert made.memoryx.parameters["weight"].grad is None
