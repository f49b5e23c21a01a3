"""How fast samples go through an executor. These are rates of this machine, of no CS-2."""

import time
from collections import deque
from collections.abc import Callable

_WINDOW = 20


class Number(float):
    """A float that is also a function returning it: R2.2 reads `rate`, R2.4 calls `rate()`."""

    def __call__(self) -> float:
        """The number."""
        return float(self)


class RateTracker:
    """Samples per second, of the last steps and of all."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Start again from now."""
        self._start = self._clock()
        self._ends: deque[tuple[float, int]] = deque([(self._start, 0)], maxlen=_WINDOW + 1)
        self.total_count = 0

    def add(self, count: int) -> None:
        """Count the samples of a finished step."""
        self.total_count += count
        self._ends.append((self._clock(), self.total_count))

    @property
    def rate(self) -> Number:
        """Samples per second of the last 20 steps; 0 before the first."""
        (start, before), (end, after) = self._ends[0], self._ends[-1]
        return Number((after - before) / (end - start) if end > start else 0.0)

    @property
    def global_rate(self) -> Number:
        """Samples per second since the start, as of the last finished step; 0 before the first."""
        end = self._ends[-1][0]
        return Number(self.total_count / (end - self._start) if end > self._start else 0.0)

    @property
    def elapsed_seconds(self) -> Number:
        """Seconds since the start."""
        return Number(self._clock() - self._start)

    @property
    def total_time(self) -> float:
        """Seconds since the start, as R2.2 calls it."""
        return self.elapsed_seconds

    @property
    def total_samples(self) -> int:
        """Samples since the start, as R2.2 calls `total_count`."""
        return self.total_count


class ExecutorProfiler:
    """`executor.profiler`: `.rate_tracker`, and `.rate()` and `.global_rate()` as scripts for
    the oldest releases call them.
    """

    def __init__(self) -> None:
        self.rate_tracker = RateTracker()

    def rate(self) -> float:
        """Samples per second of the last 20 steps."""
        return self.rate_tracker.rate

    def global_rate(self) -> float:
        """Samples per second since the start."""
        return self.rate_tracker.global_rate

    def total_samples(self) -> int:
        """Samples since the start."""
        return self.rate_tracker.total_samples

    def total_time(self) -> float:
        """Seconds since the start."""
        return self.rate_tracker.total_time
