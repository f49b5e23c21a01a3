"""The order of samples: a function of (seed, epoch), cut into global batches, resumable."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from wafer_backend.errors import BackendConfigError
from wafer_backend.utils.data import DistributedSampler

SIZES = st.integers(1, 40)


def run(sampler: DistributedSampler, passes: int) -> list[Any]:
    return list(itertools.chain.from_iterable(sampler for _ in range(passes)))


GOLDEN: list[tuple[int, dict[str, Any], list[list[int]]]] = [
    (10, {"seed": 5, "batch_size": 4}, [[1, 4, 9, 6], [3, 5, 0, 2]]),
    (
        10,
        {"seed": 5, "batch_size": 4, "num_samples": 7, "start_index": 9},
        [[5, 1, 8, 3], [9, 5, 0, 3], [4, 1, 7, 9]],
    ),
    (
        4,
        {"seed": 7, "batch_size": 3, "num_samples": 10},
        [[2, 1, 1], [2, 3, 3], [3, 2, 0], [0, 2, 3], [0, 1, 3], [2, 0, 2]],
    ),
    (
        4,
        {"shuffle": False, "batch_size": 4, "num_samples": 10},
        [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 0, 1], [2, 3, 0, 1], [2, 3, 0, 1]],
    ),
]


@pytest.mark.parametrize(("samples", "settings", "batches"), GOLDEN)
@pytest.mark.parametrize("shard", [True, False])
def test_the_order_is_that_of_cstorch(
    samples: int, settings: dict[str, Any], batches: list[list[int]], shard: bool
) -> None:
    """What `cerebras.pytorch.utils.data.DistributedSampler` of release 2.10 yields."""
    sampler = DistributedSampler(range(samples), shard=shard, **settings)
    assert run(sampler, 2)[: len(batches)] == batches


def stream_of_epochs(samples: int, seed: int | None, size: int) -> Iterator[int]:
    """All epochs one after the other, as the API describes them; no seed: not shuffled."""
    for epoch in itertools.count():
        if seed is None:
            yield from itertools.islice(itertools.cycle(range(samples)), size)
            continue
        generator = torch.Generator()
        generator.manual_seed(seed + epoch)
        whole, rest = [], size
        while rest > samples:
            whole += list(range(samples))
            rest -= samples
        chosen = whole + torch.randperm(samples, generator=generator).tolist()[:rest]
        if whole:
            places = torch.randperm(size, generator=generator).tolist()
            chosen = [chosen[place] for place in places]
        yield from chosen


@given(
    SIZES,
    st.one_of(st.none(), st.integers(0, 2**40)),
    st.one_of(st.none(), st.integers(1, 150)),
    st.integers(0, 400),
    st.one_of(st.none(), st.integers(1, 12)),
    st.booleans(),
    st.booleans(),
)
def test_every_setting_as_described(
    samples: int,
    seed: int | None,
    num_samples: int | None,
    start: int,
    batch: int | None,
    drop_last: bool,
    shard: bool,
) -> None:
    size = samples if num_samples is None else num_samples
    sampler = DistributedSampler(
        range(samples), shuffle=seed is not None, seed=seed, num_samples=num_samples,
        start_index=start, batch_size=batch, drop_last=drop_last, shard=shard,
    )  # fmt: skip
    yielded = run(sampler, 4)
    stream = yielded if batch is None else list(itertools.chain.from_iterable(yielded))
    expected = stream_of_epochs(samples, seed, size)
    assert stream == list(itertools.islice(expected, start, start + len(stream)))
    if batch is not None and not drop_last:
        ends = list(itertools.accumulate(map(len, yielded), initial=start))[1:]
        short = [end for end, part in zip(ends, yielded, strict=True) if len(part) < batch]
        assert all(end % size == 0 for end in short)
        assert ends[-1] == (start // size + 4) * size


@given(SIZES, st.integers(1, 12), st.integers(0, 5), st.integers(1, 6))
def test_no_sample_is_lost_or_early(samples: int, batch: int, seed: int, passes: int) -> None:
    """The stream is the epochs one after the other: each sample once before any twice."""
    batches = run(DistributedSampler(range(samples), seed=seed, batch_size=batch), passes)
    assert all(len(b) == batch for b in batches)
    stream = list(itertools.chain.from_iterable(batches))
    for start in range(0, len(stream) - samples + 1, samples):
        assert sorted(stream[start : start + samples]) == list(range(samples))
    assert len(stream) > samples * passes - batch


@given(SIZES, st.integers(1, 12), st.integers(0, 30), st.booleans())
def test_resuming_continues_the_stream(
    samples: int, batch: int, done: int, drop_last: bool
) -> None:
    settings = {"seed": 3, "batch_size": batch, "drop_last": drop_last}
    whole = run(DistributedSampler(range(samples), **settings), 40)
    done = min(done, len(whole))
    resumed = DistributedSampler(range(samples), **settings)
    resumed.set_state(sum(map(len, whole[:done])))
    rest = list(itertools.islice((b for _ in range(99) for b in resumed), 20))
    assert rest[: len(whole) - done] == whole[done : done + 20]


@given(SIZES, st.integers(1, 12))
def test_the_stream_does_not_depend_on_the_batch_size(samples: int, batch: int) -> None:
    one = run(DistributedSampler(range(samples), seed=1, batch_size=1), 3)
    many = run(DistributedSampler(range(samples), seed=1, batch_size=batch), 2)
    stream = list(itertools.chain.from_iterable(many))
    expected = list(itertools.chain.from_iterable(one))
    count = min(len(stream), len(expected))
    assert stream[:count] == expected[:count]


@given(SIZES, st.integers(1, 12), st.booleans(), st.booleans(), st.integers(0, 50))
def test_length_is_what_the_next_pass_yields(
    samples: int, batch: int, drop_last: bool, pad: bool, start: int
) -> None:
    sampler = DistributedSampler(
        range(samples), seed=0, batch_size=batch, drop_last=drop_last, pad_last=pad,
        start_index=start,
    )  # fmt: skip
    for _ in range(3):
        expected = len(sampler)
        assert len(list(sampler)) == expected > 0


def test_epochs_and_seeds_differ() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = DistributedSampler(range(100), seed=seed, start_index=100 * epoch)
        return list(sampler)

    orders = [tuple(order(seed, epoch)) for seed in (0, 10, 20) for epoch in range(3)]
    assert len(set(orders)) == 9
    assert order(0, 1) == order(1, 0)  # the epoch is added to the seed


def test_last_batches() -> None:
    def batches(**settings: Any) -> list[list[int]]:
        return run(DistributedSampler(range(5), shuffle=False, batch_size=2, **settings), 2)

    assert batches() == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]
    assert batches(drop_last=False) == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4]]
    assert batches(drop_last=False, pad_last=True)[2::3] == [[4, 0], [4, 0]]
    assert batches(num_samples=3) == [[0, 1], [2, 0], [1, 2]]


def test_a_batch_larger_than_an_epoch() -> None:
    sampler = DistributedSampler(range(3), shuffle=False, batch_size=7)
    assert run(sampler, 2) == [[0, 1, 2, 0, 1, 2, 0], [1, 2, 0, 1, 2, 0, 1]]


def test_in_a_torch_loader() -> None:
    sampler = DistributedSampler(range(8), shuffle=False, batch_size=4)
    batches = [b.tolist() for b in DataLoader(range(8), batch_sampler=sampler)]  # type: ignore[arg-type]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shuffle": True}, "shuffle needs a seed"),
        ({"seed": 0, "batch_size": 0}, "batch_size = 0: expected at least 1"),
        ({"seed": 0, "num_samples": 0}, "num_samples = 0: expected samples of an epoch"),
        ({"seed": 0, "start_index": -1}, "start_index = -1"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendConfigError, match=message):
        DistributedSampler(range(5), **settings)
