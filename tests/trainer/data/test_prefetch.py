"""Reading ahead: same bits, bounded, and no thread left over whatever happens."""

import threading
import time
from collections.abc import Callable

import pytest
import torch

from pipeline.core.errors import IntegrityError, PrepError
from trainer.config import ModelConfig
from trainer.data import Batch, BatchPrefetcher, SampleSource, TrainingData, open_checked

from .conftest import Make


class Counted:
    """Gives a batch for every step, counts what was read, and may fail or wait at a step."""

    source = SampleSource((), ())

    def __init__(self, at: int = 0, act: Callable[[], None] | None = None) -> None:
        self.read: list[int] = []
        self._at, self._act = at, act

    def batch(self, step: int) -> Batch:
        if step == self._at and self._act is not None:
            self._act()
        self.read.append(step)
        return {"input_ids": torch.tensor([[step]])}


def prefetch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefetch"]


def settled(data: Counted, count: int) -> list[int]:
    """What was read once so many steps were, and a moment later."""
    end = time.monotonic() + 10
    while len(data.read) < count and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(0.02)
    return data.read


@pytest.mark.parametrize("layout", ["sample", "vsl", "corpus"])
def test_the_bits_are_those_of_reading_in_turn(make: Make, model: ModelConfig, layout: str) -> None:
    def data() -> TrainingData:
        first = open_checked(make("a", 90, layout), model, layout == "vsl")
        second = open_checked(make("b", 40, layout, first=900), model, layout == "vsl")
        return TrainingData(SampleSource.of(first, second), seed=3, schedule=((1, 4), (5, 7)))

    ahead, plain = data(), data()
    with BatchPrefetcher(ahead, first_step=3, last_step=30) as prefetcher:
        for step in range(3, 31):
            found, expected = prefetcher.batch(step), plain.batch(step)
            assert list(found) == list(expected)
            assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert prefetcher.stall_seconds > 0


def test_no_more_than_the_depth_is_read_ahead() -> None:
    data = Counted()
    with BatchPrefetcher(data, first_step=1, last_step=9, depth=2) as prefetcher:
        assert settled(data, 2) == [1, 2]
        prefetcher.batch(1)
        assert settled(data, 3) == [1, 2, 3]
    assert prefetch_threads() == []


def test_nothing_behind_the_last_step_is_read() -> None:
    data = Counted()
    with BatchPrefetcher(data, first_step=2, last_step=3, depth=9) as prefetcher:
        assert [int(prefetcher.batch(step)["input_ids"]) for step in (2, 3)] == [2, 3]
        with pytest.raises(ValueError, match="step 4"):
            prefetcher.batch(4)
    assert data.read == [2, 3]


def test_steps_are_asked_for_in_turn() -> None:
    with BatchPrefetcher(Counted(), first_step=2, last_step=9) as prefetcher:
        for step in (1, 3):
            with pytest.raises(ValueError, match=f"step {step}: 2 of 9 is the next one"):
                prefetcher.batch(step)
        prefetcher.batch(2)
    with pytest.raises(ValueError, match="step 3"):
        prefetcher.batch(3)


def fail(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_an_error_surfaces_on_the_step_that_needs_the_batch() -> None:
    data = Counted(3, fail(IntegrityError("x.h5: damaged")))
    with BatchPrefetcher(data, first_step=1, last_step=9) as prefetcher:
        prefetcher.batch(1)
        prefetcher.batch(2)
        for _ in range(2):
            with pytest.raises(IntegrityError, match=r"^step 3: x\.h5: damaged$") as caught:
                prefetcher.batch(3)
            assert caught.value.exit_code == 4
    assert data.read == [1, 2], "nothing is read behind it"
    assert prefetch_threads() == []


@pytest.mark.parametrize("error", [MemoryError("all gone"), SystemExit(3)], ids=repr)
def test_other_errors_come_as_they_are(error: BaseException) -> None:
    with (
        BatchPrefetcher(Counted(1, fail(error)), first_step=1, last_step=9) as prefetcher,
        pytest.raises(type(error)),
    ):
        prefetcher.batch(1)


def test_stalls_are_counted() -> None:
    slow = Counted(2, lambda: time.sleep(0.2))
    with BatchPrefetcher(slow, first_step=1, last_step=3, depth=1) as prefetcher:
        prefetcher.batch(1)
        before = prefetcher.stall_seconds
        prefetcher.batch(2)
        assert prefetcher.stall_seconds - before > 0.1
        settled(slow, 3)
        before = prefetcher.stall_seconds
        prefetcher.batch(3)
        assert prefetcher.stall_seconds - before < 0.1


@pytest.mark.parametrize("error", [KeyboardInterrupt, PrepError, None])
def test_the_thread_ends_on_any_way_out(error: type[BaseException] | None) -> None:
    """In the middle of a batch, before one was asked for, and with batches that nobody took."""
    for data in (Counted(), Counted(1, lambda: time.sleep(0.05))):
        try:
            with BatchPrefetcher(data, first_step=1, last_step=10**9) as prefetcher:
                if error is not None:
                    raise error()
        except (KeyboardInterrupt, PrepError):
            pass
        assert prefetch_threads() == []
        prefetcher.close()
