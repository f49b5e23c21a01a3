"""The loss scale against a naive reference, and against the rule of torch.amp.GradScaler."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wafer_backend.cluster import precision
from wafer_backend.cluster.precision import LossScale
from wafer_backend.errors import BackendConfigError

EXPONENTS = st.integers(-10, 15)


def naive(init: float, steps: list[bool], every: int, tolerance: float) -> tuple[float, int]:
    """The scale after `steps`, from the whole history at each step."""
    scale, changed_at = init, 0
    for now in range(1, len(steps) + 1):
        history = steps[changed_at:now]
        if history[-1]:
            grow = len(history) >= every and all(history[-every:])
            new = min(scale * 2, 2.0**15) if grow else None
        else:
            shrink = history.count(False) / len(history) > tolerance
            new = max(scale / 2, 2.0**-14) if shrink else None
        if new is not None:
            scale, changed_at = new, now
    return scale, steps.count(False)


@given(
    EXPONENTS,
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.125, 0.25, 0.5]),
)
def test_a_scale_follows_its_history(
    exponent: int, steps: list[bool], every: int, tolerance: float
) -> None:
    scale = LossScale(2.0**exponent, steps_per_increase=every, overflow_tolerance=tolerance)
    for finite in steps:
        scale.update(finite)
    assert (scale.scale, scale.skipped) == naive(2.0**exponent, steps, every, tolerance)


@given(EXPONENTS, st.lists(st.booleans(), max_size=40), st.integers(1, 6))
def test_without_tolerance_a_scale_follows_torch(
    exponent: int, steps: list[bool], every: int
) -> None:
    ours = LossScale(
        2.0**exponent,
        steps_per_increase=every,
        min_loss_scale=2.0**-100,
        max_loss_scale=2.0**100,
    )
    theirs, growth = torch.tensor(2.0**exponent), torch.tensor(0, dtype=torch.int32)
    for finite in steps:
        ours.update(finite)
        torch._amp_update_scale_(theirs, growth, torch.tensor(float(not finite)), 2.0, 0.5, every)
    assert ours.scale == theirs.item()


@given(st.lists(st.booleans(), max_size=30), st.lists(st.booleans(), max_size=30))
def test_a_state_continues_exactly(before: list[bool], after: list[bool]) -> None:
    whole, first = (LossScale(8.0, steps_per_increase=3, overflow_tolerance=0.25) for _ in range(2))
    for finite in before:
        whole.update(finite)
        first.update(finite)
    resumed = LossScale(1.0, steps_per_increase=3, overflow_tolerance=0.25)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for finite in after:
        whole.update(finite)
        resumed.update(finite)
    assert resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize("exponent", [-14, 0, 15, 31])
def test_a_scale_divides_out_exactly(exponent: int) -> None:
    scale = LossScale(2.0**exponent, max_loss_scale=precision.WIDE_MAX).scale
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(exponent))
    assert torch.equal(gradient * scale / scale, gradient)


def test_a_static_scale_counts_and_stays() -> None:
    scale = LossScale(512.0, dynamic=False, steps_per_increase=1)
    for finite in (True, False, False, True):
        scale.update(finite)
    assert (scale.scale, scale.skipped) == (512.0, 2)


def test_the_current_scale_follows_its_owner() -> None:
    assert precision.current_loss_scale() == 1.0
    scale = LossScale(4.0)
    precision.set_current_loss_scale(scale)
    assert precision.current_loss_scale() == 4.0
    scale.update(False)
    assert precision.current_loss_scale() == 2.0
    del scale
    assert precision.current_loss_scale() == 1.0
    other = LossScale(4.0)
    precision.set_current_loss_scale(other)
    precision.set_current_loss_scale(None)
    assert precision.current_loss_scale() == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"init_scale": 1000.0}, "no power of two.*512.0 and 1024.0"),
        ({"init_scale": -1.0}, "positive power of two"),
        ({"init_scale": float("inf")}, "positive power of two"),
        ({"init_scale": 2.0**16}, "outside"),
        ({"steps_per_increase": 0}, "steps_per_increase is 0"),
        ({"overflow_tolerance": 1.5}, "overflow_tolerance is 1.5"),
        ({"min_loss_scale": 0.3}, "min_loss_scale is 0.3"),
    ],
)
def test_what_cannot_be_a_scale(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendConfigError, match=message):
        LossScale(**arguments)


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(BackendConfigError, match="growth_tracker"):
        LossScale().load_state_dict({"scale": 2.0, "growth_tracker": 1})
