"""Modules with outputs of every kind, and the gradients that a plain call of them has."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wafer_backend.compiled import BackendConfig

CONFIG = BackendConfig(target="CSX", micro_batch_size=2, num_csx=2)


class Mean(nn.Module):
    """One scalar: the mean squared error over the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x_BF: Tensor, *, target: Tensor) -> Tensor:
        self.calls += 1
        return ((self.layer(x_BF) - target) ** 2).mean()


class Sum(Mean):
    def forward(self, x_BF: Tensor, *, target: Tensor) -> Tensor:
        return super().forward(x_BF, target=target) * target.numel()


class Result(NamedTuple):
    rows: Tensor
    more: dict[str, Any]


class Nested(nn.Module):
    """Rows, another first dimension than samples, a mean, a count, constants, integers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.head = nn.Linear(3, 2)
        self.calls = 0

    def forward(self, x_BF: Tensor) -> Result:
        self.calls += 1
        y_BF = torch.tanh(self.layer(x_BF))
        z_BF = self.head(y_BF)
        more = {
            "pairs": torch.cat((y_BF, 2 * y_BF)),
            "mean": z_BF.mean(),
            "count": (z_BF > 0).sum(),
            "best": z_BF.argmax(1),
            "name": "nested",
        }
        return Result(z_BF, more)


def inputs(samples: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 4, generator=generator), torch.randn(
        samples, 3, generator=generator
    )


def plain(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def assert_close(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, gradient in left.items():
        torch.testing.assert_close(gradient, right[name], rtol=1e-5, atol=1e-6)
