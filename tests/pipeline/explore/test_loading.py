"""What the explorer notes of every document when it starts: bins of numbers, and combinations of
labels."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.explore import loading
from pipeline.explore.bins import choose_edges, number_bins

NOTHING = [math.nan, math.inf, -math.inf, None]
VALUES = {
    "double": st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    "bigint": st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30),
}


def count_slowly(values: list[Any], edges: tuple[float, ...]) -> list[int]:
    return [sum(1 for v in values if low < v <= high) for low, high in pairwise(edges)]


@pytest.mark.parametrize("kind", ["double", "bigint"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_bin_holds_what_its_range_holds(kind: str, data: st.DataObject) -> None:
    values = data.draw(VALUES[kind])
    edges, _ = choose_edges(min(values), max(values), kind == "bigint")
    nothing = NOTHING if kind == "double" else [None]
    rows = pa.table(
        {"value": pa.array([*values, *nothing], pa.float64() if kind == "double" else pa.int64())}
    )
    import duckdb

    sql = f"select {number_bins('value', edges, kind)} as bin, count(*) from rows group by all"
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        counts = dict(connection.execute(sql).fetchall())
    below = counts.pop(1, 0) - (kind == "double")  # -inf has no lower bound either
    assert [below, *(counts.pop(n, 0) for n in range(2, len(edges)))] == count_slowly(values, edges)
    assert set(counts) <= {None}


def test_bounds_are_those_of_finite_values(tmp_path: Path) -> None:
    """By what the file notes, and where that is infinite, by the values."""
    parts = [
        {"a": [1.5, None, 3.0], "b": [math.inf, 2.0, math.nan], "c": [None] * 3, "d": [5, 7, 6]},
        {"a": [-1.0, 0.0, 1.0], "b": [-math.inf, 9.0, None], "c": [math.nan] * 3, "d": [8, 1, 6]},
    ]
    schema = pa.schema([(n, pa.float64()) for n in "abc"] + [("d", pa.uint64())])
    bounds: dict[str, tuple[float, float]] = {}
    for number, part in enumerate(parts):
        pq.write_table(pa.table(part, schema=schema), tmp_path / f"{number}.parquet")
        with pq.ParquetFile(tmp_path / f"{number}.parquet") as file:
            loading._add_bounds(file, [*"abcde"], bounds)
    assert bounds == {"a": (-1.0, 3.0), "b": (2.0, 9.0), "d": (1, 8)}


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_a_combination_stands_for_its_labels(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts whose labels are read in another order, with nulls, as texts and as dictionaries."""
    monkeypatch.setattr(loading, "_MOST_CODES", most)
    draw, combinations = np.random.default_rng(1), loading._Combinations()
    names = [*loading.FACETS, loading.LANGUAGE]
    seen = set()
    for part in range(4):
        labels = {
            name: [(None, "", "x", f"of {part}")[n] for n in draw.integers(0, 4, 500)]
            for name in names
        }
        columns = {name: pa.array(values, pa.string()) for name, values in labels.items()}
        if part % 2:
            columns = {name: column.dictionary_encode() for name, column in columns.items()}
        numbers = combinations.number(pa.table(columns)).to_pylist()
        for number, *values in zip(numbers, *labels.values(), strict=True):
            expected = {name: value or "" for name, value in zip(names, values, strict=True)}
            assert combinations.labels[number] == expected
            seen.add(tuple(expected.values()))
    assert len(combinations.labels) == len(seen)
