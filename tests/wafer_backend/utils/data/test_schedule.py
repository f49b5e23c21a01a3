"""Which steps a schedule holds, and how many steps a run has."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wafer_backend.errors import BackendConfigError
from wafer_backend.utils.data import Range, Schedule, compute_num_steps
from wafer_backend.utils.data.executor import cadence, period

STEPS = range(200)
ranges = st.builds(
    lambda start, length, step, last: Range(start, start + length, step, last),
    st.integers(0, 30), st.integers(0, 60), st.integers(1, 9), st.booleans(),
)  # fmt: skip


def steps_of(schedule: Schedule) -> set[int]:
    return {step for step in STEPS if schedule.match(step)}


@given(st.lists(ranges, max_size=3))
def test_a_schedule_is_the_union_of_its_ranges(intervals: list[Range]) -> None:
    expected: set[int] = set()
    for r in intervals:
        assert r.end is not None
        last = {r.end - 1} if r.include_last and r.end > r.start else set()
        own = set(range(r.start, r.end, r.step)) | last
        assert (len(r), list(r)) == (len(own), sorted(own))
        assert all(
            r.next_immediate_step(step) == min((s for s in own if s >= step), default=r.end)
            for step in STEPS
        )
        expected |= own
    assert steps_of(Schedule(intervals)) == expected


@given(st.lists(ranges, max_size=3))
def test_the_period_divides_every_step(intervals: list[Range]) -> None:
    found = steps_of(Schedule(intervals))
    divisor = period(Schedule(intervals))
    assert all(divisor and (step + 1) % divisor == 0 for step in found)


@given(st.integers(1, 30), st.integers(1, 100))
def test_a_cadence_fires_at_the_last_step_too(every: int, total: int) -> None:
    found = {step + 1 for step in range(total + 1) if cadence(every, total, "x").match(step)}
    assert found == set(range(every, total + 1, every)) | {total}
    assert period(cadence(every, total, "x")) == math.gcd(*found)


def test_never_and_own_schedules() -> None:
    assert steps_of(cadence(None, 9, "x")) == steps_of(cadence(0, 9, "x")) == set()
    own = Schedule([Schedule.Range(1, None, 50)])
    assert cadence(own, 9, "x") is own
    assert steps_of(own) == {1, 51, 101, 151}


@pytest.mark.parametrize("wrong", [-1, 2.5, "10", True])
def test_wrong_cadences(wrong: Any) -> None:
    with pytest.raises(BackendConfigError, match="checkpoint_steps = "):
        cadence(wrong, 9, "checkpoint_steps")


@pytest.mark.parametrize("wrong", [(5, 4, 1), (0, 5, 0), (-1, 5, 1), (0, None, 1, True)])
def test_wrong_ranges(wrong: Any) -> None:
    with pytest.raises(BackendConfigError, match="Range"):
        Range(*wrong)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_steps": 7}, 7),
        ({"num_epochs": 3}, 30),
        ({"num_epochs": 3, "steps_per_epoch": 4}, 12),
        ({"num_epochs": 3, "steps_per_epoch": 99}, 30),
        ({"max_steps": 8, "initial_step": 5}, 3),
        ({"num_steps": 7, "max_steps": 10, "initial_step": 5}, 5),
        ({"num_steps": 7, "grad_accum_steps": 2}, 14),
    ],
)
def test_number_of_steps(settings: dict[str, int], expected: int) -> None:
    assert compute_num_steps(range(10), **settings) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give num_steps, num_epochs or max_steps"),
        ({"num_steps": 1, "num_epochs": 1}, "not both"),
        ({"num_steps": 1, "steps_per_epoch": 1}, "needs num_epochs"),
        ({"max_steps": 5, "initial_step": 5}, "no step is left"),
    ],
)
def test_wrong_numbers_of_steps(settings: dict[str, int], message: str) -> None:
    with pytest.raises(BackendConfigError, match=message):
        compute_num_steps(range(10), **settings)
