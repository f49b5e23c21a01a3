"""`cluster.kind: slurm` and `srun` on a real Slurm of this machine."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
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
  memory: 2 GB
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


# --- prep as a job step of several tasks ---


@pytest.fixture
def submit(daemons: slurm.Slurm, collection: Any, tmp_path: Path) -> Callable[..., Any]:
    """A batch script whose only line has `srun` start prep several times; what it prints is in
    printed.txt."""

    def call(tasks: int = 3, cluster: str = "srun") -> subprocess.Popen[str]:
        section = SECTION.format(queue="debug")
        (tmp_path / "cluster.yaml").write_text(section)
        step = (PREP, "run", collection.config, "--out", tmp_path / "run", "--cluster", cluster)
        (tmp_path / "batch.sh").write_text(f"#!/bin/sh\nsrun {' '.join(map(str, step))}\n")
        options = ("--wait", f"--ntasks={tasks}", f"--output={tmp_path}/printed.txt")
        return subprocess.Popen(
            ["sbatch", *options, "batch.sh"], env=daemons.environment, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return call


def process_ids(text: str) -> list[int]:
    """Of the processes whose command line has this text."""
    listed = subprocess.run(["pgrep", "-f", text], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def workers_of(directory: Path) -> list[int]:
    return process_ids(f"dask_worker.*{directory}/.run-srun")


def kill_prep(directory: Path) -> None:
    for pid in process_ids(f"^{PREP.parent}/python.*--out {directory}/run"):
        os.kill(pid, signal.SIGKILL)


def test_the_tasks_of_a_step_are_one_cluster(
    submit: Any, tmp_path: Path, undamaged: Any, daemons: slurm.Slurm
) -> None:
    """Two of the three are workers, one of which is killed; nothing of them stays."""
    job = submit()
    wait_until(lambda: "clean" in events(tmp_path) or job.poll() is not None)
    assert len(workers_of(tmp_path)) == 2, printed(tmp_path)
    children = psutil.Process(workers_of(tmp_path)[0]).children()
    children[-1].kill()
    job.communicate(timeout=600)
    assert job.returncode == 0, printed(tmp_path)
    assert "Traceback" not in printed(tmp_path)
    assert '"workers": 2' in events(tmp_path)
    undamaged(tmp_path / "run")
    assert not list(tmp_path.glob(".run-srun*")) and not workers_of(tmp_path)


def test_a_step_whose_first_task_is_killed_ends_and_resumes(
    submit: Any, tmp_path: Path, undamaged: Any
) -> None:
    job = submit()
    wait_until(lambda: "clean" in events(tmp_path) or job.poll() is not None)
    kill_prep(tmp_path)
    job.communicate(timeout=180)
    assert job.returncode != 0 and not workers_of(tmp_path)
    resumed = submit()
    resumed.communicate(timeout=600)
    assert resumed.returncode == 0, printed(tmp_path)
    undamaged(tmp_path / "run")


def test_a_step_that_cannot_begin_is_one_line_and_ends(
    submit: Any, tmp_path: Path, collection: Any
) -> None:
    from pipeline.core import journal

    with journal.hold_lock(tmp_path / "run"):
        job = submit()
        job.communicate(timeout=120)
    assert job.returncode == 5 and printed(tmp_path).count("in use by pid") == 1
    for tasks, cluster, said in (
        (1, "srun", "start prep by srun with two or more tasks"),
        (2, "cluster.yaml", "srun started prep 2 times; use kind srun"),
    ):
        job = submit(tasks, cluster)
        job.communicate(timeout=120)
        assert job.returncode == 2 and said in printed(tmp_path), printed(tmp_path)


def printed(directory: Path) -> str:
    path = directory / "printed.txt"
    return path.read_text() if path.exists() else ""


def events(directory: Path) -> str:
    path = directory / "run/journal/events.jsonl"
    return path.read_text() if path.exists() else ""
