"""The order of samples: a function of (seed, epoch), cut into global batches, resumable."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from wafer_backend.errors import BackendConfigError
from wafer_backend.utils.data import DistributedSampler

SIZES = st.integers(1, 40)


def run(sampler: DistributedSampler, passes: int) -> list[Any]:
    return list(itertools.chain.from_iterable(sampler for _ in range(passes)))


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

    orders = [tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
    assert order(0, 0)[:5] == [71, 36, 47, 74, 59]  # golden: a resumed run relies on it


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
        ({"seed": 0, "batch_size": 0}, "batch_size = 0: at least 1"),
        ({"seed": 0, "num_samples": 9}, "num_samples = 9: expected 1 to 5"),
        ({"seed": 0, "start_index": -1}, "start_index = -1"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendConfigError, match=message):
        DistributedSampler(range(5), **settings)
