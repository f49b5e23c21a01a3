"""The whole pipeline killed at its fault points, resumed and compared with an undisturbed run."""

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.upkeep import STAGES

pytestmark = pytest.mark.crash
Sweep = Callable[..., dict[str, Any]]


def test_every_seventh_fault_point(sweep: Sweep, collection: Any, chaos_seed: int) -> None:
    result = sweep(
        "pipeline", "--config", collection.config, "--every", 7, "--offset", chaos_seed % 7
    )
    assert result["bad"] == []
    assert result["kills"] >= result["points"] // 7
    assert {f"task.start.{stage}" for stage in STAGES} <= set(result["names"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_fault_point(sweep: Sweep, collection: Any) -> None:
    result = sweep("pipeline", "--config", collection.config, "--every", 1)
    assert result["bad"] == []
    assert result["kills"] == result["points"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_torn_writes_and_kills_during_recovery(sweep: Sweep, collection: Any) -> None:
    result = sweep("pipeline", "--config", collection.config, "--torn", 5, "--compound", 40)
    assert result["bad"] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_power_loss(sweep: Sweep, collection: Any) -> None:
    result = sweep("pipeline", "--config", collection.config, "--every", 4, "--power-loss")
    assert result["bad"] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("change", ["pack.max_sequence_length=48", "seed=9", "dedup.preset=none"])
def test_kills_while_a_finished_run_is_rebuilt(sweep: Sweep, collection: Any, change: str) -> None:
    result = sweep("pipeline", "--config", collection.config, "--set", change, "--every", 9)
    assert result["bad"] == []
