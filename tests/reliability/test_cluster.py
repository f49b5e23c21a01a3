"""A Dask cluster of processes of its own, started as docs/clusters.md shows: its scheduler killed,
its connections encrypted with certificates that openssl made."""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.reliability.conftest import PREP, make_certificates

pytestmark = pytest.mark.crash
DASK = Path(sys.executable).with_name("dask")
PROGRESS = re.compile(r"\[\d+/\d+\] \w+: (\d+/|reused)|note: compiling ")


class Cluster:
    """A scheduler and two workers; `environment`: variables of both."""

    def __init__(self, protocol: str, directory: Path, **environment: str) -> None:
        self._environment = {**os.environ, **environment}
        self._directory, self._started = directory, []
        file = directory / "scheduler.json"
        options = ("--host", "127.0.0.1", "--protocol", protocol, "--port", "0", "--no-dashboard")
        self.scheduler = self._start("scheduler", *options, "--scheduler-file", file)
        self._start(
            "worker", "--nthreads", "1", "--nworkers", "2", "--no-dashboard", "--protocol",
            protocol, "--scheduler-file", file,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not (found := re.search(rf'"({protocol}://[^"]+)"', _text(file))):
            assert time.monotonic() < deadline and self.scheduler.poll() is None
            time.sleep(0.05)
        self.address = found[1]

    def _start(self, *arguments: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [str(a) for a in (DASK, *arguments)], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=self._environment, cwd=self._directory,
        )  # fmt: skip
        self._started.append(process)
        return process

    def stop(self) -> None:
        while self._started:
            process = self._started.pop(0)
            family = psutil.Process(process.pid).children(recursive=True)
            for child in family if process.poll() is None else ():
                child.kill()
            process.kill()
            process.wait()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    started: list[Cluster] = []

    def call(protocol: str = "tcp", **environment: str) -> Cluster:
        directory = tmp_path / f"cluster{len(started)}"
        directory.mkdir()
        started.append(Cluster(protocol, directory, **environment))
        return started[-1]

    yield call
    for one in started:
        one.stop()


def start(collection: Any, out: Path, address: str, **environment: str) -> Any:
    command = [PREP, "run", collection.config, "--out", out, "--cluster", address]
    return subprocess.Popen(
        [str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_a_killed_scheduler_is_one_line_and_the_same_command_resumes(
    collection: Any, tmp_path: Path, cluster: Any, prep: Any, rng: random.Random, undamaged: Any,
    kills: int,
) -> None:  # fmt: skip
    """After one kill it resumes in this process; after many, on another cluster."""
    out, killed = tmp_path / "run", 0
    while killed < kills:
        there = cluster()
        run = start(collection, out, there.address)
        while not (out / "journal/events.jsonl").exists() and run.poll() is None:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 3))
        there.scheduler.kill()
        at = time.monotonic()
        _, err = run.communicate(timeout=120)
        if run.returncode == 0:
            shutil.rmtree(out)
            continue
        killed += 1
        assert time.monotonic() - at < 45
        assert run.returncode == 5, err
        said = [line for line in err.splitlines() if not PROGRESS.match(line)]
        assert len(said) == 1, err
        assert re.match(rf"prep: .*{re.escape(there.address)}.*", said[0])
        assert "Traceback" not in err
    if kills == 1:
        there.stop()  # a worker that still ends its task would leave a record behind
        assert prep("run", collection.config, "--out", out, "--workers", 0).code == 0
    else:
        run = start(collection, out, cluster().address)
        _, err = run.communicate(timeout=300)
        assert run.returncode == 0, err
    undamaged(out)


def test_tls_as_the_page_shows(
    collection: Any, tmp_path: Path, cluster: Any, certificates: Path, undamaged: Any
) -> None:
    config = {"DASK_CONFIG": str(certificates / "dask.yaml")}
    there = cluster("tls", **config)
    run = start(collection, tmp_path / "run", there.address, **config)
    _, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    undamaged(tmp_path / "run")
    for address, variables, message in (
        (there.address, {}, "Dask's own config names no certificates"),
        (there.address.replace("tls:", "tcp:"), config, "requires tls://"),
        (there.address.replace("tls:", "tcp:"), {}, "no Dask scheduler answers"),
    ):
        run = start(collection, tmp_path / "no", address, **variables)
        _, err = run.communicate(timeout=120)
        assert run.returncode == 5 and message in err and len(err.splitlines()) == 1, err


@pytest.mark.slow
def test_another_certificate_is_refused(
    collection: Any, tmp_path: Path, cluster: Any, certificates: Path
) -> None:
    """One that the authority did not sign opens nothing."""
    there = cluster("tls", DASK_CONFIG=str(certificates / "dask.yaml"))
    other = make_certificates(tmp_path / "other")
    run = start(collection, tmp_path / "no", there.address, DASK_CONFIG=str(other / "dask.yaml"))
    _, err = run.communicate(timeout=120)
    assert run.returncode == 5 and "no Dask scheduler answers" in err, err
