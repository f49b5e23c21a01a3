"""`prep dedup` and its index killed at their fault points, resumed and compared."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.stages import stages_by_default, stages_called_for_by

pytestmark = pytest.mark.crash
Sweep = Callable[..., dict[str, Any]]
SUBJECTS = ("dedup", "index")


@pytest.fixture
def files(collection: Any) -> list[Any]:
    return sorted((collection.directory / "raw").iterdir())


@pytest.mark.parametrize("subject", SUBJECTS)
def test_some_fault_points(subject: str, sweep: Sweep, files: list[Any], chaos_seed: int) -> None:
    options = ("--every", 307, "--offset", chaos_seed % 307)
    result = sweep(subject, "--files", *files, *options)
    assert result["bad"] == []
    assert result["kills"] >= result["points"] // 307
    stages = {*stages_by_default(subject)}
    if subject == "dedup":
        stages |= {"pieces", *stages_called_for_by("substrings"), "cuts", "cut_table"}
    assert {f"task.start.{stage}" for stage in stages} <= set(result["names"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_fault_point(subject: str, sweep: Sweep, files: list[Any]) -> None:
    result = sweep(subject, "--files", *files, "--every", 1)
    assert result["bad"] == []
    assert result["kills"] == result["points"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_torn_writes_power_loss_and_kills_during_recovery(
    subject: str, sweep: Sweep, files: list[Any]
) -> None:
    torn = sweep(subject, "--files", *files, "--torn", 7, "--compound", 20)
    lost = sweep(subject, "--files", *files, "--every", 5, "--power-loss")
    assert torn["bad"] == lost["bad"] == []
