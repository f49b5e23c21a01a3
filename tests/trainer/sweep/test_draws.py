"""Draws: a function of (seed, name, index), inside their ranges, in proportion."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.sweep.config import Parameter, SweepConfig, pick, trials

LR = Parameter(log_uniform=(1e-4, 1e-1))
STD = Parameter(uniform=(0.01, 0.2))
HEADS = Parameter(values=(1, 2, 4))


def random(samples=50, seed=1, **parameters):
    return SweepConfig(params=Path("p"), samples=samples, seed=seed, parameters=parameters)


def test_more_samples_and_other_parameters_keep_the_draws():
    few = trials(random(3, learning_rate=LR))
    more = trials(random(9, learning_rate=LR))
    with_another = trials(random(3, initializer_std=STD, learning_rate=LR))
    assert few == more[:3]
    assert [t.values["learning_rate"] for t in few] == [
        t.values["learning_rate"] for t in with_another
    ]
    assert trials(random(3, seed=2, learning_rate=LR)) != few


def test_ranges_are_filled_evenly():
    """Means and thirds of 3,000 draws, within five standard errors."""
    drawn = trials(random(3000, learning_rate=LR, initializer_std=STD, heads=HEADS))
    logs = np.log([t.values["learning_rate"] for t in drawn])
    low, high = math.log(1e-4), math.log(1e-1)
    for values, (a, b) in (
        (logs, (low, high)),
        ([t.values["initializer_std"] for t in drawn], (0.01, 0.2)),
    ):
        spread = (b - a) / math.sqrt(12)
        assert abs(np.mean(values) - (a + b) / 2) < 5 * spread / math.sqrt(3000)
        assert min(values) >= a
        assert max(values) <= b
    for value in HEADS.values:
        count = sum(t.values["heads"] == value for t in drawn)
        assert abs(count - 1000) < 5 * math.sqrt(3000 * 2 / 9)


@given(st.floats(0, 1, exclude_max=True), st.floats(1e-8, 1e8), st.floats(1.001, 1e6))
def test_a_draw_is_inside_its_range(share, low, factor):
    high = low * factor
    for kind in ("uniform", "log_uniform"):
        assert low <= pick(Parameter(**{kind: (low, high)}), share) <= high


def test_a_grid_is_the_product_in_the_order_of_the_file():
    config = SweepConfig(
        params=Path("p"),
        method="grid",
        parameters={"a.b": Parameter(values=(1, 2)), "c.d": Parameter(values=("x", "y"))},
    )
    found = [tuple(t.values.values()) for t in trials(config)]
    assert found == list(itertools.product((1, 2), ("x", "y")))
    assert [t.name for t in trials(config)] == ["0000", "0001", "0002", "0003"]


@pytest.mark.parametrize(
    ("given_keys", "message"),
    [
        ({}, "expected one of values, uniform and log_uniform"),
        ({"values": (1,), "uniform": (0.0, 1.0)}, "expected one of"),
        ({"values": ()}, "one or more"),
        ({"uniform": (1.0, 1.0)}, "low < high"),
        ({"log_uniform": (0.0, 1.0)}, "above 0"),
    ],
)
def test_what_is_no_range(given_keys, message):
    with pytest.raises(ValueError, match=message):
        Parameter(**given_keys)
