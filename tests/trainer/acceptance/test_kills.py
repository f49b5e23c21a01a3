"""Runs that are killed again and again end as the unbroken run does: the same metrics file (rates
aside), evaluations, run.json and checkpoint files, to the byte.

Every run crosses the step of the batch-size schedule and several epochs, with dropout on; kills
come twice and more in a row, at fault points, in the middle of the checkpoint writer's work and at
any other moment, and the run goes on from 4 systems to 2. Ten kills every day; about a hundred:

    python -m pytest tests/trainer/acceptance/test_kills.py -m slow
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import failpoint
from pipeline.core.hashes import hash_bytes
from tests.slow import mark_slow
from tests.trainer.data.test_training_run import corpus_and_vsl, parts

from ..conftest import Trainer

pytestmark = pytest.mark.crash
KILLED = -signal.SIGKILL
STEPS = 14
SCHEDULE = [{"from_step": 1, "batch_size": 4}, {"from_step": 6, "batch_size": 6}]
"""74 samples, more than two epochs of every data set here."""
LONG = 80
"""Steps of a run in which ten kills have room."""
RATES = {"samples_per_second", "stall_seconds"}
SYSTEMS = {"num_csx", "leaves_per_csx"}
"""What a line says of how a step was run, and not of what came out."""


def epochs(trainer: Trainer, make_split: Any, make_rows: Any) -> dict[str, Any]:
    """20 rows, with evaluations in between."""
    for split, count in (("train", 20), ("validation", 9)):
        make_split(trainer.root / "small" / "hdf5" / split, make_rows(count, seed=count))
    configure(trainer)
    return {"data": trainer.root / "small", "mode": "train_and_eval"}


def vsl(trainer: Trainer, make_split: Any, make_rows: Any) -> dict[str, Any]:
    configure(trainer, data_dir=str(corpus_and_vsl(trainer)[1]), use_vsl=True)
    return {"data": None}


def mixture(trainer: Trainer, make_split: Any, make_rows: Any) -> dict[str, Any]:
    weighted = zip(parts(trainer, make_split, make_rows), (0.5, 0.45), strict=True)
    configure(trainer, mixture=[{"data_dir": str(d), "weight": w} for d, w in weighted])
    return {"data": None}


def configure(trainer: Trainer, **train_input: Any) -> None:
    trainer.configure(
        train_input={
            "batch_size": None,
            "micro_batch_size": 1,
            "batch_size_schedule": SCHEDULE,
            **train_input,
        },
        model={"dropout_rate": 0.1},
        runconfig={"checkpoint_steps": 3},
    )


SCENARIOS = {"epochs": epochs, "vsl": vsl, "mixture": mixture}


@dataclass
class Drill:
    """A whole run and what it left; `points`: its fault points, in order."""

    trainer: Trainer
    steps: int
    changes: dict[str, Any]
    points: list[str]
    ending: Any

    def kill(self, out: str, how: str, share: int, **changes: Any) -> str:
        """Kill one attempt, not later than after a `share`-th of a whole run's fault points, or
        steps; returns the fault plan or the moment. A resumed run may end before it."""
        if how == "moment":
            return self._kill_at_a_moment(out, random.randint(0, self.steps // share), changes)
        name = "*" if how == "point" else random.choice([n for n in self.points if writes(n)])
        count = len(self.points) if name == "*" else Counter(self.points)[name]
        plan = f"{name}@{random.randint(1, max(1, count // share))}=kill"
        if name == "storage.publish.start":
            plan = plan.replace("kill", "torn:0.5")
        begun = (self.trainer.root / out).exists()
        status = self.trainer.train_forked(out, plan, **self.options(changes))
        assert status == KILLED or (begun and status == 0), plan
        return plan

    def _kill_at_a_moment(self, out: str, step: int, changes: dict[str, Any]) -> str:
        """Some time after a step, of those not yet done."""
        metrics = self.trainer.root / out / "metrics.jsonl"
        pause = random.random() * 0.02
        target = min(lines_of(metrics) + step, self.steps - 1)
        child = os.fork()
        if child == 0:
            self.trainer._in_child(self.trainer.request(out, **self.options(changes)), "")
        deadline = time.monotonic() + 60
        while lines_of(metrics) < target and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(pause)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"{pause:.3f} s after step {target}"

    def finish_and_check(self, out: str, story: Any) -> None:
        assert self.trainer.train_forked(out, **self.options({"num_csx": 2})) == 0, story
        assert ending(self.trainer, out) == self.ending, story
        systems = [line["num_csx"] for line in self.trainer.metrics(out)]
        assert systems == sorted(systems, reverse=True), story
        assert not list((self.trainer.root / out).rglob(".tmp-*")), story

    def options(self, changes: dict[str, Any]) -> dict[str, Any]:
        return {"num_steps": self.steps, **self.changes, **changes}


def writes(point: str) -> bool:
    """Whether it lies on the way of a checkpoint to the disk; run.json alone does too."""
    return point.startswith(("storage.publish", "trainer.checkpoint"))


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ending(trainer: Trainer, out: str) -> Any:
    """All that a run leaves for those after it, but for rates, logs and TensorBoard's events."""
    directory = trainer.root / out
    lines = [
        {k: v for k, v in line.items() if k not in RATES | SYSTEMS} for line in trainer.metrics(out)
    ]
    names = [p for p in sorted((directory / "checkpoints").rglob("*")) if p.is_file()]
    names += [p for p in (directory / "run.json", directory / "eval.jsonl") if p.exists()]
    files = {p.relative_to(directory).as_posix(): hash_bytes(p.read_bytes()) for p in names}
    return [list(line.items()) for line in lines], files


