"""`cluster.kind: slurm` on a real Slurm of this machine."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability import slurm
from tests.reliability.conftest import PREP

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(slurm.reason_to_skip()), reason=slurm.reason_to_skip() or "-"),
]
SECTION = """
cluster:
  kind: slurm
  workers: 2
  memory: 1 GB
  walltime: "00:10:00"
  patience: 2
  queue: {queue}
"""


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Slurm]:
    pytest.importorskip("dask_jobqueue")
    running = slurm.Slurm(tmp_path_factory.mktemp("slurm"))
    yield running
    running.stop()


@pytest.fixture
def start(daemons: slurm.Slurm, collection: Any, tmp_path: Path) -> Callable[..., Any]:
    def call(queue: str = "debug") -> subprocess.Popen[str]:
        (tmp_path / "cluster.yaml").write_text(SECTION.format(queue=queue))
        command = [PREP, "run", collection.config, "--out", tmp_path / "run"]
        return subprocess.Popen(
            [str(a) for a in (*command, "--cluster", tmp_path / "cluster.yaml")],
            env=daemons.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return call


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_jobs_make_the_same_bytes_and_a_lost_one_is_replaced(
    start: Any, daemons: slurm.Slurm, tmp_path: Path, undamaged: Any
) -> None:
    """One job is cancelled while tasks run; at the end there is none, and no key."""
    run = start()
    wait_until(lambda: "clean" in events(tmp_path) or run.poll() is not None)
    first, *_ = daemons.jobs("RUNNING")
    daemons.call("scancel", first)
    _, err = run.communicate(timeout=600)
    assert run.returncode == 0, err
    undamaged(tmp_path / "run")
    assert not (tmp_path / "run/journal/cluster").exists()
    wait_until(lambda: not daemons.jobs())


def test_a_killed_prep_leaves_no_job_and_resumes(
    start: Any, daemons: slurm.Slurm, tmp_path: Path, undamaged: Any
) -> None:
    """Its jobs end by themselves a minute after their scheduler, which it was."""
    run = start()
    wait_until(lambda: "clean" in events(tmp_path) or run.poll() is not None)
    run.kill()
    run.communicate()
    wait_until(lambda: not daemons.jobs(), 180)
    resumed = start()
    _, err = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, err
    undamaged(tmp_path / "run")


def test_what_sbatch_refuses_is_one_line(start: Any) -> None:
    run = start("nowhere")
    _, err = run.communicate(timeout=120)
    assert run.returncode == 5 and "Traceback" not in err, err
    assert "cluster.kind slurm: cannot start it on this machine: sbatch: error: invalid" in err


def events(directory: Path) -> str:
    path = directory / "run/journal/events.jsonl"
    return path.read_text() if path.exists() else ""
