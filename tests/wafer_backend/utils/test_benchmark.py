"""Measuring a loader: what is counted and sampled, and what is refused."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

import wafer_backend as cstorch
from wafer_backend.utils.benchmark import benchmark_dataloader

PAUSE = 0.002


class Loader:
    """Seven batches, the last one smaller."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(7):
            time.sleep(PAUSE)
            yield {"ids": torch.zeros(4 if number < 6 else 3, 5, dtype=torch.int32), "name": "x"}


def test_batches_are_counted_sampled_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    activities = ["memory_uss", "memory_pss", "memory_swap", "io_read_chars"]
    metrics = cstorch.utils.benchmark.benchmark_dataloader(
        Loader, num_epochs=2, sampling_frequency=3, profile_activities=activities
    )
    assert not metrics.is_partial
    assert [epoch.total_steps for epoch in metrics.epoch_metrics] == [7, 7]
    second = metrics.epoch_metrics[1]
    assert [each.epoch_step for each in second.batch_metrics] == [1, 3, 6]
    assert [each.global_step for each in second.batch_metrics] == [8, 10, 13]
    assert all(0 < each.local_rate <= 1 / PAUSE for each in second.batch_metrics)
    assert 0 < metrics.global_rate <= 1 / PAUSE
    assert second.iteration_time >= timedelta(seconds=7 * PAUSE)
    assert metrics.total_time >= second.iteration_time + metrics.epoch_metrics[0].iteration_time
    sample = second.batch_metrics[0].profile_activities
    assert sample.keys() == set(activities)
    assert sample["memory_uss"] > 1e6
    assert sample["io_read_chars"] > 1e5
    seen = {spec.tensors[0].shape: found for spec, found in metrics.batch_specs.items()}
    assert (seen[torch.Size([4, 5])].count, seen[torch.Size([3, 5])].count) == (12, 2)
    assert (seen[torch.Size([3, 5])].epoch, seen[torch.Size([3, 5])].epoch_step) == (1, 7)
    printed = capsys.readouterr().out
    assert "14 batches in" in printed
    assert "2 batches of (3, 5) torch.int32; first at epoch 1, step 7" in printed


def test_a_loader_that_breaks_off_is_reported_as_far_as_it_came(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken() -> Iterator[torch.Tensor]:
        yield torch.zeros(2)
        raise OSError("no file")

    with pytest.raises(OSError, match="no file"):
        benchmark_dataloader(broken)
    assert "(cut short)" in capsys.readouterr().out


def test_steps_per_epoch_and_silence(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = benchmark_dataloader(Loader, steps_per_epoch=2, print_metrics=False)
    assert metrics.epoch_metrics[0].total_steps == 2
    assert capsys.readouterr().out == ""


def test_refused() -> None:
    with pytest.raises(cstorch.BackendConfigError, match="num_epochs is 0; expected 1 or more"):
        benchmark_dataloader(Loader, num_epochs=0)
    with pytest.raises(cstorch.BackendConfigError, match="unknown activity 'memory_us'"):
        benchmark_dataloader(Loader, profile_activities=["memory_us"])
    with pytest.raises(cstorch.LoaderError, match="a batch without tensors, str"):
        benchmark_dataloader(lambda: ["x"], print_metrics=False)