Prepare = Callable[..., Drill]


@pytest.fixture
def drill(
    trainer: Trainer, make_split: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> Prepare:
    def made(scenario: str, steps: int = STEPS) -> Drill:
        # What forks share is imported by a run with the fixture's own params.
        assert trainer.train_forked("ready", num_steps=1) == 0
        changes = SCENARIOS[scenario](trainer, make_split, make_rows)
        found, log = Drill(trainer, steps, changes, [], None), trainer.root / "points"
        with monkeypatch.context() as patch:
            patch.setattr(failpoint, "_log", str(log))
            assert trainer.train_forked("whole", num_csx=4, **found.options({})) == 0
        found.points, found.ending = log.read_text().split(), ending(trainer, "whole")
        assert len(found.points) > 100
        assert len(found.ending[0]) == steps
        return found

    return made


def ways(count: int) -> Iterator[str]:
    """How an attempt ends; all of them turn up soon."""
    kinds = ["moment", "point", "writer"]
    random.shuffle(kinds)
    for number in range(count):
        yield kinds[number % len(kinds)]


@pytest.mark.parametrize(
    ("scenario", "kills"), mark_slow([("epochs", 4), ("vsl", 3), ("mixture", 3)], ("mixture", 3))
)
def test_killed_again_and_again(drill: Prepare, scenario: str, kills: int) -> None:
    """The first attempt with 4 systems, all others with 2."""
    prepared, story = drill(scenario), []
    for number, how in enumerate(ways(kills)):
        systems = 4 if number == 0 else 2
        story.append(prepared.kill("out", how, 2 * kills, num_csx=systems))
    prepared.finish_and_check("out", story)


def test_killed_before_the_oldest_checkpoint_goes(drill: Prepare) -> None:
    """The last one is committed, so there is nothing left to train."""
    prepared = drill("epochs")
    last = prepared.points.count("trainer.checkpoint.committed")
    plan = f"trainer.checkpoint.committed@{last}=kill"
    options = prepared.options({"num_csx": 2})
    assert prepared.trainer.train_forked("out", plan, **options) == KILLED
    prepared.finish_and_check("out", plan)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ten_runs_killed_twice_each(drill: Prepare, scenario: str) -> None:
    """The first anywhere, the second anywhere in the first half of what a run has to do."""
    prepared = drill(scenario)
    for number in range(10):
        out, story = f"out{number}", []
        for systems, how in zip((4, 2), ways(2), strict=True):
            story.append(prepared.kill(out, how, 1 if systems == 4 else 2, num_csx=systems))
        prepared.finish_and_check(out, story)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ten_kills_of_real_commands(drill: Prepare, scenario: str) -> None:
    """`train CSX` as a user types it: ten processes are killed, the first while it starts."""
    prepared = drill(scenario, LONG)
    trainer, data = prepared.trainer, prepared.changes["data"]
    command = [
        sys.executable, "-m", "trainer.cli", "CSX", "--params", str(trainer.params),
        "--mode", prepared.changes.get("mode", "train"), "--num_steps", str(LONG),
        "--model_dir", str(trainer.root / "out"), *(["--data", str(data)] if data else []),
    ]  # fmt: skip
    metrics = trainer.root / "out" / "metrics.jsonl"
    targets = [0, *sorted(random.sample(range(1, LONG - 20), 9))]
    for number, target in enumerate(targets):
        systems = "4" if number < 5 else "2"
        process = subprocess.Popen([*command, "--num_csx", systems], stdout=subprocess.DEVNULL)
        while process.poll() is None and lines_of(metrics) < target:
            time.sleep(0.001)
        time.sleep(random.random() * (0.01 if target else 4))
        process.kill()
        assert process.wait() == KILLED, targets
    prepared.finish_and_check("out", targets)
