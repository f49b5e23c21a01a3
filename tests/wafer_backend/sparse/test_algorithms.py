"""Each algorithm beside a slow reference on the same weights and gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.sparse import GMP, SET, Exp, RigL, Static, mask_of
from wafer_backend.sparse.selection import kept_count, uniform


def slow_rigl(weights, mask, score, drop_fraction, kept, groups):
    """Algorithm 1 of the RigL paper on rows of `groups`, one element at a time."""
    w, m, s = (a.reshape(groups, -1) for a in (weights, mask, score))
    new = np.zeros_like(m)
    active = int(m.sum())
    survivors = min(active - int(drop_fraction * active + 0.5), kept)
    for g in range(groups):
        quota = survivors // groups + (g < survivors % groups)
        total = kept // groups + (g < kept % groups)
        live = sorted((i for i in range(w.shape[1]) if m[g, i]), key=lambda i: (-abs(w[g, i]), i))
        stays = live[:quota]
        rest = sorted(
            (i for i in range(w.shape[1]) if i not in stays), key=lambda i: (-abs(s[g, i]), i)
        )
        for i in stays + rest[: total - len(stays)]:
            new[g, i] = True
    return new.reshape(mask.shape)


class Square(nn.Module):
    """One weight matrix whose gradient the test chooses."""

    def __init__(self, rows: int, columns: int, seed: int) -> None:
        super().__init__()
        numbers = uniform(torch.Size([rows, columns]), seed, "weights", 0).float()
        self.weight = nn.Parameter(torch.round(20 * (numbers - 0.5)) / 4)  # with ties

    def step(self, optimizer: torch.optim.Optimizer, gradient: torch.Tensor) -> None:
        optimizer.zero_grad()
        (self.weight * gradient).sum().backward()
        optimizer.step()


@given(
    st.integers(0, 50),
    st.sampled_from([0.0, 0.25, 0.5, 0.8]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([{}, {"balance_out_groups": 2}, {"balance_out_groups": 4}]),
)
def test_rigl_equals_the_slow_reference(seed, level, fraction, balance):
    model = Square(4, 6, seed)
    algorithm = RigL(level, {"steps": [2]}, fraction, **balance, seed=seed)
    model.apply(algorithm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    algorithm(optimizer)
    for step in (1, 2, 3):
        before = mask_of(model.weight)
        gradient = torch.round(8 * uniform(before.shape, seed, "gradient", step).float()) - 4
        expected = model.weight.detach() - 0.5 * gradient * before
        model.step(optimizer, gradient)
        after = before.numpy()
        if step == 2:
            kept, groups = kept_count(level, 24), balance.get("balance_out_groups", 1)
            after = slow_rigl(expected.numpy(), after, gradient.numpy(), fraction, kept, groups)
        assert mask_of(model.weight).numpy().tolist() == after.tolist()
        assert torch.equal(model.weight, expected * torch.from_numpy(after))


def test_rigl_balances_inputs():
    model = Square(8, 6, 3)
    algorithm = RigL(0.5, {"freq": 1}, balance_in_groups=3)
    model.apply(algorithm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm(optimizer)
    model.step(optimizer, uniform(torch.Size([8, 6]), 0, "gradient", 0).float())
    assert mask_of(model.weight).reshape(8, 3, 2).sum((0, 2)).tolist() == [8, 8, 8]


def test_rigl_adds_the_gradients_of_micro_batches():
    model = Square(4, 6, 1)
    algorithm = RigL(0.5, {"freq": 1}, 1.0)
    model.apply(algorithm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    algorithm(optimizer)
    parts = [uniform(torch.Size([4, 6]), 0, "part", i).float() - 0.5 for i in range(3)]
    for part in parts:
        (model.weight * part).sum().backward()
    optimizer.step()
    total = sum(parts)
    best = np.argsort(-total.abs().flatten().numpy(), kind="stable")[:12]
    assert mask_of(model.weight).flatten().nonzero().flatten().tolist() == sorted(best)


def test_rigl_says_when_no_gradient_was_delivered():
    model = Square(4, 6, 1)
    algorithm = RigL(0.5)
    model.apply(algorithm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm(optimizer)
    model.weight.grad = torch.ones(4, 6)
    with pytest.raises(StepError, match="dense gradient of 'weight' at step 1"):
        optimizer.step()


def test_a_weight_without_gradient_keeps_its_mask():
    model = Square(4, 6, 1)
    algorithm = RigL(0.5)
    model.apply(algorithm)
    before = mask_of(model.weight)
    algorithm(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.step()
    assert torch.equal(mask_of(model.weight), before)


def test_gmp_follows_its_schedule_and_keeps_the_largest():
    model = Square(10, 10, 2)
    schedule = Exp(0.0, -0.2, 0.9)
    algorithm = GMP(schedule, {"freq": 3, "stop": 20}, "topk")
    model.apply(algorithm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    algorithm(optimizer)
    level = 0.0
    for step in range(1, 25):
        before = model.weight.detach().clone()
        gradient = uniform(before.shape, 0, "gradient", step).float() - 0.5
        moved = (before - 0.01 * gradient * mask_of(model.weight)).abs().flatten()
        model.step(optimizer, gradient)
        if step % 3 == 0 and step < 20:
            level = schedule(step)
            kept = np.argsort(-moved.numpy(), kind="stable")[: kept_count(level, 100)]
            assert model.weight.flatten().nonzero().flatten().tolist() == sorted(kept)
        assert int(mask_of(model.weight).sum()) == kept_count(level, 100)


def test_gmp_brings_weights_back_as_zeros():
    model = Square(4, 6, 4)
    model.apply(algorithm := GMP([0.5, 0.25], {"freq": 1}, "topk"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    algorithm(optimizer)
    before = mask_of(model.weight)
    model.step(optimizer, torch.ones(4, 6))
    after = mask_of(model.weight)
    assert int(after.sum()) == 18
    assert (after | before).equal(after)
    assert not model.weight[after & ~before].any()


def test_set_drops_the_smallest_and_grows_at_random():
    model = Square(10, 10, 5)
    model.apply(algorithm := SET(0.6, {"freq": 1}, 0.25, seed=9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    algorithm(optimizer)
    grown = []
    for update in (1, 2):
        weights, before = model.weight.detach().clone(), mask_of(model.weight)
        model.step(optimizer, torch.ones(10, 10))
        score = uniform(weights.shape, 9, "weight", update).numpy()
        expected = slow_rigl(weights.numpy(), before.numpy(), score, 0.25, 40, 1)
        assert mask_of(model.weight).numpy().tolist() == expected.tolist()
        grown.append(mask_of(model.weight) & ~before)
    assert grown[0].any()
    assert not grown[0].equal(grown[1])


def test_a_schedule_may_leave_the_range():
    model = Square(4, 6, 0)
    model.apply(algorithm := GMP({"type": "linear", "init": 0.5, "slope": 1.0}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    algorithm(optimizer)
    model.step(optimizer, torch.ones(4, 6))
    assert not mask_of(model.weight).any()


def test_two_kinds_of_balance_are_refused():
    with pytest.raises(BackendConfigError, match="cannot be used together"):
        RigL(0.5, balance_in_groups=2, balance_out_groups=2)


def test_a_parameter_has_one_algorithm():
    model = Square(4, 6, 0)
    model.apply(algorithm := Static(0.5))
    model.apply(algorithm)
    with pytest.raises(BackendConfigError, match="'weight' is already sparse"):
        model.apply(Static(0.5))


def test_a_dense_optimizer_is_refused():
    with pytest.raises(BackendConfigError, match=r"call model.apply\(sparsity\) first"):
        Static(0.5)(torch.optim.SGD(Square(4, 6, 0).parameters(), lr=0.1))
