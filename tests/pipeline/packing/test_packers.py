"""Segments, packers and placement against plain Python."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.hdf5.packing import (
    PACKERS,
    empty_vsl_rows,
    fill_vsl_rows,
    first_fit,
    fold,
    gather_segments,
    greedy,
    place_segments,
)

lengths = st.lists(st.integers(1, 60), max_size=40)


def plain_first_fit(labels: list[int], room: int) -> list[int]:
    """First-fit decreasing by looking at every row."""
    rows: list[int] = []
    chosen = [0] * len(labels)
    for i in sorted(range(len(labels)), key=lambda i: -labels[i]):
        row = next((r for r, left in enumerate(rows) if left >= labels[i]), len(rows))
        rows += [room] * (row == len(rows))
        rows[row] -= labels[i]
        chosen[i] = row
    return chosen


def plain_next_fit(labels: list[int], room: int) -> list[int]:
    chosen, left = [], 0
    for length in labels:
        row = chosen[-1] if chosen else -1
        if length > left:
            row, left = row + 1, room
        left -= length
        chosen.append(row)
    return chosen


@given(lengths, st.integers(1, 20))
@example([], 4)
@example([1, 1, 1], 4)
@example([5, 6, 9, 10], 4)
def test_fold(tokens: list[int], msl: int) -> None:
    """Every token but a document's first is a label exactly once, in order."""
    segments = fold(np.array(tokens, np.int64), msl)
    labels: dict[int, list[int]] = {}
    for document, start, count in zip(
        segments.document.tolist(), segments.start.tolist(), segments.labels.tolist(), strict=True
    ):
        assert 1 <= count <= msl
        labels.setdefault(document, []).extend(range(start + 1, start + count + 1))
    assert labels == {d: list(range(1, n)) for d, n in enumerate(tokens) if n > 1}


@given(st.integers(1, 24).flatmap(
    lambda msl: st.tuples(st.just(msl), st.lists(st.integers(1, msl), max_size=60))))  # fmt: skip
@example((4, []))
@example((4, [4]))
@example((4, [4, 4, 4]))
@example((4, [1]))
def test_packers_equal_plain_python(given_: tuple[int, list[int]]) -> None:
    msl, labels = given_
    array = np.array(labels, np.int64)
    assert first_fit(array, msl).tolist() == plain_first_fit(labels, msl)
    assert greedy(array, msl).tolist() == plain_next_fit(labels, msl)


@pytest.mark.parametrize("name", PACKERS)
@given(st.integers(1, 24).flatmap(
    lambda msl: st.tuples(st.just(msl), st.lists(st.integers(1, msl), max_size=60))))  # fmt: skip
def test_rows_hold_their_segments(name: str, given_: tuple[int, list[int]]) -> None:
    """No row holds more than it can, none is empty, segments of a row stand side by side."""
    msl, labels = given_
    array = np.array(labels, np.int64)
    row = PACKERS[name](array, msl)
    placed = place_segments(row, array)
    assert placed.rows == len(set(row.tolist())) == (max(row.tolist(), default=-1) + 1)
    ends: dict[int, int] = {}
    for segment, r, slot in zip(
        placed.segment.tolist(), placed.row.tolist(), placed.slot.tolist(), strict=True
    ):
        assert row[segment] == r and slot == ends.get(r, 0)
        ends[r] = slot + labels[segment]
    assert sorted(placed.segment.tolist()) == list(range(len(labels)))
    assert all(end <= msl for end in ends.values())


def test_first_fit_stays_near_the_fewest_rows() -> None:
    """Half-full and third-full segments fill up; 100,000 of them take well under a second."""
    labels = np.random.default_rng(5).integers(1, 2049, 100_000)
    rows = int(first_fit(labels, 2048).max()) + 1
    fewest = -(-int(labels.sum()) // 2048)
    assert fewest <= rows <= fewest * 1.01
    assert greedy(labels, 2048).max() + 1 > fewest * 1.2


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_channels_by_hand(dtype: type) -> None:
    rows = empty_vsl_rows(2, 5, 99)
    tokens = np.array([7, 8, 9, 5, 99, 1, 2], dtype)
    labels, row, slot = (np.array(v) for v in ([2, 1, 1], [1, 1, 0], [0, 2, 0]))
    fill_vsl_rows(rows, tokens, labels, row, slot)
    assert rows[1].tolist() == [
        [7, 8, 5, 99, 99], [1, 1, 1, 0, 0], [8, 9, 99, 99, 99], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0]
    ]  # fmt: skip
    assert rows[0].tolist() == [
        [1, 99, 99, 99, 99], [1, 0, 0, 0, 0], [2, 99, 99, 99, 99], [0] * 5, [0] * 5
    ]  # fmt: skip


def test_bounds_are_checked_outside_the_kernels() -> None:
    rows, one = empty_vsl_rows(1, 4, 0), np.ones(1, np.int64)
    for tokens, labels, row, slot in (
        (3, one, 0 * one, 0 * one),  # a token too many
        (2, one, one, 0 * one),  # a row too far
        (2, one, -one, 0 * one),
        (2, one, 0 * one, 4 * one),  # a column too far
        (2, one, 0 * one, -one),
    ):
        with pytest.raises(ValueError, match=r"tokens for|outside"):
            fill_vsl_rows(rows, np.zeros(tokens, np.uint16), labels, row, slot)
    with pytest.raises(ValueError, match="outside the tokens"):
        gather_segments(np.zeros(3, np.uint16), 2 * one, one)
