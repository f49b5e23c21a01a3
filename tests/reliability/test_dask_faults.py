"""Real processes: the whole group killed at random times, single workers killed in each stage."""

import os
import random
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.stages import stages_by_default

STAGES = stages_by_default()

pytestmark = pytest.mark.crash
NORMALLY = "clean"
IN_DRIVER = "components"
"""The stage whose task is no worker's: killing it kills prep, and the same command resumes."""


def kill_at_random(start: Any, out: Path, rng: random.Random, spent: list[float]) -> bool:
    """Kill the group some time after the run began; returns whether it was still running."""
    run = start(out, 2)
    run.wait_for("journal/events.jsonl")
    delay = rng.uniform(0, 2.5)
    spent.append(delay)
    time.sleep(delay)
    alive = run.process.poll() is None
    run.kill_group()
    wait_until_gone(run.process.pid)
    return alive


def wait_until_gone(group: int, seconds: float = 20) -> None:
    """A killed process may take a moment to leave; none may go on working beside the next run."""
    deadline = time.monotonic() + seconds
    while alive := [p for p in psutil.process_iter() if _in_group(p, group)]:
        assert time.monotonic() < deadline, f"still there after SIGKILL: {alive}"
        time.sleep(0.02)


def _in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def kill_some(start: Any, out: Path, rng: random.Random, kills: int) -> int:
    """Kill so many runs; returns how many were still running."""
    delays: list[float] = []
    alive = sum(kill_at_random(start, out, rng, delays) for _ in range(kills))
    print(f"{out.name}: killed after {delays} s")
    return alive


def killed_then_resumed(start: Any, out: Path, rng: random.Random, kills: int) -> int:
    alive = kill_some(start, out, rng, kills)
    resumed = start(out, 2).finish()
    assert resumed.code == 0, resumed.err
    return alive


def test_the_group_is_killed_and_its_recovery_too(
    collection: Any, tmp_path: Path, start: Any, prep: Any, rng: random.Random, undamaged: Any
) -> None:
    """The last recovery is in this process; the slow test below has workers for that, too."""
    kill_some(start, tmp_path / "run", rng, 2)
    assert prep("run", collection.config, "--out", tmp_path / "run", "--workers", 0).code == 0
    undamaged(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_random_kills_of_the_group(
    tmp_path: Path, start: Any, rng: random.Random, undamaged: Any
) -> None:
    killed = runs = 0
    while killed < 20:
        out = tmp_path / f"run{runs}"
        killed += killed_then_resumed(start, out, rng, rng.choice((1, 1, 2, 3)))
        undamaged(out)
        runs += 1
    print(f"{killed} kills of running groups, {runs} runs")


@pytest.mark.parametrize(
    "stage", [s if s == NORMALLY else pytest.param(s, marks=pytest.mark.slow) for s in STAGES]
)
def test_a_killed_worker_is_survived(
    tmp_path: Path, start: Any, stage: str, undamaged: Any
) -> None:
    killed = tmp_path / "killed"
    outcome = start(tmp_path / "run", 2, f"task.start.{stage}@1=killonce:{killed}").finish()
    assert killed.exists()
    if stage == IN_DRIVER:
        assert outcome.code == -9
        outcome = start(tmp_path / "run", 2).finish()
    assert outcome.code == 0, outcome.err
    undamaged(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("point", ["storage.publish.written@2", "storage.publish.renamed@3"])
def test_a_worker_killed_while_publishing_is_survived(
    tmp_path: Path, start: Any, point: str, undamaged: Any
) -> None:
    killed = tmp_path / "killed"
    outcome = start(tmp_path / "run", 2, f"{point}=killonce:{killed}").finish()
    if outcome.code == -9:
        outcome = start(tmp_path / "run", 2).finish()
    assert outcome.code == 0, outcome.err
    undamaged(tmp_path / "run")


def test_records_behind_a_manifest_are_gone_after_the_next_run(
    collection: Any, tmp_path: Path, prep: Any, undamaged: Any
) -> None:
    """As a kill leaves them after the manifest of their stage is there, before they are removed."""
    again = ("run", collection.config, "--out", tmp_path / "run", "--workers", 0)
    assert prep(*again).code == 0
    left = tmp_path / "run/journal/records/plan/000000.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    assert prep(*again).code == 0
    undamaged(tmp_path / "run")


def test_a_task_that_kills_three_workers_fails_by_name(
    collection: Any, tmp_path: Path, start: Any, prep: Any, undamaged: Any
) -> None:
    out, began = tmp_path / "run", time.monotonic()
    outcome = start(out, 1, "task.start.tokenize@1=kill").finish()
    assert outcome.code == 5, outcome.err
    assert time.monotonic() - began < 60
    message = outcome.err.splitlines()[-1]
    assert message.startswith("prep: tokens of documents/")
    assert "killed 3 workers" in message
    assert "Traceback" not in outcome.err
    assert prep("run", collection.config, "--out", out, "--workers", 0).code == 0
    undamaged(out)
