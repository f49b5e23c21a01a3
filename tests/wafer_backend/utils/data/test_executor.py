"""The loop: its counts, its closures, and how it ends."""

import collections
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from wafer_backend import backends, tracing
from wafer_backend.backends.base import ClusterConfig
from wafer_backend.errors import BackendConfigError, LoaderError
from wafer_backend.utils import CSConfig
from wafer_backend.utils.data import DataExecutor, DataLoader, Range, Schedule


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    backends.reset_backend()
    tracing.reset_tracing()
    yield
    backends.reset_backend()
    tracing.reset_tracing()


def batches(count: int) -> list[torch.Tensor]:
    return [torch.full((4,), i) for i in range(count)]


def loader(count: int = 3) -> DataLoader:
    return DataLoader(batches, count)


def test_steps_and_checkpoints() -> None:
    executor = DataExecutor(loader(), num_steps=7, checkpoint_steps=3)
    log: list[tuple[int, int, bool, bool]] = []
    saved: list[int] = []

    @tracing.step_closure
    def note(batch: torch.Tensor) -> None:
        state = (executor.on_final_iteration, executor.is_checkpoint_step)
        log.append((executor.user_iteration, int(batch[0]), *state))

    @tracing.checkpoint_closure
    def save(step: int) -> None:
        saved.append(step)

    for step, batch in enumerate(executor, start=1):
        assert tracing.current_executor() is executor
        assert executor.user_iteration == step
        note(batch)
        save(step)
        assert len(log) == step - 1  # closures wait for the end of the step
    assert [entry[:2] for entry in log] == [(i + 1, i % 3) for i in range(7)]
    assert [i for i, _, final, _ in log if final] == [7]
    assert saved == [i for i, _, _, checkpoint in log if checkpoint] == [3, 6, 7]
    assert tracing.current_executor() is None


def test_breaking_out_ends_the_step() -> None:
    seen: list[int] = []

    @tracing.step_closure
    def note(step: int) -> None:
        seen.append(step)

    for step, _ in enumerate(DataExecutor(loader(), num_steps=7), start=1):
        note(step)
        if step == 2:
            break
    assert seen == [1, 2]
    assert tracing.current_executor() is None


def test_an_error_in_a_closure_stops_the_loop() -> None:
    @tracing.step_closure
    def fail() -> None:
        raise ValueError("disk full")

    executor = DataExecutor(loader(), num_steps=7)
    with pytest.raises(ValueError, match="disk full"):
        collections.deque((fail() for _ in executor), maxlen=0)
    assert executor.user_iteration == 1
    assert tracing.current_executor() is None


def test_an_evaluation_inside_training() -> None:
    order: list[str] = []
    note = tracing.step_closure(order.append)
    for _ in DataExecutor(loader(2)):
        note("train")
        for _ in DataExecutor(loader(2)):
            note("eval")
    assert order == ["eval", "eval", "train"] * 2


def test_lengths() -> None:
    assert len(DataExecutor(loader(5))) == 5
    assert len(list(DataExecutor(loader(5)))) == 5
    with pytest.raises(BackendConfigError, match="the loader has no length; give num_steps"):
        DataExecutor(DataLoader(lambda: iter(batches(2))))
    with pytest.raises(BackendConfigError, match="num_steps = 0"):
        DataExecutor(loader(), num_steps=0)


def test_a_loader_that_ends_for_good() -> None:
    executor = DataExecutor(DataLoader(lambda: iter(batches(2))), num_steps=5)
    with pytest.raises(LoaderError, match=r"no batch in pass 2, and 5 steps .* \(2 have run\)"):
        list(executor)


def test_iterating_twice_counts_anew() -> None:
    executor = DataExecutor(loader(), num_steps=2)
    assert [len(list(executor)), executor.user_iteration] * 2 == [2, 2, 2, 2]
    assert executor.profiler.rate_tracker.total_count == 8


def test_training_goes_on_where_it_stopped_for_an_evaluation() -> None:
    train, validation = loader(5), loader(5)
    read: list[int] = []
    for _ in range(3):
        read += (int(batch[0]) for batch in DataExecutor(train, num_steps=2))
        evaluated = [int(batch[0]) for batch in DataExecutor(copy.copy(validation), num_steps=2)]
        assert evaluated == [0, 1]
    assert read == [0, 1, 2, 3, 4, 0]
    assert [int(batch[0]) for batch in DataExecutor(loader(2), num_steps=2)] == [0, 1]
    assert [int(batch[0]) for batch in train] == [0, 1, 2, 3, 4]
    assert copy.copy(train).id != train.id


def test_activation_steps_meet_checkpoints() -> None:
    def common(activation: Any, checkpoint: Any, steps: int = 100) -> int:
        settings = {"checkpoint_steps": checkpoint, "activation_steps": activation}
        return DataExecutor(loader(), steps, **settings).activation_steps

    assert common(None, None) == 1
    assert common(10, None) == 10
    assert common(10, 25) == 5
    assert common(10, Schedule([Range(29, 50, 10)])) == 10
    assert common(10, Schedule([Range(29, 50, 5, include_last=True)])) == 5
    executor = DataExecutor(loader(), 5, activation_steps=2)
    assert [executor.is_activation_step for _ in executor] == [False, True, False, True, True]
    with pytest.raises(BackendConfigError, match="activation_steps = 0"):
        common(0, None)


def test_rates_are_known_in_the_closure() -> None:
    executor = DataExecutor(loader(), num_steps=2)
    rates: list[float] = []

    @tracing.step_closure
    def note() -> None:
        tracker = executor.profiler.rate_tracker
        rates.extend([tracker.rate, tracker.global_rate, executor.profiler.global_rate()])

    for _ in executor:
        note()
    assert len(rates) == 6
    assert all(rate > 0 for rate in rates)


def test_older_spelling_sets_the_cluster() -> None:
    backend = backends.backend("CSX")
    DataExecutor(loader(), cs_config=CSConfig(num_csx=3), micro_batch_size=2)
    assert backend.cluster_config.num_csx == 3
    assert backends.csx.performance.micro_batch_size == 2
    DataExecutor(loader(), cs_config=ClusterConfig(num_csx=2))
    assert backend.cluster_config.num_csx == 2
    with pytest.raises(BackendConfigError, match="listeners are not supported"):
        DataExecutor(loader(), listeners=[object()])


def test_files_of_an_executor(tmp_path: Path) -> None:
    backends.backend("CPU", artifact_dir=tmp_path)
    one, two = DataExecutor(loader()), DataExecutor(loader())
    assert list(tmp_path.iterdir()) == []
    assert one.artifact_dir.is_dir()
    assert one.artifact_dir.parent == two.artifact_dir.parent == tmp_path / "executors"
    assert int(two.artifact_dir.name) == int(one.artifact_dir.name) + 1


def test_a_plan_runs_one_step() -> None:
    backends.backend("CSX", compile_only=True)
    assert len(list(DataExecutor(loader(), num_steps=7))) == 1
