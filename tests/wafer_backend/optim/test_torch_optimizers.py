"""Optimizers that PyTorch has: its bits for equal arguments, preinitialized or not."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from wafer_backend import BackendConfigError, optim

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # name, our arguments, those of PyTorch where they differ (all defaults written out)
    ("Adadelta", {"lr": 0.7, "weight_decay": 0.1}, {}),
    (
        "Adafactor",
        {"lr": 0.05, "decay_rate": -0.7, "clip_threshold": 1.5, "weight_decay": 0.1},
        {"lr": 0.05, "beta2_decay": -0.7, "d": 1.5, "weight_decay": 0.1, "eps": (1e-30, 1e-3)},
    ),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "eps": 1e-6}, {}),
    ("Adagrad", {"initial_accumulator_value": 0.5, "eps": 1e-7, "maximize": True}, {}),
    ("Adam", {"weight_decay": 0.1, "eps": 1e-6}, {}),
    ("Adam", {"amsgrad": True, "betas": (0.8, 0.9), "eps": 1e-8}, {}),
    ("AdamW", {}, {"eps": 1e-6, "weight_decay": 0.0}),
    ("AdamW", {"weight_decay": 0.1, "amsgrad": True, "eps": 1e-8}, {}),
    ("ASGD", {"t0": 3.0, "lambd": 0.1, "weight_decay": 0.1}, {}),
    ("Adamax", {"eps": 1e-6, "maximize": True}, {}),
    ("Muon", {}, {"lr": 0.02, "momentum": 0.95, "ns_steps": 5, "weight_decay": 0.0}),
    ("Muon", {"nesterov": False, "weight_decay": 0.1, "ns_steps": 3}, {"lr": 0.02}),
    ("NAdam", {"momentum_decay": 0.01, "weight_decay": 0.1}, {}),
    ("RAdam", {"weight_decay": 0.1, "eps": 1e-6}, {}),
    ("RMSprop", {"centered": True, "momentum": 0.9, "weight_decay": 0.1}, {}),
    ("RMSprop", {}, {}),
    ("Rprop", {"etas": (0.4, 1.3), "step_sizes": (1e-5, 1.0)}, {"lr": 1e-3}),
    ("SGD", {"lr": 0.1}, {}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}, {}),
]
IDS = [f"{name}-{index}" for index, (name, _, _) in enumerate(CASES)]


def parameters(only_matrices: bool = False) -> list[nn.Parameter]:
    """A matrix, a vector, a 0-d and a higher tensor; the same for each call."""
    draw = torch.Generator().manual_seed(3)
    shapes: list[tuple[int, ...]] = (
        [(4, 5), (7, 2)] if only_matrices else [(4, 5), (6,), (), (2, 3, 2)]
    )
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]


def run(optimizer: torch.optim.Optimizer, seed: int, steps: range = range(9)) -> None:
    """Steps with changing learning rates; every gradient holds zeros of both signs.

    The second parameter has no gradient in the first two steps.
    """
    for step in steps:
        draw = torch.Generator().manual_seed(100 * seed + step)
        for index, parameter in enumerate(optimizer.param_groups[0]["params"]):
            gradient = torch.randn(parameter.shape, generator=draw)
            gradient = torch.where(gradient.abs() < 0.5, gradient * 0.0, gradient)
            parameter.grad = None if index == 1 and step < 2 else gradient
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (step + 1)
        optimizer.step()


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes, so that 0.0 and -0.0 differ."""
    return tensor.detach().contiguous().numpy().tobytes()


