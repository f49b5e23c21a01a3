"""The order over several data sets: golden vectors, and laws against counting by hand."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.order import (
    KeyedShuffle,
    OrderPart,
    TrainingOrder,
    rows_of_samples,
    samples_of_weight,
)
from pipeline.core.rng import key, permute

WEIGHTS = st.decimals(min_value="0.02", max_value="4", places=2).map(float)
DATASETS = st.lists(st.tuples(st.integers(1, 23), WEIGHTS), min_size=1, max_size=4)
SEEDS = st.integers(0, 2**40)


def order_of(sizes: list[tuple[int, float]], seed: int) -> TrainingOrder:
    """Each data set with at least one sample of an epoch."""
    parts = [OrderPart(rows, max(1, samples_of_weight(rows, weight))) for rows, weight in sizes]
    return TrainingOrder(tuple(parts), seed, KeyedShuffle(sum(p.per_epoch for p in parts), seed))


def epoch_of(order: TrainingOrder, epoch: int) -> list[int]:
    total = order.epoch_samples
    return [int(row) for row in order.rows(epoch * total, total)]


def rows_by_definition(order: TrainingOrder, epoch: int) -> list[int]:
    """All that an epoch reads, sorted, written again from the module's description."""
    rows, first = [], 0
    for place, part in enumerate(order.parts):
        n, k = part.rows, part.per_epoch
        rows += [first + row for row in range(n)] * (k // n)
        sigma = permute(np.arange(n), n, key(order.seed, "mixture-choice", place)).tolist()
        rows += [first + int(sigma[(epoch * (k % n) + j) % n]) for j in range(k % n)]
        first += n
    return sorted(rows)


def test_golden_mixture_order() -> None:
    order = order_of([(5, 1.4), (4, 1), (6, 0.5)], seed=1)
    assert [(p.copies, p.chosen) for p in order.parts] == [(1, 2), (1, 0), (0, 3)]
    assert order.epoch_samples == 14
    assert epoch_of(order, 0) == [4, 0, 8, 2, 10, 7, 3, 3, 12, 1, 11, 1, 6, 5]
    assert epoch_of(order, 1) == [0, 9, 13, 14, 2, 7, 4, 6, 0, 2, 5, 3, 8, 1]


@given(DATASETS, SEEDS, st.integers(0, 30))
def test_an_epoch_reads_every_row_as_often_as_its_weight_says(
    sizes: list[tuple[int, float]], seed: int, epoch: int
) -> None:
    order = order_of(sizes, seed)
    found = epoch_of(order, epoch)
    assert sorted(found) == rows_by_definition(order, epoch)
    times, first = Counter(found), 0
    for part, (rows, weight) in zip(order.parts, sizes, strict=True):
        here = [times[row] for row in range(first, first + rows)]
        assert set(here) <= {part.copies, part.copies + 1}
        assert sum(here) == part.per_epoch
        exact = rows * Fraction(str(weight))
        assert abs(sum(here) - exact) <= Fraction(1, 2) or sum(here) == 1
        first += rows


@given(DATASETS, SEEDS)
def test_epochs_together_meet_every_row_evenly(sizes: list[tuple[int, float]], seed: int) -> None:
    """Also the fraction: after any number of epochs no row is two readings ahead of another."""
    order = order_of(sizes, seed)
    times: Counter[int] = Counter()
    for epoch in range(6):
        times.update(epoch_of(order, epoch))
        for place, part in enumerate(order.parts):
            first = order.first_row(place)
            here = [times[row] for row in range(first, first + part.rows)]
            assert max(here) - min(here) <= 1
            if epoch + 1 >= order.epochs_to_meet(place):
                assert min(here) >= 1


def test_epochs_to_meet_is_the_least() -> None:
    order = order_of([(10, 0.3), (3, 2.5)], seed=4)
    assert [order.epochs_to_meet(place) for place in (0, 1)] == [4, 1]
    three = {row for epoch in range(3) for row in epoch_of(order, epoch) if row < 10}
    assert len(three) == 9


@given(DATASETS, SEEDS, st.integers(0, 5))
def test_the_inverse_names_every_sample_that_reads_a_row(
    sizes: list[tuple[int, float]], seed: int, epoch: int
) -> None:
    order = order_of(sizes, seed)
    begin = epoch * order.epoch_samples
    read = [(row, begin + place) for place, row in enumerate(epoch_of(order, epoch))]
    found = []
    for place, part in enumerate(order.parts):
        asked = np.arange(part.rows)[::-1].copy()
        which, sample = order.samples(place, asked, epoch)
        rows = order.first_row(place) + asked[which]
        found += list(zip(rows.tolist(), sample.tolist(), strict=True))
    assert sorted(found) == sorted(read)
    assert [len(x) for x in order.samples(0, np.zeros(0, np.int64), epoch)] == [0, 0]


@given(DATASETS, SEEDS, st.integers(0, 200))
def test_times_read(sizes: list[tuple[int, float]], seed: int, samples: int) -> None:
    order = order_of(sizes, seed)
    times = Counter(order.rows(0, samples).tolist())
    for place, part in enumerate(order.parts):
        first = order.first_row(place)
        expected = [times[row] for row in range(first, first + part.rows)]
        assert order.times_read(place, samples).tolist() == expected


@given(DATASETS, SEEDS, st.integers(0, 60), st.lists(st.integers(1, 9), max_size=6))
def test_the_batch_size_is_not_in_the_order(
    sizes: list[tuple[int, float]], seed: int, first: int, batches: list[int]
) -> None:
    order = order_of(sizes, seed)
    whole = order.rows(first, sum(batches)).tolist()
    starts = itertools.accumulate(batches, initial=first)
    parts = [order.rows(start, size).tolist() for start, size in zip(starts, batches, strict=False)]
    assert [row for part in parts for row in part] == whole


@given(st.integers(1, 40), SEEDS, st.integers(0, 90), st.booleans())
def test_one_data_set_of_weight_1_is_the_plain_order(
    rows: int, seed: int, first: int, in_file_order: bool
) -> None:
    shuffle = KeyedShuffle(rows, seed, in_file_order)
    order = TrainingOrder((OrderPart(rows, rows),), seed, shuffle)
    plain = rows_of_samples(first, 50, rows=rows, seed=seed, file_order_first_epoch=in_file_order)
    assert order.rows(first, 50).tolist() == plain.tolist()


def test_large_data_sets_need_no_memory() -> None:
    order = order_of([(2**40, 1.5), (3 * 2**40, 0.25)], seed=3)
    sample = 7 * order.epoch_samples + 12345
    rows = order.rows(sample, 64)
    for place, part in enumerate(order.parts):
        mine = rows - order.first_row(place)
        mine = mine[(mine >= 0) & (mine < part.rows)]
        assert len(mine)
        _, samples = order.samples(place, mine, 7)
        assert set(range(sample, sample + 64)) & set(samples.tolist())


@pytest.mark.parametrize(
    ("rows", "weight", "samples"),
    [(10, 1, 10), (10, 0.25, 3), (10, 0.24, 2), (3, 0.1, 0), (1000, 0.1, 100), (7, 3.0, 21)],
)
def test_samples_of_weight(rows: int, weight: float, samples: int) -> None:
    assert samples_of_weight(rows, weight) == samples
