"""How many workers a run starts by itself."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.executor import automatic_workers

MB = 10**6


def chosen(cores: int, text_bytes: int) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: cores)
        return automatic_workers(text_bytes)


@pytest.mark.parametrize(
    ("cores", "megabytes", "workers"),
    [
        (1, 100_000, 0),  # a worker alone is slower than this process
        (2, 1, 0),
        (2, 60, 0),
        (2, 450, 2),
        (64, 20, 0),
        (64, 100, 3),  # no more than have something to do
        (64, 100_000, 64),
    ],
)
def test_workers_start_where_they_are_done_earlier(
    cores: int, megabytes: int, workers: int
) -> None:
    assert chosen(cores, megabytes * MB) == workers


@given(st.integers(1, 256), st.integers(0, 10**13), st.integers(0, 10**13))
def test_more_text_never_gets_fewer_workers(cores: int, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert 0 <= chosen(cores, less) <= chosen(cores, more) <= cores
    assert chosen(cores, less) != 1 or cores > 1
