"""Workers that are forks, seen from outside: real programs, their processes and their files."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import fcntl, json, os, sys, threading
import pipeline.commands
from pipeline.engine.executor import executor

class Job:
    label, memory = "job", 0

def look(job):
    files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
    parent = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()
    return {"pid": os.getpid(), "parent": os.getppid(), "grandparent": int(parent[1]),
            "files": [name for name in files if name.startswith(sys.argv[1])],
            "kept": os.environ["MALLOC_TRIM_THRESHOLD_"],
            "blas": os.environ["OPENBLAS_NUM_THREADS"]}

if __name__ == "__main__":
    lock = open(sys.argv[1] + "/lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if sys.argv[2] == "threaded":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    with executor(2, 0) as workers:
        seen = [result for _, result in workers.run(look, [Job(), Job()])]
        print(json.dumps({"pid": os.getpid(), "seen": seen}), flush=True)
        sys.stdin.read()
"""

LEAVING = """
import os, time
import pipeline.commands
from distributed.core import Status
from pipeline.engine.executor import executor

def leave(dask_worker):
    dask_worker.rpc.status = Status.closed
    dask_worker.loop.add_callback(dask_worker._event_finished.set)
    return os.getpid()

if __name__ == "__main__":
    with executor(1, 0) as workers:
        [pid] = workers.start()._client.run(leave).values()
        deadline = time.monotonic() + 60
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
            time.sleep(0.05)
    print("left")
"""


def start(folder: Path, kind: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(program), str(folder), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for_end_of(pids: set[int]) -> None:
    end = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < end, "processes are left"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["alone", "threaded"])
def test_workers_are_forks_of_a_process_without_threads(kind: str, tmp_path: Path) -> None:
    process, told = start(tmp_path, kind)
    process.communicate("")
    assert process.returncode == 0
    for worker in told["seen"]:
        generation = "grandparent" if kind == "alone" else "parent"
        assert worker[generation] == told["pid"]
        assert worker["files"] == []
        assert (worker["kept"], worker["blas"]) == (str(256 << 20), "1")
    wait_for_end_of({pid for each in told["seen"] for pid in (each["pid"], each["parent"])})


LEFT = """
import multiprocessing
from pipeline.engine.warm import warm_workers

def stay():
    multiprocessing.parent_process().join()

if __name__ == "__main__":
    with warm_workers() as settings:
        assert settings["distributed.worker.multiprocessing-method"] == "forkserver"
        context = multiprocessing.get_context("forkserver")
        context.Process(target=stay, daemon=True).start()
    print("over", flush=True)
"""


def test_a_worker_that_was_not_stopped_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import pipeline.commands\n" + LEFT)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=30
    )
    assert ended.stdout == "over\n", ended.stderr


def test_nothing_is_left_of_a_killed_program(tmp_path: Path) -> None:
    process, told = start(tmp_path, "alone")
    os.kill(told["pid"], signal.SIGKILL)
    process.wait()
    with open(tmp_path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    wait_for_end_of({pid for each in told["seen"] for pid in (each["pid"], each["parent"])})
    process.communicate()


def test_a_worker_told_twice_to_leave_prints_no_traceback(tmp_path: Path) -> None:
    """Its second leave finds its connections closed, which Dask raises as a RuntimeError."""
    program = tmp_path / "program.py"
    program.write_text(LEAVING)
    command = [sys.executable, str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == ("left\n", "")
