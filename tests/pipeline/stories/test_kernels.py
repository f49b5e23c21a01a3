"""The processes that compile kernels before a first run: they end with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _children(pid: int) -> set[int]:
    """Those of a process that run, compiling ones and multiprocessing's own."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (directory / "stat").read_text().rsplit(") ", 1)[1].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) == pid and state != "Z":
            found.add(int(directory.name))
    return found


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_a_run_that_is_killed(tmp_path: Path, with_signal: int) -> None:
    environment = os.environ | {"WAFERMILL_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.compile_kernels"]
    run = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(started := _children(run.pid)) < 2:
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.1)
    time.sleep(2)  # they import, and begin
    started |= _children(run.pid)
    run.send_signal(with_signal)
    run.wait()
    while any(Path(f"/proc/{child}").exists() for child in started):
        assert time.monotonic() < deadline
        time.sleep(0.1)
