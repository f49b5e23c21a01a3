"""Every schedule against a closed form written anew, and PyTorch's where the meaning is equal."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler as theirs

from wafer_backend.optim import lr_scheduler as ours

Form = Callable[[int], float]


def cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * math.cos(math.pi * share / 2) ** 2


FORMS: list[tuple[str, dict[str, Any], Form]] = [
    ("ConstantLR", {"learning_rate": 0.3, "total_iters": 5}, lambda t: 0.3),
    (
        "LinearLR",
        {"initial_learning_rate": 0.0, "end_learning_rate": 0.8, "total_iters": 8},
        lambda t: 0.1 * t if t < 8 else 0.8,
    ),
    (
        "LinearLR",
        {"initial_learning_rate": 0.5, "end_learning_rate": 0.1, "total_iters": 4, "cycle": True},
        lambda t: 0.5 - 0.4 * t / (4 if t <= 4 else 8 if t <= 8 else 12 if t <= 12 else 16),
    ),
    (
        "LinearLR",
        {"initial_learning_rate": 0.0, "end_learning_rate": 0.8, "total_iters": 0},
        lambda t: 0.8,
    ),
    (
        "PolynomialLR",
        {
            "initial_learning_rate": 0.9,
            "end_learning_rate": 0.1,
            "total_iters": 10,
            "power": 3.0,
        },
        lambda t: 0.1 + 0.8 * (max(10 - t, 0) / 10) ** 3,
    ),
    (
        "ExponentialLR",
        {"initial_learning_rate": 0.4, "total_iters": 5, "decay_rate": 0.5},
        lambda t: 0.4 * math.exp(-math.log(2) * t / 5),
    ),
    (
        "ExponentialLR",
        {"initial_learning_rate": 0.4, "total_iters": 5, "decay_rate": 0.5, "staircase": True},
        lambda t: 0.4 / 2 ** (t // 5),
    ),
    (
        "InverseExponentialTimeDecayLR",
        {"initial_learning_rate": 0.4, "step_exponent": 2, "total_iters": 3, "decay_rate": 0.7},
        lambda t: 0.4 / (1 + 0.7 * t * t / 3),
    ),
    (
        "InverseExponentialTimeDecayLR",
        {
            "initial_learning_rate": 0.4,
            "step_exponent": 1,
            "total_iters": 3,
            "decay_rate": 0.7,
            "staircase": True,
        },
        lambda t: 0.4 / (1 + 0.7 * (t // 3)),
    ),
    (
        "InverseSquareRootDecayLR",
        {"initial_learning_rate": 0.5, "scale": 2.0, "warmup_steps": 4},
        lambda t: 0.5 if t < 4 else t**-0.5,
    ),
    (
        "CosineDecayLR",
        {"initial_learning_rate": 0.9, "end_learning_rate": 0.1, "total_iters": 10},
        lambda t: cosine(0.9, 0.1, min(t, 10) / 10),
    ),
    (
        "PiecewiseConstantLR",
        {"learning_rates": [0.3, 0.2, 0.1], "milestones": [2, 9]},
        lambda t: 0.3 if t < 2 else 0.2 if t < 9 else 0.1,
    ),
    (
        "MultiStepLR",
        {"initial_learning_rate": 0.3, "gamma": 0.1, "milestones": [2, 9]},
        lambda t: 0.3 if t < 2 else 0.03 if t < 9 else 0.003,
    ),
    (
        "StepLR",
        {"initial_learning_rate": 0.3, "step_size": 4, "gamma": 0.5},
        lambda t: 0.3 / 2 ** (t // 4),
    ),
    (
        "CosineAnnealingLR",
        {"initial_learning_rate": 0.9, "T_max": 5, "eta_min": 0.1},
        lambda t: cosine(0.9, 0.1, t / 5),
    ),
    (
        "CosineAnnealingWarmRestarts",
        {"initial_learning_rate": 0.9, "T_0": 3, "T_mult": 2, "eta_min": 0.1},
        lambda t: cosine(0.9, 0.1, t / 3 if t < 3 else (t - 3) / 6 if t < 9 else (t - 9) / 12),
    ),
    (
        "MultiplicativeLR",
        {"initial_learning_rate": 0.9, "coefficient": 0.8},
        lambda t: 0.9 * math.exp(t * math.log(0.8)),
    ),
    (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 4},
        lambda t: 0.1 + 0.4 * (1 - abs(t % 8 - 4) / 4),
    ),
    (
        "CyclicLR",
        {
            "base_lr": 0.1,
            "max_lr": 0.5,
            "step_size_up": 2,
            "mode": "exp_range",
            "gamma": 0.9,
        },
        lambda t: 0.1 + 0.4 * (1 - abs(t % 4 - 2) / 2) * 0.9 ** (t // 4 + 1),
    ),
    (
        "OneCycleLR",
        {
            "initial_learning_rate": 0.1,
            "max_lr": 0.5,
            "total_steps": 11,
            "pct_start": 5 / 11,
            "final_div_factor": 10.0,
            "anneal_strategy": "linear",
        },
        lambda t: 0.1 + 0.1 * t if t <= 4 else 0.5 - 0.49 * min(t - 4, 6) / 6,
    ),
]


@pytest.mark.parametrize(("name", "arguments", "form"), FORMS)
def test_closed_forms(name: str, arguments: dict[str, Any], form: Form, rates: Any) -> None:
    got = rates(lambda o: getattr(ours, name)(o, **arguments), 16)
    assert got == pytest.approx([form(t) for t in range(16)], rel=1e-12, abs=1e-15)


def constant(gamma: float) -> Any:
    return lambda _: gamma


TORCH: list[tuple[str, dict[str, Any], Any]] = [
    # our name and arguments, and PyTorch's scheduler for a base learning rate of 0.4
    (
        "LinearLR",
        {"initial_learning_rate": 0.1, "end_learning_rate": 0.4, "total_iters": 7},
        lambda o: theirs.LinearLR(o, 0.25, 1.0, 7),
    ),
    (
        "PolynomialLR",
        {"initial_learning_rate": 0.4, "end_learning_rate": 0.0, "total_iters": 9, "power": 2.0},
        lambda o: theirs.PolynomialLR(o, 9, 2.0),
    ),
    (
        "ExponentialLR",
        {"initial_learning_rate": 0.4, "total_iters": 1, "decay_rate": 0.9},
        lambda o: theirs.ExponentialLR(o, 0.9),
    ),
    (
        "MultiStepLR",
        {"initial_learning_rate": 0.4, "gamma": 0.3, "milestones": [3, 4, 11]},
        lambda o: theirs.MultiStepLR(o, [3, 4, 11], 0.3),
    ),
    (
        "StepLR",
        {"initial_learning_rate": 0.4, "step_size": 4, "gamma": 0.3},
        lambda o: theirs.StepLR(o, 4, 0.3),
    ),
    (
        "CosineAnnealingLR",
        {"initial_learning_rate": 0.4, "T_max": 6, "eta_min": 0.05},
        lambda o: theirs.CosineAnnealingLR(o, 6, 0.05),
    ),
    (
        "CosineAnnealingWarmRestarts",
        {"initial_learning_rate": 0.4, "T_0": 3, "T_mult": 3, "eta_min": 0.05},
        lambda o: theirs.CosineAnnealingWarmRestarts(o, 3, 3, 0.05),
    ),
    (
        "CosineAnnealingWarmRestarts",
        {"initial_learning_rate": 0.4, "T_0": 5},
        lambda o: theirs.CosineAnnealingWarmRestarts(o, 5),
    ),
    (
        "MultiplicativeLR",
        {"initial_learning_rate": 0.4, "coefficient": 0.8},
        lambda o: theirs.MultiplicativeLR(o, constant(0.8)),
    ),
    *[
        (
            "CyclicLR",
            {
                "base_lr": 0.4,
                "max_lr": 0.9,
                "step_size_up": 3,
                "step_size_down": down,
                "mode": mode,
                "gamma": 0.9,
                "scale_mode": scale_mode,
            },
            lambda o, mode=mode, down=down: theirs.CyclicLR(
                o, 0.4, 0.9, 3, down, mode, 0.9, cycle_momentum=False
            ),
        )
        for mode, scale_mode, down in (
            ("triangular", "cycle", None),
            ("triangular2", "cycle", 5),
            ("exp_range", "iterations", 2),
        )
    ],
    *[
        (
            "OneCycleLR",
            {
                "initial_learning_rate": 0.05,
                "max_lr": 0.5,
                "total_steps": 20,
                "pct_start": 0.25,
                "final_div_factor": 100.0,
                "three_phase": three_phase,
                "anneal_strategy": strategy,
            },
            lambda o, strategy=strategy, three_phase=three_phase: theirs.OneCycleLR(
                o,
                0.5,
                20,
                pct_start=0.25,
                anneal_strategy=strategy,
                cycle_momentum=False,
                div_factor=10.0,
                final_div_factor=100.0,
                three_phase=three_phase,
            ),
        )
        for strategy in ("cos", "linear")
        for three_phase in (False, True)
    ],
]


@pytest.mark.parametrize(("name", "arguments", "reference"), TORCH)
def test_torch_where_the_meaning_is_equal(
    name: str, arguments: dict[str, Any], reference: Any, rates: Any
) -> None:
    def build(o: torch.optim.Optimizer) -> Any:
        o.param_groups[0]["lr"] = 0.4
        return reference(o)

    expected = rates(build, 20)
    got = rates(lambda o: getattr(ours, name)(o, **arguments), 20)
    assert got == pytest.approx(expected, rel=1e-11, abs=1e-15)


@pytest.mark.parametrize(("name", "arguments", "form"), FORMS)
def test_last_epoch_is_the_last_step_done(
    name: str, arguments: dict[str, Any], form: Form, optimizer: Any
) -> None:
    scheduler = getattr(ours, name)(optimizer(), **arguments, last_epoch=5)
    assert scheduler.last_epoch == 6
    assert scheduler.get_last_lr() == scheduler.get_lr() == pytest.approx([form(6)])


@given(
    first=st.floats(0, 10),
    last=st.floats(0, 10),
    total=st.integers(1, 1000),
    step=st.integers(0, 3000),
    power=st.sampled_from([0.5, 1.0, 2.0]),
)
@settings(max_examples=100, deadline=None)
def test_decays_stay_between_their_ends(
    first: float, last: float, total: int, step: int, power: float, optimizer: Any
) -> None:
    low, high = min(first, last) - 1e-12, max(first, last) + 1e-12
    mine = optimizer()
    for scheduler in (
        ours.LinearLR(mine, first, last, total),
        ours.CosineDecayLR(mine, first, last, total),
        ours.PolynomialLR(mine, first, last, total, power),
        ours.CosineAnnealingWarmRestarts(mine, first, total, 2, last),
        ours.CyclicLR(mine, first, last, total),
    ):
        assert low <= scheduler.value(step, {}) <= high


@given(case=st.sampled_from(FORMS), stop=st.integers(0, 20), more=st.integers(0, 10))
@settings(max_examples=150, deadline=None)
def test_resumes_anywhere(case: Any, stop: int, more: int, check_resume: Any) -> None:
    name, arguments, _ = case
    check_resume(lambda o: getattr(ours, name)(o, **arguments), stop, more)
