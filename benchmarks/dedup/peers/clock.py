"""CPU and wall seconds of parts of a run, and what a process tells of itself at the end."""

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds (process CPU, wall) summed by the name of a part."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        used = time.process_time() - cpu, time.perf_counter() - wall
        before = self.parts.get(part, [0.0, 0.0])
        self.parts[part] = [a + b for a, b in zip(before, used, strict=True)]


def peak_bytes() -> int:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def answer(rounds: list[Clock], before: int, removed: int, labels: str) -> None:
    """Print the answer of a joiner: one JSON object on one line.

    before: peak memory when the input was loaded; labels: a digest of the labels of all documents.
    """
    parts = {name: [clock.parts[name] for clock in rounds] for name in rounds[0].parts}
    peak = peak_bytes()
    told = {"parts": parts, "peak": peak, "beyond_input": peak - before, "removed": removed}
    print(json.dumps({**told, "labels": labels}))
