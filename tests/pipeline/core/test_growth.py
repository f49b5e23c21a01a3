"""The training order over generations against the definition, spelt out row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import order, rng
from pipeline.core.growth import GrownOrder
from pipeline.core.order import OrderPart

SEED = 7


def spell_out(sizes: list[int], waits: list[int], samples: int) -> tuple[list[int], list[int]]:
    """The first rows, and where each generation joins: so many epochs of all rows after the one
    before was read for the first time. -1: together with the one before."""
    rows, joins, total, epoch = [], [], 0, 1
    for place, size in enumerate(sizes):
        if place and waits[place] < 0:
            joins.append(joins[-1])
        else:
            if place:
                for _ in range(waits[place]):
                    key = rng.key(SEED, "training-order", epoch)
                    rows += rng.permute(np.arange(total), total, key).tolist()
                    epoch += 1
            joins.append(len(rows))
        rows += range(total, total + size)
        total += size
    while len(rows) < samples:
        key = rng.key(SEED, "training-order", epoch)
        rows += rng.permute(np.arange(total), total, key).tolist()
        epoch += 1
    return rows, joins


def make(sizes: list[int], joins: list[int]) -> GrownOrder:
    return GrownOrder(tuple(OrderPart(n, n) for n in sizes), tuple(joins), SEED)


GENERATIONS = st.lists(st.tuples(st.integers(1, 9), st.integers(-1, 3)), min_size=1, max_size=4)


@given(GENERATIONS, st.integers(0, 60), st.integers(0, 40))
def test_rows_are_those_of_the_definition(
    generations: list[tuple[int, int]], first: int, count: int
) -> None:
    sizes, waits = [n for n, _ in generations], [w for _, w in generations]
    expected, joins = spell_out(sizes, waits, first + count)
    grown = make(sizes, joins)
    assert grown.rows(first, count).tolist() == expected[first : first + count]


@given(GENERATIONS, st.integers(0, 80))
def test_inverse_and_times(generations: list[tuple[int, int]], samples: int) -> None:
    sizes, waits = [n for n, _ in generations], [w for _, w in generations]
    expected, joins = spell_out(sizes, waits, samples)
    grown = make(sizes, joins)
    for part, size in enumerate(sizes):
        first, rows = grown.first_row(part), np.arange(size)
        times = [expected[:samples].count(first + row) for row in range(size)]
        assert grown.times_read(part, samples).tolist() == times
        found = set()
        for number in grown.rounds(0, samples):
            which, sample = grown.samples(part, rows, number)
            found |= {(int(s), first + int(w)) for s, w in zip(sample, which, strict=True)}
        mine = range(first, first + size)
        read = {(s, row) for s, row in enumerate(expected[:samples]) if row in mine}
        assert {pair for pair in found if pair[0] < samples} == read


@given(GENERATIONS, st.integers(0, 80), st.integers(1, 9))
def test_what_joins_leaves_all_rows_before_it_as_they_were(
    generations: list[tuple[int, int]], samples: int, size: int
) -> None:
    sizes, waits = [n for n, _ in generations], [w for _, w in generations]
    _, joins = spell_out(sizes, waits, 0)
    before = make(sizes, joins)
    at = max(before.end_of_round(samples), joins[-1] + 1)
    at = before.end_of_round(at)
    grown = make([*sizes, size], [*joins, at])
    assert at >= samples
    assert grown.rows(0, at).tolist() == before.rows(0, at).tolist()
    total = sum(sizes)
    assert grown.rows(at, size).tolist() == list(range(total, total + size))
    assert sorted(grown.rows(at + size, total + size)) == list(range(total + size))


def test_one_generation_is_the_order_of_a_data_set_alone() -> None:
    plain = order.TrainingOrder((OrderPart(11, 11),), SEED, order.KeyedShuffle(11, SEED, True))
    assert make([11], [0]).rows(0, 50).tolist() == plain.rows(0, 50).tolist()


def test_joining_in_the_first_round_is_as_if_it_had_been_there() -> None:
    at = make([11], [0]).end_of_round(4)
    later = make([11, 5], [0, at])
    assert later.rows(0, 90).tolist() == make([11, 5], [0, 0]).rows(0, 90).tolist()


@pytest.mark.parametrize("joins", [(1,), (0, 3), (0, 11, 11, 5), (0, -11)])
def test_joins_that_are_no_ends_of_rounds_are_refused(joins: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"join|end of a round"):
        make([11] * len(joins), list(joins))
