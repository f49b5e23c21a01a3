"""The simulated transport: the bits of an undisturbed run, or an error that names what is lost."""

import random

import pytest
import torch
from torch import nn

from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.errors import TransportError
from wafer_backend.transports.messages import COORDINATOR, Address
from wafer_backend.transports.simulated import FaultPlan, Simulation

SAMPLES, STEPS = 12, 3


class Tiny(nn.Module):
    """Two layers with dropout, one of them used twice, and a mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.again = nn.Linear(6, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.again(torch.relu(self.again(self.first(x)))))
        hidden = nn.functional.dropout(hidden, 0.2, self.training)
        return nn.functional.mse_loss(self.last(hidden), y)


def _train(num_csx: int, servers: int, simulation: Simulation | None) -> tuple[list[str], list]:
    """Losses in hex and weights after STEPS; the optimizer counts its updates."""
    torch.manual_seed(0)
    config = BackendConfig(
        target="CSX", micro_batch_size=1, num_csx=num_csx, max_wgt_servers=servers, seed=5,
        transport="inline" if simulation is None else "simulated",
        simulation=simulation or Simulation(),
    )  # fmt: skip
    compiled = CompiledModule(Caller(Tiny()), config)
    parameters = compiled.memoryx.parameters
    compiled.memoryx.optimizer = torch.optim.AdamW(parameters.values())
    losses = []
    for step in range(1, STEPS + 1):
        generator = torch.Generator().manual_seed(step)
        batch = (torch.randn(SAMPLES, 4, generator=generator), torch.randn(SAMPLES, 2))
        result = compiled.train_step(
            {"x": batch[0], "y": batch[0][:, :2]}, step=step, learning_rate=0.01,
            max_gradient_norm=0.5,
        )  # fmt: skip
        losses.append(result.loss.hex())
    for state in compiled.memoryx.optimizer_state().values():
        assert int(state["step"]) == STEPS
    return losses, [p.detach().clone() for p in parameters.values()]


class Caller(nn.Module):
    """Takes a batch as one dict."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.module(batch["x"], batch["y"])


@pytest.fixture(scope="module")
def undisturbed() -> tuple[list[str], list]:
    return _train(1, 1, None)


def _same(run: tuple[list[str], list], other: tuple[list[str], list]) -> bool:
    return run[0] == other[0] and all(map(torch.equal, run[1], other[1]))


@pytest.mark.parametrize(("num_csx", "servers"), [(1, 1), (2, 3), (3, 2), (5, 1), (12, 4)])
def test_bits_are_those_of_the_inline_transport(undisturbed, num_csx: int, servers: int):
    for seed in range(3):
        simulation = Simulation(seed, FaultPlan(delay=0.01))
        assert _same(_train(num_csx, servers, simulation), undisturbed)


def _drawn(seed: int) -> Simulation:
    """Rates and deaths of one schedule."""
    rng = random.Random(seed)
    kills = {}
    if rng.random() < 0.3:
        roles = [COORDINATOR, *(Address("wafer", j) for j in range(3)), Address("MemoryX", 1)]
        kills[rng.choice(roles)] = rng.uniform(0, 0.2)
    drop, twice = rng.choice([0.0, 0.02, 0.2]), rng.choice([0.0, 0.1, 0.5])
    return Simulation(seed, FaultPlan(drop, twice, rng.choice([0.0, 0.001, 0.2]), kills=kills))


def _ends_well(seed: int, undisturbed: tuple[list[str], list]) -> bool:
    """Whether the schedule ran to the end, with the right bits; else it failed by name."""
    simulation = _drawn(seed)
    why = ""
    try:
        assert _same(_train(3, 2, simulation), undisturbed)
    except TransportError as error:
        why = str(error)
    if why:
        assert why.endswith("resume from the last checkpoint")
        assert any(role in why for role in ("wafer", "MemoryX", "coordinator"))
    return not why


def test_every_fault_schedule_ends_equal_or_by_name(undisturbed):
    ended = [_ends_well(seed, undisturbed) for seed in range(20)]
    assert 10 < sum(ended) < 20


@pytest.mark.slow
def test_a_thousand_fault_schedules(undisturbed):
    ended = [_ends_well(seed, undisturbed) for seed in range(1000)]
    assert 500 < sum(ended) < 1000


def test_a_dead_wafer_is_named(undisturbed):
    plan = FaultPlan(kills={Address("wafer", 1): 0.003})
    with pytest.raises(TransportError, match="wafer 1"):
        _train(3, 2, Simulation(0, plan))


def test_a_cluster_that_failed_does_not_go_on():
    plan = FaultPlan(kills={Address("MemoryX", 0): 0.0})
    config = BackendConfig(
        target="CSX", micro_batch_size=1, num_csx=2, transport="simulated",
        simulation=Simulation(0, plan),
    )  # fmt: skip
    compiled = CompiledModule(Tiny(), config)
    x = torch.randn(4, 4)
    for why in ("MemoryX 0", "this cluster has failed"):
        with pytest.raises(TransportError, match=why):
            compiled(x, x[:, :2])


def test_traffic_is_counted_once_however_often_a_message_is_sent():
    moved = []
    for faults in (FaultPlan(), FaultPlan(drop=0.2, duplicate=0.5, delay=0.01)):
        torch.manual_seed(0)
        config = BackendConfig(
            target="CSX", micro_batch_size=1, num_csx=2, max_wgt_servers=2, transport="simulated",
            simulation=Simulation(1, faults),
        )  # fmt: skip
        compiled = CompiledModule(Tiny(), config)
        x = torch.randn(4, 4)
        compiled(x, x[:, :2])
        traffic = compiled.transport.traffic
        moved.append((traffic.weight_bytes, traffic.gradient_bytes))
    weights = compiled.memoryx.weight_bytes
    # Two leaves a system are one node each, whose sums have the size of the weights.
    assert moved[0][1] == 2 * weights
    assert moved[0][0] > 4 * weights
    assert moved[0] == moved[1]


def test_calls_learn_the_same_over_the_network():
    gradients = []
    for transport in ("inline", "simulated"):
        torch.manual_seed(0)
        module = Tiny()
        config = BackendConfig(
            target="CSX", micro_batch_size=1, num_csx=3, max_wgt_servers=2, transport=transport,
            simulation=Simulation(3, FaultPlan(0.1, 0.1, 0.01)),
        )  # fmt: skip
        x = torch.arange(24.0).reshape(6, 4) / 24
        CompiledModule(module, config)(x, x[:, :2]).backward()
        gradients.append([p.grad for p in module.parameters()])
    assert all(map(torch.equal, *gradients))
