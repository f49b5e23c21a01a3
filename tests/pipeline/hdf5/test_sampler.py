"""The sampler against Model Zoo's order, written again from its description, sample by sample."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from pipeline.core.errors import ConfigError
from pipeline.hdf5 import ModelZooSampler
from pipeline.hdf5.sampler import MOST_SAMPLES, ModelZooShuffle


def endless(rows: int, num_samples: int, seed: int, shuffle: bool) -> Iterator[int]:
    """Every sample of every epoch."""
    for epoch in itertools.count():
        generator = torch.Generator()
        generator.manual_seed(seed + epoch)
        if not shuffle:
            yield from (i % rows for i in range(num_samples))
        elif num_samples <= rows:
            yield from torch.randperm(rows, generator=generator).tolist()[:num_samples]
        else:
            order = list(range(rows)) * (-(-num_samples // rows) - 1)
            order += torch.randperm(rows, generator=generator).tolist()
            order = order[:num_samples]
            shuffled = torch.randperm(num_samples, generator=generator)
            yield from (order[i] for i in shuffled.tolist())


@settings(max_examples=80)
@given(
    rows=st.integers(1, 30), num_samples=st.none() | st.integers(1, 70), seed=st.integers(0, 99),
    shuffle=st.booleans(), batch=st.integers(1, 9), tasks=st.integers(1, 4),
    begun=st.integers(0, 20),
)  # fmt: skip
def test_order(
    rows: int, num_samples: int | None, seed: int, shuffle: bool, batch: int, tasks: int, begun: int
) -> None:
    """Interleaved, the batches of all tasks are the endless sequence, from any restart on."""
    streams = []
    for task in range(tasks):
        sampler = ModelZooSampler(
            range(rows), batch, shuffle=shuffle, seed=seed, num_samples=num_samples,
            num_tasks=tasks, task=task,
        )  # fmt: skip
        sampler.set_state(begun * batch)
        batches = []
        while len(batches) < 12:
            length, before = len(sampler), len(batches)
            batches += list(sampler)
            assert len(batches) - before == length
        streams.append(iter(batches))
    order = endless(rows, num_samples or rows, seed, shuffle)
    expected = list(itertools.islice(order, begun * batch, (begun + 12) * batch))
    found: list[int] = []
    for number in range(begun, begun + 12):
        found += next(streams[number % tasks])
    assert found == expected


@given(rows=st.integers(1, 30), batch=st.integers(1, 9), begun=st.integers(0, 40))
def test_last_batch_of_an_epoch(rows: int, batch: int, begun: int) -> None:
    """Without drop_last an epoch ends with what is left, and the next one begins afresh."""
    sampler = ModelZooSampler(range(rows), batch, shuffle=False, drop_last=False)
    sampler.set_state(begun)
    first, second = list(sampler), list(sampler)
    assert [i for b in first for i in b] == list(range(begun % rows, rows))
    assert [i for b in second for i in b] == list(range(rows))
    assert [len(b) for b in second[:-1]] == [batch] * (len(second) - 1)


def test_in_a_data_loader() -> None:
    data = list(range(100, 110))
    sampler = ModelZooSampler(data, 4, seed=5)
    seen = [b.tolist() for _ in range(3) for b in DataLoader(data, batch_sampler=sampler)]  # type: ignore[arg-type]
    order = [100 + i for i in itertools.islice(endless(10, 10, 5, True), 28)]
    assert [x for b in seen for x in b] == order
    assert [len(b) for b in seen] == [4] * 7


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"num_samples": 0}, {"num_tasks": 0}, {"task": 1}, {"task": -1},
     {"num_tasks": 2, "drop_last": False}],
    ids=str,
)  # fmt: skip
def test_numbers_that_make_no_order(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        ModelZooSampler(range(5), **{"batch_size": 2, **options})
    with pytest.raises(ConfigError):
        ModelZooSampler(range(5), 2).set_state(-1)
    with pytest.raises(ConfigError):
        ModelZooSampler([], 2)


@given(
    rows=st.integers(1, 30), seed=st.integers(0, 99), first=st.integers(0, 90),
    count=st.integers(0, 70),
)  # fmt: skip
def test_the_shuffle_is_the_order_of_the_sampler(
    rows: int, seed: int, first: int, count: int
) -> None:
    shuffle = ModelZooShuffle(rows, seed)
    expected = list(itertools.islice(endless(rows, rows, seed, True), first, first + count))
    assert shuffle.indices(first, count).tolist() == expected
    for epoch in (first // rows, first // rows + 1):
        samples = shuffle.samples(np.arange(rows), epoch)
        assert sorted(samples.tolist()) == list(range(epoch * rows, epoch * rows + rows))
        assert [shuffle.indices(sample, 1).item() for sample in samples] == list(range(rows))


def test_the_shuffle_refuses_what_takes_too_much_memory() -> None:
    ModelZooShuffle(MOST_SAMPLES, 1)
    with pytest.raises(ConfigError, match=r"takes at most 134,217,728 rows .* use order: keyed"):
        ModelZooShuffle(MOST_SAMPLES + 1, 1)
