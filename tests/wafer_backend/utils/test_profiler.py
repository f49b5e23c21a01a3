"""Rates by a clock that the test winds."""

import pytest

from wafer_backend.utils.profiler import RateTracker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rates() -> None:
    clock = Clock()
    tracker = RateTracker(clock)
    assert (tracker.rate, tracker.global_rate) == (0.0, 0.0)
    for seconds in [1.0] * 20 + [0.5] * 20:
        clock.now += seconds
        tracker.add(8)
    assert tracker.rate == pytest.approx(16)
    assert tracker.global_rate == pytest.approx(320 / 30)
    clock.now += 70
    assert tracker.global_rate == pytest.approx(320 / 30)
    assert tracker.elapsed_seconds == pytest.approx(100)
    tracker.reset()
    assert (tracker.rate, tracker.total_count, tracker.elapsed_seconds) == (0.0, 0, 0.0)
