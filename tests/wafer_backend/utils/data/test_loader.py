"""Loaders: the same batches for any number of worker processes, resumed exactly, no hangs."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data

from wafer_backend import backends
from wafer_backend.backends.base import ClusterConfig
from wafer_backend.distributed import get_streaming_batch_size, get_worker_state
from wafer_backend.errors import BackendConfigError, BackendError, LoaderError
from wafer_backend.utils.data import (
    DataExecutor,
    DataLoader,
    DistributedSampler,
    RestartableDataLoader,
    infer_batch_size,
)

WORKERS = [None, 0, 1, 3]


@pytest.fixture(autouse=True)
def no_backend() -> Iterator[None]:
    backends.reset_backend()
    yield
    backends.reset_backend()


class Squares(data.Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, index**2])


def map_style(size: int = 23, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return data.DataLoader(Squares(size), batch_size=4, shuffle=True, generator=generator)


def plain_generator(batches: int = 7) -> Iterator[dict[str, Any]]:
    for step in range(batches):
        yield {"x": torch.full((2, 3), step).bfloat16(), "n": [step, "text"], "s": torch.tensor(1)}


class Iterable(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(17)


def iterable_style() -> Any:
    return data.DataLoader(Iterable(), batch_size=3)


class Resumable(data.DataLoader[torch.Tensor]):
    """As users of the cstorch API write it."""

    previous = 0

    def state_dict(self) -> dict[str, Any]:
        return {"streamed": get_worker_state().samples_streamed, "previous": self.previous}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        self.previous = state_dict["streamed"]
        self.batch_sampler.set_state(self.previous)  # type: ignore[union-attr]

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        streamed = sum(state["streamed"] for state in worker_states)
        return {"streamed": streamed + worker_states[0]["previous"]}

    def deaggregate_state_dict(self, aggregated_state_dict: dict[str, Any]) -> dict[str, Any]:
        return aggregated_state_dict


def resumable() -> Any:
    sampler = DistributedSampler(Squares(22), seed=5, batch_size=4)
    return Resumable(Squares(22), batch_sampler=sampler)


class Counting:
    """Counts for itself, and is read whole by every worker."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(5):
            self.count += 1
            yield torch.full((2,), self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "samples": get_worker_state().samples_streamed}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        self.count = state_dict["count"]

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        return worker_states[0]

    def deaggregate_state_dict(
        self, aggregated_state_dict: dict[str, Any], strict: bool = True
    ) -> dict[str, Any]:
        return aggregated_state_dict


def make(input_fn: Any, workers: int | None, *args: Any) -> DataLoader:
    return DataLoader(input_fn, *args, **({} if workers is None else {"num_workers": workers}))


def drawn(loader: Any, count: int) -> list[Any]:
    """So many batches, over passes."""
    found: list[Any] = []
    while len(found) < count:
        before = len(found)
        for batch in loader:
            found.append(batch)
            if len(found) == count:
                break
        assert len(found) > before
    return found


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(map(equal, left.values(), right.values()))
    return bool(left == right)


