"""Schedules beside their closed forms; update steps beside plain loops."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse import schedules
from wafer_backend.sparse.schedules import make_schedule, make_update_schedule


@pytest.mark.parametrize(
    ("given_as", "closed_form"),
    [
        (0.25, lambda t: 0.25),
        ({"type": "constant", "value": 0.5}, lambda t: 0.5),
        ({"type": "linear", "init": 0.1, "slope": 0.01}, lambda t: 0.1 + 0.01 * t),
        (
            {"type": "exp", "init": 0.0, "gamma": -0.1, "final": 0.9},
            lambda t: 0.9 * (1 - math.exp(-0.1 * t)),
        ),
        ({"type": "power", "init": 0.5, "beta": 0.9}, lambda t: 0.5 * 0.9**t),
        (
            {"type": "cosine", "init": 0.3, "half_period": 10},
            lambda t: 0.15 * (1 + math.cos(math.pi * t / 10)),
        ),
        (
            {"type": "cosine", "init": 0.3, "half_period": 10, "minimum": 0.1},
            lambda t: 0.2 + 0.1 * math.cos(math.pi * t / 10),
        ),
        (lambda t: t / 100, lambda t: t / 100),
    ],
)
def test_closed_forms(given_as, closed_form):
    schedule = make_schedule("sparsity", given_as)
    for step in range(30):
        assert schedule(step) == pytest.approx(closed_form(step), rel=1e-12, abs=1e-12)


def test_cosine_goes_down_and_back():
    cosine = schedules.Cosine(0.3, 100, 0.1)
    assert [cosine(t) for t in (0, 100, 200)] == pytest.approx([0.3, 0.1, 0.3])


def test_cycling_moves_with_updates():
    for schedule in (
        make_schedule("x", [0.1, 0.5, 0.9]),
        make_schedule("x", {"type": "cycling", "values": [0.1, 0.5, 0.9]}),
    ):
        assert [schedule(100 * u, u) for u in range(5)] == [0.1, 0.5, 0.9, 0.1, 0.5]


@given(st.integers(1, 9), st.integers(0, 20), st.none() | st.integers(0, 60))
def test_updates_come_at_their_frequency(freq, start, stop):
    update = make_update_schedule({"freq": freq, "start": start, "stop": stop})
    planned = set(range(start, 100 if stop is None else stop, freq)) - {0}
    assert {step for step in range(1, 100) if update(step)} == planned


def test_other_update_schedules():
    assert [s for s in range(1, 9) if make_update_schedule({"steps": [2, 7]})(s)] == [2, 7]
    assert all(make_update_schedule(None)(step) for step in range(1, 9))
    assert make_update_schedule(lambda step: step == 3)(3)


@pytest.mark.parametrize(
    ("make", "value", "message"),
    [
        (make_schedule, {"type": "cosin", "init": 1}, "did you mean 'cosine'"),
        (make_schedule, {"init": 1}, "the type of a schedule is one of"),
        (make_schedule, {"type": "exp", "init": 1, "gama": 1}, "'gama'; did you mean 'gamma'"),
        (make_schedule, {"type": "linear", "init": 1}, "'slope' is missing"),
        (make_schedule, "high", "give a number"),
        (make_update_schedule, {"frequency": 3}, "unknown key 'frequency'"),
        (make_update_schedule, {"freq": 0}, "freq is 0"),
        (make_update_schedule, 100, "update is 100"),
    ],
)
def test_what_is_no_schedule(make, value, message):
    arguments = ("x", value) if make is make_schedule else (value,)
    with pytest.raises(BackendConfigError, match=message):
        make(*arguments)
