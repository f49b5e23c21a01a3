"""Copies of weights that are handed out again: how few are made, and that nobody notices."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.wafer_backend.modules import GPT2, compiled, same, state_of, tokens
from wafer_backend.cluster import memoryx as memoryx_module
from wafer_backend.cluster import staging
from wafer_backend.cluster.staging import SpareCopies
from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.streaming import weights

CONFIG = BackendConfig(target="CSX", micro_batch_size=1, seed=3)


def count_copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every copy of a master that is made from here on."""
    made: list[int] = []
    copy_of = memoryx_module.travelling_copy

    def counted(*args: Any) -> Tensor:
        copy = copy_of(*args)
        made.append(copy.nbytes)
        return copy

    monkeypatch.setattr(memoryx_module, "travelling_copy", counted)
    return made


@pytest.mark.parametrize("transport", ["inline", "simulated"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "cbfloat16"])
def test_leaves_share_copies_and_every_use_still_counts_as_traffic(
    transport: str, precision: str, monkeypatch: pytest.MonkeyPatch
):
    copies = count_copies(monkeypatch)
    moved = []
    for spare_bytes in (staging.SPARE_BYTES, 0):
        monkeypatch.setattr(staging, "SPARE_BYTES", spare_bytes)
        made = compiled(GPT2, CONFIG, transport=transport, precision=precision)
        copies.clear()
        result = made.train_step(tokens(1, 6), step=1, learning_rate=0.1)
        traffic = made.transport.traffic
        moved.append((traffic.weight_bytes, traffic.gradient_bytes, result.loss, sum(copies)))
    (*shared, few), (*plain, many) = moved
    assert shared == plain
    assert many == plain[0]
    weights_once = sum(map(made.memoryx.streamed_bytes, made.memoryx.parameters))
    assert few <= 1.5 * weights_once < many / 6


def test_no_copy_outlives_its_pass():
    made = compiled(GPT2, CONFIG)
    sizes: list[int] = []
    made.train_step(
        tokens(1, 3),
        step=1,
        learning_rate=0.1,
        between_leaves=lambda: sizes.append(made.memoryx._spares._bytes),
    )
    assert min(sizes) > 0
    assert made.memoryx._spares._bytes == 0
    assert not made.memoryx._spares._copies


def test_weights_that_changed_between_passes_are_seen():
    """Not even a change without a new version is missed."""
    made, plain = (compiled(GPT2, replace(CONFIG, target=t)) for t in ("CSX", "CPU"))
    for step in (1, 2):
        losses = [m.evaluate(tokens(step, 3)) for m in (made, plain)]
        assert losses[0] == losses[1]
        for module in (made, plain):
            for parameter in module.module.parameters():
                parameter.data.mul_(0.5)


def test_spare_copies_have_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(staging, "SPARE_BYTES", 100)
    spares = SpareCopies()
    small, large = torch.ones(20), torch.ones(10)
    spares.add("early", small)
    with spares.kept():
        assert spares.take("early") is None
        spares.add("small", small)
        spares.add("large", large)
        assert spares.take("large") is None
        assert spares.take("small") is small
        assert spares.take("small") is None
        spares.add("large", large)
        spares.add("large", torch.zeros(10))
        assert spares.take("large") is large


# Writes that no version shows are lost, as they were before copies were shared.


class WritesData(nn.Module):
    """Doubles a weight in every forward after a layer of PyTorch's own has used it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x_BD: Tensor) -> tuple[Tensor, int]:
        first_BD = self.layer(x_BD)
        self.layer.weight.data.mul_(2)
        return (first_BD + self.layer(x_BD)).pow(2).sum(), len(x_BD)


class HookWrites(nn.Module):
    """A hook of a layer doubles its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.register_forward_hook(self._double)

    @staticmethod
    def _double(layer: nn.Linear, args: Any, out: Tensor) -> None:
        layer.weight.data.mul_(2)

    def forward(self, x_BD: Tensor) -> tuple[Tensor, int]:
        return self.layer(x_BD).pow(2).sum(), len(x_BD)


class _WritesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BD: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x_BD, weight)
        return x_BD @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x_BD, weight = ctx.saved_tensors
        weight.data.mul_(2)
        return gradients[0] @ weight, gradients[0].t() @ x_BD


class BackwardWrites(nn.Module):
    """A backward of the user's doubles a weight, which a layer of PyTorch's own uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x_BD: Tensor) -> tuple[Tensor, int]:
        x_BD = self.layer(torch.tanh(self.first(x_BD)))
        return _WritesInBackward.apply(x_BD, self.layer.weight).pow(2).sum(), len(x_BD)


class GivesAway(nn.Module):
    """A child of PyTorch's own class whose forward is another, which writes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        plain = self.layer.forward

        def forward(x_BD: Tensor) -> Tensor:
            out_BD = plain(x_BD)
            self.layer.weight.data.mul_(2)
            return out_BD

        self.layer.forward = forward  # type: ignore[method-assign]

    def forward(self, x_BD: Tensor) -> tuple[Tensor, int]:
        return self.layer(x_BD).pow(2).sum(), len(x_BD)


def train_bits(make: Callable[[], nn.Module], num_csx: int) -> tuple[CompiledModule, list[float]]:
    made = compiled(make, CONFIG, num_csx=num_csx)
    drawn = torch.randn(6, 4, generator=torch.Generator().manual_seed(5))
    return made, [made.train_step(drawn, step=step, learning_rate=1e-3).loss for step in (1, 2)]


@pytest.mark.parametrize("make", [WritesData, HookWrites, BackwardWrites, GivesAway])
def test_what_is_written_past_the_version_is_lost_with_the_lease(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
):
    one, losses = train_bits(make, 1)
    other, other_losses = train_bits(make, 6)
    monkeypatch.setattr(staging, "SPARE_BYTES", 0)
    plain, plain_losses = train_bits(make, 1)
    assert losses == other_losses == plain_losses
    states = [state_of(made.module) for made in (one, other, plain)]
    assert same(states[0], states[1])
    assert same(states[0], states[2])


@pytest.mark.parametrize("make", [WritesData, HookWrites, BackwardWrites, GivesAway])
def test_these_modules_would_notice(make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch):
    """Were all copies trusted, their losses would differ: the test above can fail."""
    _, plain_losses = train_bits(make, 1)
    monkeypatch.setattr(weights.Lease, "is_intact", True)
    _, losses = train_bits(make, 1)
    assert losses != plain_losses