@pytest.mark.parametrize("workers", WORKERS[1:])
@pytest.mark.parametrize("input_fn", [map_style, iterable_style, Counting, resumable])
def test_workers_change_nothing(input_fn: Any, workers: int) -> None:
    """Two passes and a half, so epochs of the samplers go on as in one process."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        expected = drawn(input_fn(), 14)
    torch.manual_seed(1)
    loader = make(input_fn, workers)
    found = drawn(loader, 14)
    loader.close()
    assert all(map(equal, found, expected))


def test_any_structure_crosses_the_pipe() -> None:
    loader = make(plain_generator, 2)
    assert all(map(equal, list(loader), list(plain_generator())))
    loader.close()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "done", [0, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5, 8))]
)
@pytest.mark.parametrize("input_fn", [resumable, Counting])
def test_resuming_is_exact(input_fn: Any, workers: int | None, done: int) -> None:
    """done batches, state, new process: the rest is that of an unbroken run."""
    expected = drawn(make(input_fn, None), done + 6)
    first = make(input_fn, workers)
    drawn(first, done)
    state = first.state_dict()
    first.close()
    for others in {workers, None, 2}:
        second = make(input_fn, others)
        second.load_state_dict(state)
        if input_fn is resumable:
            assert all(map(equal, drawn(second, 6), expected[done:]))
            assert second.state_dict() == {"streamed": 4 * (done + 6)}
        else:
            assert equal(drawn(second, 1)[0], torch.full((2,), done + 1))
        second.close()


def test_state_is_that_of_the_batches_taken_not_of_those_prepared() -> None:
    loader = make(Counting, 3)
    drawn(loader, 2)
    assert loader.state_dict() == {"count": 2, "samples": 4}
    loader.close()


def test_the_cluster_says_how_many_workers() -> None:
    backends.backend("CSX", cluster_config=ClusterConfig(num_workers_per_csx=2))
    loader = DataLoader(lambda: (torch.tensor([os.getpid()]) for _ in range(4)))
    owners = [int(batch) for batch in loader]
    loader.close()
    assert owners[:2] == owners[2:]
    assert len({*owners, os.getpid()}) == 3


def test_num_workers_of_input_fn_is_its_own() -> None:
    def input_fn(num_workers: int) -> list[torch.Tensor]:
        return [torch.tensor([num_workers, os.getpid()])]

    assert [b.tolist() for b in DataLoader(input_fn, num_workers=5)] == [[5, os.getpid()]]
    with pytest.raises(BackendConfigError, match="num_workers = -1"):
        DataLoader(lambda: [], num_workers=-1)


@pytest.mark.crash
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_an_error_and_no_hang(victim: int) -> None:
    def input_fn() -> Iterator[torch.Tensor]:
        for _ in range(1000):
            time.sleep(0.01)
            yield torch.tensor([os.getpid()])

    loader = make(input_fn, 2)
    batches = iter(loader)
    pids = [int(next(batches)), int(next(batches))]
    os.kill(pids[victim], signal.SIGKILL)
    with pytest.raises(LoaderError, match=rf"input worker {victim} of 2 died \(exit code -9\)"):
        list(batches)
    loader.close()
    assert all(not alive(pid) for pid in pids)


@pytest.mark.crash
def test_a_worker_killed_amid_a_large_message() -> None:
    """Larger than a pipe, so the worker stands in the middle of sending it."""

    def input_fn() -> Iterator[torch.Tensor]:
        while True:
            yield torch.full((1 << 20,), os.getpid())

    loader = make(input_fn, 1)
    batches = iter(loader)
    pid = int(next(batches)[0])
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LoaderError, match="died"):
        list(batches)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.crash
def test_workers_end_with_a_killed_main_process() -> None:
    receives, sends = torch.multiprocessing.Pipe(duplex=False)

    def main() -> None:
        loader = make(lambda: (torch.tensor([os.getpid()]) for _ in range(99)), 2)
        for batch in loader:
            sends.send(int(batch))
            time.sleep(0.02)

    process = torch.multiprocessing.get_context("fork").Process(target=main)
    process.start()
    pids = {receives.recv() for _ in range(4)}
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not any(map(alive, pids))


def test_an_error_in_a_worker_is_told() -> None:
    def input_fn() -> Iterator[torch.Tensor]:
        yield torch.zeros(2)
        raise ValueError("row 7 is not a number")

    loader = make(input_fn, 2)
    with pytest.raises(LoaderError, match=r"failed: ValueError: row 7 is not a number"):
        list(loader)
    loader.close()


def test_an_abandoned_pass_leaves_nothing_behind() -> None:
    loader = make(Counting, 2)
    for _ in range(3):
        assert len(drawn(loader, 2)) == 2
    loader.close()
    steady = make(lambda: [torch.tensor([i]) for i in range(5)], 2)
    assert [int(b) for b in drawn(steady, 3)] == [0, 1, 2]
    assert [int(b) for b in steady] == [0, 1, 2, 3, 4]
    steady.close()


def test_not_restartable() -> None:
    loader = DataLoader(map_style)
    assert not loader.is_restartable
    with pytest.raises(BackendError, match="map_style's DataLoader is not restartable"):
        loader.state_dict()
    assert DataLoader(Counting).is_restartable
    assert isinstance(resumable(), RestartableDataLoader)


def test_state_is_loaded_before_iterating() -> None:
    loader = DataLoader(Counting)
    state = loader.state_dict()
    batches = iter(loader)
    next(batches)
    with pytest.raises(BackendError, match="iteration has begun"):
        loader.load_state_dict(state)


def test_what_input_fn_must_return() -> None:
    with pytest.raises(BackendConfigError, match=r"returned a NoneType; expected an iterable"):
        DataLoader(lambda: None)
    assert len(DataLoader(map_style, 40)) == 10
    assert DataLoader(map_style).batch_size == 4


def test_the_batch_size_is_of_the_last_batch_where_the_loader_does_not_tell() -> None:
    loader = DataLoader(lambda: data.DataLoader(Squares(5), batch_sampler=[[0, 1, 2], [3, 4]]))
    assert loader.batch_size is None
    assert [loader.batch_size for _ in loader] == [3, 2]


def test_a_loader_that_divides_its_batch_is_warned_about() -> None:
    def input_fn() -> list[torch.Tensor]:
        return [torch.zeros(get_streaming_batch_size(8) // 2)]

    with pytest.warns(UserWarning, match=r"input_fn asked .* for 8 and yields batches of 4"):
        list(DataLoader(input_fn))
    list(DataLoader(lambda: [torch.zeros(get_streaming_batch_size(8))]))


def test_a_distributed_sampler_is_warned_about() -> None:
    def input_fn() -> Any:
        sampler = torch.utils.data.distributed.DistributedSampler(
            Squares(8), num_replicas=2, rank=0
        )
        return data.DataLoader(Squares(8), batch_size=2, sampler=sampler)

    with pytest.warns(UserWarning, match="DistributedSampler of the loader reads share 0 of 2"):
        list(DataExecutor(DataLoader(input_fn)))


def test_batch_sizes() -> None:
    assert infer_batch_size({"a": torch.zeros(3, 2), "b": (torch.zeros(3), torch.tensor(1))}) == 3
    assert infer_batch_size([torch.zeros(3), torch.zeros(2)]) is None
    assert infer_batch_size("no tensors") is None


def test_a_state_may_be_loaded_after_an_executor_stopped() -> None:
    loader = DataLoader(Counting)
    begin = loader.state_dict()
    first = [batch.tolist() for batch in DataExecutor(loader, num_steps=2)]
    loader.load_state_dict(begin)
    again = [batch.tolist() for batch in DataExecutor(loader, num_steps=3)]
    assert again[:2] == first
    assert again[2] not in first
