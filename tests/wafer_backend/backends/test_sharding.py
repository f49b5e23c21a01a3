"""A loader that shards itself is warned about; one that need not be is not."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from wafer_backend.distributed import warn_if_sharded

DATA = TensorDataset(torch.arange(8))


def sharded(shares: int) -> DistributedSampler:
    return DistributedSampler(DATA, num_replicas=shares, rank=0)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, sampler=sharded(2)),
        DataLoader(DATA, batch_sampler=BatchSampler(sharded(2), 2, drop_last=True)),
        SimpleNamespace(dataloader=DataLoader(DATA, sampler=sharded(2))),
    ],
)
def test_a_share_is_warned_about(loader):
    with pytest.warns(UserWarning, match="share 0 of 2: .*never read"):
        warn_if_sharded(loader)


def test_launched_as_several_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.warns(UserWarning, match="WORLD_SIZE"):
        warn_if_sharded(DataLoader(DATA, sampler=sharded(1)))


@pytest.mark.parametrize(
    "loader", [DataLoader(DATA, sampler=sharded(1)), DataLoader(DATA), [1, 2], None, 3]
)
def test_silent_otherwise(loader):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_sharded(loader)
