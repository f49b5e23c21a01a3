"""Optimizers that PyTorch lacks, against the algorithms of their papers in numpy float64."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from wafer_backend import BackendConfigError, optim

Array = NDArray[np.float64]


def gradient(seed: int, step: int) -> Array:
    return np.random.default_rng([seed, step]).standard_normal((3, 4))


def lamb(p: Array, gradients: list[Array], rates: list[float], **o: Any) -> Array:
    m, v = np.zeros_like(p), np.zeros_like(p)
    for g, lr in zip(gradients, rates, strict=True):
        m = o["betas"][0] * m + (1 - o["betas"][0]) * g
        v = o["betas"][1] * v + (1 - o["betas"][1]) * g**2
        u = m / (np.sqrt(v) + o["eps"]) + o["weight_decay"] * p
        weight, update = min(np.linalg.norm(p), 10.0), np.linalg.norm(u)
        ratio = 1.0 if o["adam"] or weight == 0 or update == 0 else weight / update
        p = p - lr * ratio * u
    return p


def lion(p: Array, gradients: list[Array], rates: list[float], **o: Any) -> Array:
    m, (b1, b2) = np.zeros_like(p), o["betas"]
    for g, lr in zip(gradients, rates, strict=True):
        p = p - lr * (np.sign(b1 * m + (1 - b1) * g) + o["weight_decay"] * p)
        m = b2 * m + (1 - b2) * g
    return p


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([0.0, 0.1, 1.0, 50.0]),
    betas=st.sampled_from([(0.9, 0.999), (0.5, 0.75), (0.0, 0.9)]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    adam=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_papers(
    seed: int, size: float, betas: tuple[float, float], weight_decay: float, adam: bool
) -> None:
    begin = size * np.random.default_rng(seed).standard_normal((3, 4))
    options: dict[str, Any] = {"betas": betas, "weight_decay": weight_decay}
    gradients, rates = [gradient(seed, i) for i in range(6)], [0.1 / (i + 1) for i in range(6)]
    for name, reference, more in (
        ("Lamb", lamb, {"eps": 1e-6, "adam": adam}),
        ("Lion", lion, {}),
    ):
        parameter = nn.Parameter(torch.from_numpy(begin.copy()))
        optimizer = getattr(optim, name)([parameter], lr=9.0, **options, **more)
        for g, lr in zip(gradients, rates, strict=True):
            parameter.grad = torch.from_numpy(g)
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
        expected = reference(begin, gradients, rates, **options, **more)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["Lamb", "Lion"])
def test_preinitialized_and_resumed_bits(name: str) -> None:
    runs = []
    for how in ("plain", "preinitialized", "resumed"):
        parameter = nn.Parameter(torch.from_numpy(gradient(1, 99)).float())
        optimizer = getattr(optim, name)([parameter], lr=0.01, weight_decay=0.1)
        if how != "plain":
            optimizer.preinitialize()
        for step in range(6):
            if how == "resumed" and step == 3:
                saved = copy.deepcopy(optimizer.state_dict())
                parameter = nn.Parameter(parameter.detach().clone())
                optimizer = getattr(optim, name)([parameter])
                optimizer.load_state_dict(saved)
            parameter.grad = torch.from_numpy(gradient(1, step)).float()
            optimizer.step()
        state = optimizer.state[parameter]
        runs.append([t.numpy().tobytes() for t in (parameter.detach(), *state.values())])
    assert runs[0] == runs[1] == runs[2]


def test_lamb_without_a_gradient_stays() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = optim.Lamb([parameter])
    optimizer.step()
    assert torch.equal(parameter.detach(), torch.ones(2))
    parameter.grad = torch.zeros(2)
    optimizer.step()
    assert torch.equal(parameter.detach(), torch.ones(2))


@pytest.mark.parametrize("name", ["Lamb", "Lion"])
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"lr": -1.0}, "lr is -1.0; expected 0 or more"),
        ({"weight_decay": -0.5}, "weight_decay is -0.5; expected 0 or more"),
        ({"betas": (0.9, 1.0)}, r"betas are \(0.9, 1.0\); expected each in \[0, 1\)"),
    ],
)
def test_refused_arguments(name: str, option: dict[str, Any], text: str) -> None:
    with pytest.raises(BackendConfigError, match=f"{name}: {text}"):
        getattr(optim, name)([nn.Parameter(torch.ones(1))], **option)
