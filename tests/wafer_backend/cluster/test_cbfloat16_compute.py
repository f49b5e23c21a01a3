"""What a leaf computes in cbfloat16, beside the same written out by hand with only the rounding."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.wafer_backend.modules import GPT2, Llama, compiled, tokens, train
from wafer_backend.cluster.cbfloat16 import LARGEST, round_to_cbfloat16
from wafer_backend.compiled import BackendConfig

CONFIG = BackendConfig(target="CSX", micro_batch_size=4, seed=3, precision="cbfloat16")


def is_cbfloat16(tensor: Tensor) -> bool:
    return torch.equal(tensor, round_to_cbfloat16(tensor))


class TwoLayers(nn.Module):
    """Returns (loss_sum, n_counted) and keeps what came between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        x, labels = batch
        self.hidden = F.gelu(self.first(x))
        self.logits = self.second(self.hidden)
        return F.cross_entropy(self.logits, labels, reduction="sum"), len(labels)


def written_out(module: TwoLayers, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Loss and gradients of one leaf: products of rounded operands, rounded results."""
    r = round_to_cbfloat16
    w1, w2 = r(module.first.weight.detach()), r(module.second.weight.detach())
    b1, b2 = r(module.first.bias.detach()), r(module.second.bias.detach())
    x = r(x)
    before = r(torch.addmm(b1, x, w1.t()))
    hidden = r(F.gelu(before))
    logits = r(torch.addmm(b2, hidden, w2.t()))
    wide = logits.clone().requires_grad_()
    loss = F.cross_entropy(wide, labels, reduction="sum")
    loss.backward()
    assert wide.grad is not None
    of_logits = r(wide.grad)
    before = before.requires_grad_()
    F.gelu(before).backward(r(of_logits @ w2))
    assert before.grad is not None
    of_before = r(before.grad)
    return {
        "loss": loss.detach(),
        "second.weight": r(of_logits.t() @ hidden),
        "second.bias": wide.grad.sum(0),
        "first.weight": r(of_before.t() @ x),
        "first.bias": of_before.sum(0),
    }


def test_one_leaf_is_products_of_rounded_operands() -> None:
    made = compiled(TwoLayers, CONFIG)
    torch.manual_seed(1)
    x, labels = torch.randn(4, 8), torch.tensor([0, 3, 1, 4])
    expected = written_out(made.module, x, labels)  # type: ignore[arg-type]
    loss_sum, _ = made((x, labels))
    loss_sum.backward()
    assert torch.equal(loss_sum.detach(), expected.pop("loss"))
    for name, gradient in expected.items():
        assert torch.equal(made.memoryx.parameters[name].grad, gradient), name


def test_activations_weights_and_gradients_are_cbfloat16() -> None:
    seen: dict[str, list[Tensor]] = {"activations": [], "gradients": []}
    made = compiled(lambda: GPT2(dropout=0.1), CONFIG)
    block = made.module.blocks[0]  # type: ignore[index]

    def look(module: nn.Module, args: Any, output: Tensor) -> None:
        seen["activations"].append(output.detach().clone())
        output.register_hook(lambda g: seen["gradients"].append(g.clone()))

    for child in (block.qkv, block.up, block.down, block):
        child.register_forward_hook(look)
    made.train_step(tokens(1, 4), step=1, learning_rate=1e-3)
    assert len(seen["activations"]) == len(seen["gradients"]) == 4
    for kind, tensors in seen.items():
        assert all(map(is_cbfloat16, tensors)), kind
    for name, parameter in made.memoryx.parameters.items():
        assert is_cbfloat16(made.memoryx.weight(name)) or parameter.ndim == 1
        assert torch.equal(made.memoryx.weight(name), parameter) == (parameter.ndim == 1)


def test_positions_stay_float32() -> None:
    """Rotations are made of whole numbers that cbfloat16 does not have."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 1))

        def forward(self, x: Tensor) -> Tensor:
            self.angles = torch.arange(2049.0)[None] * 0.1
            return (x @ self.weight).sum()

    made = compiled(Positions, CONFIG)
    made(torch.ones(4, 1))
    assert torch.equal(made.module.angles, torch.arange(2049.0)[None] * 0.1)  # type: ignore[arg-type]


def test_float_does_not_widen() -> None:
    class Widened(TwoLayers):
        def forward(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
            self.scaled = self.first(batch[0]).float() * 1.1
            return self.scaled.sum(), len(batch[1])

    made = compiled(Widened, CONFIG)
    made((torch.randn(4, 8), torch.zeros(4)))
    assert is_cbfloat16(made.module.scaled)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [lambda: GPT2(dropout=0.0), Llama], ids=["gpt2", "llama"])
def test_it_learns_closer_to_fp32_than_bfloat16_does(make: Callable[[], nn.Module]) -> None:
    changes = {"micro_batch_size": 2, "num_csx": 2}
    losses = {
        precision: [
            loss for loss, _ in train(make, CONFIG, 8, 4, **changes, precision=precision).losses
        ]
        for precision in ("float32", "cbfloat16", "bfloat16")
    }

    def far(precision: str) -> float:
        pairs = zip(losses[precision], losses["float32"], strict=True)
        return max(abs(a - b) for a, b in pairs)

    assert 0 < far("cbfloat16") < far("bfloat16")


def test_the_loss_is_scaled_up_to_the_largest_power_of_two() -> None:
    made = compiled(TwoLayers, CONFIG)
    assert made.loss_scale is not None
    assert made.loss_scale.dynamic
    assert made.loss_scale.max_loss_scale == 2.0 ** math.floor(math.log2(LARGEST)) == 2.0**31


def test_an_overflow_skips_the_step() -> None:
    made = compiled(TwoLayers, CONFIG)
    before = {n: p.detach().clone() for n, p in made.memoryx.parameters.items()}
    assert made.loss_scale is not None
    made.loss_scale.scale = 2.0**31
    batch = torch.randn(4, 8) * 100, torch.tensor([0, 3, 1, 4])
    result = made.train_step(batch, step=1, learning_rate=1e-3)
    assert result.skipped
    assert made.loss_scale.scale == 2.0**30
    assert all(torch.equal(before[n], p) for n, p in made.memoryx.parameters.items())
