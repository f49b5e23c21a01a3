"""The kernel alone: a toy of three stages killed at every fault point, and its mutants."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.crash
Sweep = Callable[..., dict[str, Any]]


def test_a_kill_at_a_fault_point_is_recovered(sweep: Sweep, chaos_seed: int) -> None:
    """At every fourth of them, others every day; one is torn, and recoveries are killed too."""
    result = sweep("toy", "--every", 4, "--offset", chaos_seed % 4, "--torn", 5, "--compound", 6)
    assert result["bad"] == []
    assert result["kills"] > result["points"] // 4 + 12
    assert result["points"] > 100


def test_power_loss_keeps_what_is_committed(sweep: Sweep, chaos_seed: int) -> None:
    options = ("--every", 6, "--offset", chaos_seed % 6, "--compound", 4)
    result = sweep("toy", *options, "--power-loss")
    assert result["bad"] == []


@pytest.mark.slow
def test_a_kill_at_every_fault_point_is_recovered(sweep: Sweep) -> None:
    result = sweep("toy", "--every", 1)
    assert result["bad"] == []
    assert result["kills"] == result["points"] > 100


@pytest.mark.slow
def test_torn_writes_and_kills_during_recovery(sweep: Sweep) -> None:
    result = sweep("toy", "--torn", 2, "--compound", 20)
    assert result["bad"] == []
    assert result["kills"] > 60


@pytest.mark.slow
def test_power_loss_at_every_fault_point(sweep: Sweep) -> None:
    result = sweep("toy", "--every", 1, "--torn", 1, "--compound", 200, "--power-loss")
    assert result["bad"] == []


WRONG_RESULT = "tree hash differs"
BROKEN_PROMISE = " promises "
REDONE = "were committed"
GONE = "the resumed run ended with 5"


@pytest.mark.parametrize(
    ("mutant", "caught_by", "options"),
    [
        ("in_place_without_records", WRONG_RESULT, ()),
        ("marker_before_data", BROKEN_PROMISE, ()),
        pytest.param("marker_before_data_trusted", GONE, (), marks=pytest.mark.slow),
        pytest.param(
            "existence_check_without_fsync",
            BROKEN_PROMISE,
            ("--power-loss",),
            marks=pytest.mark.slow,
        ),
        pytest.param("no_fsync", BROKEN_PROMISE, ("--power-loss",), marks=pytest.mark.slow),
        ("no_group_commit", BROKEN_PROMISE, ("--power-loss",)),
        pytest.param(
            "no_directory_fsync", BROKEN_PROMISE, ("--power-loss",), marks=pytest.mark.slow
        ),
        pytest.param("temps_left", WRONG_RESULT, (), marks=pytest.mark.slow),
        ("records_ignored", REDONE, ()),
    ],
)
def test_the_sweep_catches_a_defect(
    sweep: Sweep, mutant: str, caught_by: str, options: tuple[str, ...]
) -> None:
    result = sweep("toy", "--every", 3, "--mutant", mutant, *options)
    caught = [bad for bad in result["bad"] if caught_by in bad["problem"]]
    assert caught, f"{mutant} went unnoticed in {result['kills']} kills"