def assert_same(ours: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    mine, others = (o.param_groups[0]["params"] for o in (ours, other))
    for p, q in zip(mine, others, strict=True):
        assert bits(p) == bits(q)
        for field, value in other.state[q].items():
            if isinstance(value, torch.Tensor):
                assert bits(ours.state[p][field]) == bits(value), field


@pytest.mark.parametrize("preinitialized", [False, True])
@pytest.mark.parametrize(("name", "ours", "theirs"), CASES, ids=IDS)
def test_same_bits_as_torch(
    name: str, ours: dict[str, Any], theirs: dict[str, Any], preinitialized: bool
) -> None:
    only_matrices = name == "Muon"
    mine = getattr(optim, name)(parameters(only_matrices), **ours)
    arguments = {**ours, **theirs} if name != "Adafactor" else theirs
    reference = getattr(torch.optim, name)(parameters(only_matrices), **arguments)
    if preinitialized:
        mine.preinitialize()
    for steps in (range(1), range(1, 9)):
        run(mine, 1, steps)
        run(reference, 1, steps)
        assert_same(mine, reference)


@pytest.mark.parametrize(("name", "ours", "theirs"), CASES, ids=IDS)
def test_preinitialize_allocates_what_steps_use(
    name: str, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    optimizer = getattr(optim, name)(parameters(name == "Muon"), **ours)
    optimizer.preinitialize()
    before = {id(p): dict(optimizer.state[p]) for p in optimizer.param_groups[0]["params"]}
    run(optimizer, 2)
    dampened = ours.get("dampening", 0.0) != 0.0
    for p in optimizer.param_groups[0]["params"]:
        assert optimizer.state[p].keys() == before[id(p)].keys()
        for field, value in optimizer.state[p].items():
            assert dampened or value is before[id(p)][field], field


@pytest.mark.parametrize(("name", "ours", "theirs"), CASES, ids=IDS)
def test_resumes_exactly_from_saved_state(
    name: str, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    whole, first = (getattr(optim, name)(parameters(name == "Muon"), **ours) for _ in range(2))
    whole.preinitialize()
    first.preinitialize()
    run(whole, 4)
    run(first, 4, range(4))
    saved = copy.deepcopy(first.state_dict())
    weights = [p.detach().clone() for p in first.param_groups[0]["params"]]
    second = getattr(optim, name)([nn.Parameter(w) for w in weights], **ours)
    second.preinitialize()
    second.load_state_dict(saved)
    run(second, 4, range(4, 9))
    assert_same(second, whole)


@pytest.mark.parametrize(("name", "ours", "theirs"), CASES, ids=IDS)
def test_a_checkpoint_before_the_first_step(
    name: str, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    plain, loaded = (getattr(optim, name)(parameters(name == "Muon"), **ours) for _ in range(2))
    loaded.preinitialize()
    loaded.load_state_dict(copy.deepcopy(loaded.state_dict()))
    run(plain, 5)
    run(loaded, 5)
    assert_same(plain, loaded)


@given(
    momentum=st.sampled_from([0.5, 0.9]),
    dampening=st.sampled_from([0.0, 0.25]),
    decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_sgd_begins_with_the_gradient(
    momentum: float, dampening: float, decay: float, seed: int
) -> None:
    arguments = {"lr": 0.1, "momentum": momentum, "dampening": dampening, "weight_decay": decay}
    mine, reference = (
        optim.SGD(parameters(), **arguments),
        torch.optim.SGD(parameters(), **arguments),
    )
    mine.preinitialize()
    run(mine, seed, range(4))
    run(reference, seed, range(4))
    assert_same(mine, reference)


def test_sgd_continues_a_torch_checkpoint() -> None:
    arguments = {"lr": 0.1, "momentum": 0.9, "dampening": 0.25}
    reference = torch.optim.SGD(parameters(), **arguments)
    run(reference, 6, range(3))
    continued = optim.SGD(
        [nn.Parameter(p.detach().clone()) for p in reference.param_groups[0]["params"]],
        **arguments,
    )
    continued.load_state_dict(copy.deepcopy(reference.state_dict()))
    run(reference, 6, range(3, 7))
    run(continued, 6, range(3, 7))
    assert_same(continued, reference)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_without_bias_correction(name: str, amsgrad: bool) -> None:
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p - lr m / (sqrt(v) + eps)."""
    decay, eps, b1, b2 = 0.1, 1e-3, 0.8, 0.9
    optimizer = getattr(optim, name)(
        parameters(), 0.1, (b1, b2), eps, decay, correct_bias=False, amsgrad=amsgrad
    )
    optimizer.preinitialize()
    matrix = optimizer.param_groups[0]["params"][0]
    p, m, v, largest = matrix.detach().double().numpy().copy(), 0.0, 0.0, 0.0
    for step in range(9):
        lr = 0.05 / (step + 1)
        run(optimizer, 7, range(step, step + 1))
        g = matrix.grad.double().numpy()
        if name == "AdamW":
            p = p * (1 - lr * decay)
        else:
            g = g + decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        largest = np.maximum(largest, v) if amsgrad else v
        p = p - lr * m / (np.sqrt(largest) + eps)
        assert np.allclose(matrix.detach().numpy(), p, rtol=1e-5, atol=1e-6)
        assert optimizer.state[matrix]["step"] == step + 1


def test_correct_bias_is_a_matter_of_the_group() -> None:
    first, second = parameters()[:2]
    groups = [{"params": [first]}, {"params": [second], "correct_bias": False}]
    optimizer = optim.AdamW(groups, lr=0.1)
    first.grad, second.grad = torch.ones_like(first), torch.ones_like(second)
    before = first.detach().clone(), second.detach().clone()
    optimizer.step()
    corrected = 0.1 * 1.0 / (1.0 + 1e-6)
    raw = 0.1 * 0.1 / (0.001**0.5 + 1e-6)
    torch.testing.assert_close(before[0] - first, torch.full_like(first, corrected))
    torch.testing.assert_close(before[1] - second, torch.full_like(second, raw))


def test_a_torch_checkpoint_of_adamw_has_no_correct_bias() -> None:
    reference = torch.optim.AdamW(parameters(), eps=1e-6, weight_decay=0.0)
    ours = optim.AdamW(parameters())
    run(reference, 8, range(1))
    run(ours, 8, range(1))
    ours.load_state_dict(copy.deepcopy(reference.state_dict()))
    run(reference, 8, range(1, 4))
    run(ours, 8, range(1, 4))
    assert_same(ours, reference)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AdamW", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}),
        ("Adam", {"lr": 1e-3, "eps": 1e-6, "weight_decay": 0.0, "amsgrad": False}),
        ("Adamax", {"eps": 1e-6}),
        ("RAdam", {"eps": 1e-6}),
        ("Adagrad", {"eps": 1e-6}),
        ("NAdam", {"lr": 2e-3, "eps": 1e-8}),
        ("RMSprop", {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8}),
        ("Muon", {"lr": 0.02, "momentum": 0.95, "ns_steps": 5, "weight_decay": 0.0}),
        ("Lion", {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}),
        ("Lamb", {"lr": 1e-3, "eps": 1e-6, "weight_decay": 0.0}),
    ],
)
def test_defaults(name: str, expected: dict[str, Any]) -> None:
    defaults = getattr(optim, name)(parameters(only_matrices=True)).defaults
    assert {key: defaults[key] for key in expected} == expected


@pytest.mark.parametrize(
    "option",
    [{"beta1": 0.9}, {"scale_parameter": False}, {"relative_step": True}, {"warmup_init": True}],
)
def test_adafactor_names_what_it_cannot(option: dict[str, Any]) -> None:
    with pytest.raises(BackendConfigError, match=f"{next(iter(option))}=.* is not supported"):
        optim.Adafactor(parameters(), **option)


def test_the_rate_of_adafactor_is_at_most_one_over_the_root_of_the_step() -> None:
    found = []
    for lr in (1.0, 5.0):
        weights = parameters()
        optimizer = optim.Adafactor(weights, lr=lr)
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
        found.append([weight.detach() for weight in weights])
    assert all(map(torch.equal, *found))
