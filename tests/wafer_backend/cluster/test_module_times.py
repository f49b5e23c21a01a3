"""Times of modules, on a clock that only modules move."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wafer_backend.cluster.timeline import ModuleTimes, Timeline
from wafer_backend.compiled import BackendConfig, CompiledModule

MILLISECOND = 10**6


class Clock:
    """Stands still until a module says that it worked."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def work(self, milliseconds: int) -> None:
        self.now += milliseconds * MILLISECOND


class _Working(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, forward: int, backward: int) -> Tensor:
        ctx.clock, ctx.backward = clock, backward
        clock.work(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.clock.work(ctx.backward)
        return gradients[0], None, None, None


class Worker(nn.Module):
    """A linear layer that takes known times, forward and backward; one inside it, too."""

    def __init__(self, clock: Clock, forward: int, backward: int, inner: nn.Module | None) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.inner = inner
        self.clock, self.times = clock, (forward, backward)

    def forward(self, x: Tensor) -> Tensor:
        x = _Working.apply(x, self.clock, *self.times)  # type: ignore[no-untyped-call]
        x = x if self.inner is None else self.inner(x)
        return self.linear(x)  # type: ignore[no-any-return]


class Model(nn.Module):
    """`first` and `again` are one module; `tied` shares the weight of `last`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        inner = Worker(clock, 1, 20, None)
        self.blocks = nn.ModuleList([Worker(clock, 300, 4000, inner), Worker(clock, 5, 60, None)])
        self.again = self.blocks[1]
        self.last = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.last.weight
        self.gain = nn.Parameter(torch.ones(3))
        self.clock = clock

    def forward(self, x: Tensor) -> Tensor:
        self.clock.work(7)
        x = x * self.gain
        for block in (*self.blocks, self.again):
            x = block(x)
        return self.tied(self.last(x)).sum()  # type: ignore[no-any-return]


def times(**changes: Any) -> dict[str, float]:
    """Milliseconds by name of one step of three leaves; those of no time are left out."""
    clock = Clock()
    config: Any = {"target": "CSX", "micro_batch_size": 1, "num_csx": 2} | changes
    made = CompiledModule(Model(clock), BackendConfig(**config))
    made.memoryx.optimizer = torch.optim.SGD(made.module.parameters())
    modules = ModuleTimes(clock)
    with made.profile(Timeline(), modules):
        made.train_step(torch.ones(3, 3), step=1, learning_rate=0.1)
    assert {"last.fwd", "tied.bwd", "blocks.0.linear.bwd"} <= {r.name for r in modules.rows(1000)}
    assert sum(row.percent for row in modules.rows(1000)) == pytest.approx(100)
    return {row.name: row.milliseconds for row in modules.rows(1000) if row.milliseconds}


EXPECTED = {
    "Model.fwd": 3 * 7,
    "blocks.0.fwd": 3 * 300,
    "blocks.0.bwd": 3 * 4000,
    "blocks.0.inner.fwd": 3 * 1,
    "blocks.0.inner.bwd": 3 * 20,
    "blocks.1.fwd": 3 * 2 * 5,
    "blocks.1.bwd": 3 * 2 * 60,
}


@pytest.mark.parametrize("target", ["CSX", "CPU"])
def test_own_times_of_modules(target: str) -> None:
    assert times(target=target) == EXPECTED


def test_what_runs_again_is_forward_again() -> None:
    found = times(activations="recompute")
    backward = {name: time for name, time in EXPECTED.items() if name.endswith(".bwd")}
    assert backward.items() <= found.items()
    assert found["blocks.0.inner.fwd"] == 2 * EXPECTED["blocks.0.inner.fwd"]
    assert sum(found.values()) == sum(EXPECTED.values()) + 3 * (300 + 1 + 2 * 5)


def test_the_table() -> None:
    clock = Clock()
    modules = ModuleTimes(clock)
    inner = Worker(clock, 1, 20, None)
    module = nn.Sequential(Worker(clock, 30, 49, inner))
    with modules.leaf(module):
        module(torch.ones(1, 3, requires_grad=True)).sum().backward()
    assert modules.table(top=3) == (
        "Op profile: times measured on this host, not of a CS-2\n"
        "+---------------------+------------------+------------+\n"
        "| PYTORCH MODULE NAME | CSX TIME (in ms) | % CSX TIME |\n"
        "|---------------------+------------------+------------|\n"
        "| 0.bwd               |           49.000 |      49.00 |\n"
        "| 0.fwd               |           30.000 |      30.00 |\n"
        "| 0.inner.bwd         |           20.000 |      20.00 |\n"
        "+---------------------+------------------+------------+"
    )


def test_ten_rows_unless_asked() -> None:
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    modules = ModuleTimes(Timeline().clock)
    with modules.leaf(module):
        module(torch.ones(1, 2)).sum().backward()
    assert len(modules.rows()) == 10
    assert len(modules.rows(100)) == 17  # eight forward and backward, and the Sequential
