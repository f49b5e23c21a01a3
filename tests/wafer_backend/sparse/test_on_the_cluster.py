"""Sparse training on the emulated cluster: the same bits for any num_csx, through every path."""

import copy

import pytest
import torch
from torch import nn

from wafer_backend import BackendConfig, CompiledModule, amp
from wafer_backend.sparse import Group, configure, mask_of

from .tiny import Tiny, assert_masked, batches, sparse_masks, tiny, train

CONFIG = [
    {"algorithm": "rigl", "sparsity": 0.75, "update": {"freq": 3}, "param_filter": "fc1.weight"},
    {"algorithm": "set", "sparsity": 0.5, "update": {"freq": 2}, "param_filter": "fc2.weight"},
]


RESIDENT = 0  # no CS-2: weights stay on the host, leaves run on the parameters themselves


class Logits(nn.Module):
    """The model without its loss, which the script computes: the engine replays its leaves."""

    def __init__(self, model: Tiny) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        model = self.model
        hidden = torch.tanh(model.norm(model.fc1(model.embedding(tokens[:, :-1]))))
        return model.head(model.fc2(hidden))


def compiled(module: nn.Module, num_csx: int, **settings) -> CompiledModule:
    target = "CSX" if num_csx else "CPU"
    config = BackendConfig(target=target, micro_batch_size=2, num_csx=num_csx or 1, **settings)
    return CompiledModule(module, config)


def made_sparse(model: Tiny) -> tuple[torch.optim.Optimizer, Group]:
    group = configure(CONFIG)
    model.apply(group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    group(optimizer)
    return optimizer, group


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.state_dict()) | {f"mask {n}": m for n, m in sparse_masks(model).items()}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def run_loss(num_csx: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = tiny()
    engine = compiled(model, num_csx)
    optimizer, _ = made_sparse(model)
    losses = train(
        engine, optimizer, batches(8, samples=12), lambda: assert_masked(model, optimizer)
    )
    return losses, state(model)


def run_outputs(num_csx: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = tiny()
    engine = compiled(Logits(model), num_csx)
    optimizer, _ = made_sparse(model)

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        logits = engine(tokens)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    losses = train(loss, optimizer, batches(8, samples=12), lambda: assert_masked(model, optimizer))
    return losses, state(model)


def run_steps(num_csx: int, **settings) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = tiny()
    engine = compiled(model, num_csx, **settings)
    engine.memoryx.optimizer, _ = made_sparse(model)
    losses = []
    for step, batch in enumerate(batches(8, samples=12), start=1):
        result = engine.train_step(batch, step=step, learning_rate=0.02, max_gradient_norm=1.0)
        assert_masked(model, engine.memoryx.optimizer)
        losses.append(result.loss)
    return losses, state(model)


@pytest.mark.parametrize("run", [run_loss, run_outputs, run_steps])
def test_bits_are_equal_for_every_number_of_systems(run):
    losses, weights = run(1)
    assert losses[-1] < losses[0]
    assert int(weights["mask fc1.weight"].sum()) == 48
    assert int(weights["mask fc2.weight"].sum()) == 96
    for num_csx in (2, 3, RESIDENT):
        other, others = run(num_csx)
        assert other == losses
        assert equal(weights, others)


@pytest.mark.parametrize("servers", [1, 3])
def test_bits_are_equal_over_a_simulated_network(servers):
    """Servers are told to update one by one; masks change on the schedule all the same."""
    losses, weights = run_steps(1)
    other, others = run_steps(3, transport="simulated", max_wgt_servers=servers)
    assert other == losses
    assert equal(weights, others)


@pytest.mark.parametrize("num_csx", [2, RESIDENT])
def test_masks_move_as_in_plain_torch(num_csx):
    """The dense gradient that RigL sees is the reduced one: leaves of one sample change little."""
    model, plain = tiny(), tiny()
    optimizer, _ = made_sparse(model)
    reference, _ = made_sparse(plain)
    first = copy.deepcopy(mask_of(model.fc1.weight))
    engine = compiled(model, num_csx)
    losses = train(engine, optimizer, batches(6, samples=12))
    assert losses == pytest.approx(train(plain, reference, batches(6, samples=12)), rel=1e-5)
    assert not torch.equal(mask_of(model.fc1.weight), first)
    assert equal(sparse_masks(model), sparse_masks(plain))


def test_the_norm_is_that_of_masked_gradients():
    model = tiny()
    engine = compiled(model, 2)
    engine.memoryx.optimizer, _ = made_sparse(model)
    plain = tiny()
    made_sparse(plain)
    batch = next(batches(1, samples=12))
    result = engine.train_step(batch, step=1, learning_rate=0.02)
    plain(batch).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()])
    assert result.grad_norm == pytest.approx(norm.item(), rel=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_and_a_scaler(precision):
    results = []
    for num_csx in (1, 3):
        model = tiny()
        engine = compiled(model, num_csx, precision=precision)
        optimizer, _ = made_sparse(model)
        scaler = amp.GradScaler("dynamic", init_scale=256.0, steps_per_increase=3)
        losses = []
        for batch in batches(8, samples=12):
            loss = engine(batch)
            losses.append(loss.item())
            amp.optimizer_step(loss, optimizer, scaler, max_gradient_norm=1.0)
            assert_masked(model, optimizer)
        assert scaler.get_scale() == 1024.0
        results.append((losses, state(model)))
    assert results[0][0] == results[1][0]
    assert equal(results[0][1], results[1][1])


def test_a_run_resumes_on_another_number_of_systems():
    losses, weights = run_loss(1)
    model = tiny()
    optimizer, group = made_sparse(model)
    given = list(batches(8, samples=12))
    assert train(compiled(model, 3), optimizer, iter(given[:5])) == losses[:5]
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), group.state_dict()))

    resumed = tiny(9)
    second, again = made_sparse(resumed)
    resumed.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    again.load_state_dict(saved[2])
    assert train(compiled(resumed, 2), second, iter(given[5:])) == losses[5:]
    assert equal(state(resumed), weights)
