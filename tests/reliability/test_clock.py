"""Clocks that jump by days, forwards and backwards, in the middle of a run: in every process of it,
through a `sitecustomize` that Python imports at its start."""

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Ended, prep_in_fork
from tests.reliability.conftest import PREP

JUMPING = """
import random, time
real, monotonic = time.time, time.monotonic
def offset():
    step = int(monotonic() / EVERY)
    if FORWARDS:
        return 3600.0 * step
    return random.Random(step).choice((0, 86400.0, -86400.0, 3e8, -3e8))
time.time = lambda: real() + offset()
time.time_ns = lambda: int(time.time() * 1e9)
"""


JUMPS = f"FORWARDS, EVERY = False, 0.3\n{JUMPING}"


def jumping(
    directory: Path, fault: str = "", forwards: bool = False, every: float = 0.3
) -> dict[str, str]:
    """The environment of a process whose clock jumps every so many seconds."""
    constants = f"FORWARDS, EVERY = {forwards}, {every}\n"
    (directory / "sitecustomize.py").write_text(constants + JUMPING)
    return {**os.environ, "PYTHONPATH": str(directory), "WAFERMILL_FAILPOINT": fault}


@pytest.mark.crash
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_clock_that_jumps_changes_nothing(
    collection: Any, tmp_path: Path, rng: random.Random, undamaged: Any, workers: int
) -> None:
    """Killed once, and resumed; `prep status` and a run that is up to date work as well. With
    workers it jumps forwards: Dask waits for a time that was set back to come again."""
    out = tmp_path / "run"
    command = [PREP, "run", collection.config, "--out", out, "--workers", workers]

    def call(fault: str = "", *other: object) -> Ended:
        """Without workers in a fork, whose clock jumps just as much."""
        arguments = other or command[1:]
        if not workers:
            return prep_in_fork(*arguments, fault=fault, before=JUMPS)
        ended = subprocess.run(
            [str(PREP), *map(str, arguments)], capture_output=True, text=True,
            env=jumping(tmp_path, fault, forwards=True), timeout=300,
        )  # fmt: skip
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    if workers:
        started = subprocess.Popen(
            [str(part) for part in command], env=jumping(tmp_path, forwards=True),
            stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        while not (out / "manifests/clean.json").exists() and started.poll() is None:
            time.sleep(0.02)
        started.kill()
        started.wait()
    else:
        assert call(f"*@{rng.randint(20, 300)}=kill").code == -9
    resumed = call()
    assert resumed.code == 0, resumed.err
    undamaged(out)
    for arguments in (("status", out), ("verify", out)):
        answered = call("", *arguments)
        assert answered.code == 0, answered.err
    assert "everything was up to date" in call().out


SET_BACK = """
import time
real, monotonic = time.time, time.monotonic
time.time = lambda: real() - (86400.0 if monotonic() > AT else 0.0)
time.time_ns = lambda: int(time.time() * 1e9)
"""


@pytest.mark.crash
@pytest.mark.slow
def test_a_clock_set_back_by_a_day_with_workers(
    collection: Any, tmp_path: Path, rng: random.Random, undamaged: Any
) -> None:
    """Once in a run, in all of its processes at the same time, as an administrator does it. If Dask
    then waits for the next day, the same command resumes the run when it was stopped."""
    for number in range(3):
        at = time.monotonic() + rng.uniform(2, 10)
        (tmp_path / "sitecustomize.py").write_text(f"AT = {at}\n{SET_BACK}")
        out = tmp_path / f"run{number}"
        command = [str(PREP), "run", str(collection.config), "--out", str(out), "--workers", "2"]
        set_back = {**os.environ, "PYTHONPATH": str(tmp_path)}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=60, env=set_back)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        undamaged(out)


def test_the_clock_really_jumps(tmp_path: Path) -> None:
    """Fifty steps long in one process, so that equal offsets in all of them have no chance."""
    program = (
        "import time\n"
        "end = time.monotonic() + 0.5\n"
        "while time.monotonic() < end: print(time.time(), time.time_ns() / 1e9)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=jumping(tmp_path, every=0.01),
    )  # fmt: skip
    assert len({round(float(value), -4) for value in printed.stdout.split()}) > 1


@pytest.mark.parametrize("shift", [-3e8, 3e8])
def test_files_from_another_time(
    collection: Any, tmp_path: Path, prep: Any, undamaged: Any, shift: float
) -> None:
    """Raw shards and all of a run have times years ago, or years ahead: all of it is reused."""
    raw, out = collection.copy(tmp_path / "raw"), tmp_path / "run"
    assert prep("run", raw.config, "--out", out, "--workers", 0).code == 0
    at = time.time() + shift
    for path in (*raw.directory.rglob("*"), *out.rglob("*")):
        os.utime(path, (at, at))
    again = prep("run", raw.config, "--out", out, "--workers", 0)
    assert "everything was up to date" in again.out, again.err
    undamaged(out)
