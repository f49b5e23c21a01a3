"""Processes of the dedup benchmarks: pinned, timed, their memory and disk watched; peers found."""

import contextlib
import json
import os
import platform
import subprocess
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

PEERS = Path(__file__).parent / "peers"
PACKAGES = ("datasketch", "rensa", "datatrove", "text-dedup")
_PROBE = """
import importlib.metadata as m, importlib.util as u, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_SAMPLE_SECONDS = 0.05


@dataclass(frozen=True)
class Peer:
    """One release of one package in one interpreter."""

    package: str
    version: str
    python: str


def find_peers(pythons: list[str]) -> tuple[list[Peer], list[str]]:
    """Releases found in the interpreters (each release once), and the packages found nowhere."""
    found: dict[tuple[str, str], Peer] = {}
    for python in pythons:
        answer = subprocess.run(
            [python, "-c", _PROBE, *PACKAGES], capture_output=True, text=True, check=True
        )
        for package, release in json.loads(answer.stdout).items():
            found.setdefault((package, release), Peer(package, release, python))
    missing = [name for name in PACKAGES if not any(key[0] == name for key in found)]
    return [found[key] for key in sorted(found)], missing


def one_core(cpu: int) -> dict[str, str]:
    """The environment of a process that shall use one core and no network."""
    quiet = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
    limits = dict.fromkeys((*quiet, "POLARS_MAX_THREADS"), "1")
    return {**os.environ, **limits, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Signing:
    """A running `peers/signing.py`."""

    def __init__(self, python: str, cpu: int) -> None:
        self._process = subprocess.Popen(
            [python, str(PEERS / "signing.py"), str(cpu)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=one_core(cpu),
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            return {"error": f"the process ended with code {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass
class Usage:
    """What one command used, with all its children."""

    code: int
    wall: float
    cpu: float
    peak_rss: int
    peak_disk: int
    final_disk: int
    output: str


def run_command(
    command: list[str], cpu: int, folder: Path, log: Path, limit: float | None = None
) -> Usage:
    """Run a command pinned to one CPU; watch the memory of its tree and the bytes of `folder`.

    Memory is the sum of resident sizes, sampled every 50 ms (shared pages count in each process);
    CPU seconds are those of the command and of every child it has waited for. After `limit` seconds
    the command and its children are killed (code -9).
    """
    started = time.perf_counter()
    with open(log, "w", encoding="utf-8") as err, open(f"{log}.out", "w+", encoding="utf-8") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            env=one_core(cpu),
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
            cwd=folder,
        )
        watch = _Watch(process.pid, folder, started + limit if limit else None)
        watch.start()
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        watch.stop()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        output = out.read()
    return Usage(
        process.returncode,
        wall,
        used.ru_utime + used.ru_stime,
        max(watch.rss, used.ru_maxrss * 1024),
        max(watch.disk, final := folder_bytes(folder)),
        final,
        output,
    )


class _Watch(threading.Thread):
    def __init__(self, pid: int, folder: Path, end: float | None) -> None:
        super().__init__(daemon=True)
        self.rss = self.disk = 0
        self._root, self._folder, self._end = psutil.Process(pid), folder, end
        self._stopped = threading.Event()

    def run(self) -> None:
        rounds = 0
        while not self._stopped.wait(_SAMPLE_SECONDS):
            tree = self._tree()
            self.rss = max(self.rss, sum(_resident(process) for process in tree))
            if rounds % 5 == 0:
                self.disk = max(self.disk, folder_bytes(self._folder))
            rounds += 1
            if self._end and time.perf_counter() > self._end:
                for process in reversed(tree):
                    with contextlib.suppress(psutil.Error):
                        process.kill()

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return [self._root, *self._root.children(recursive=True)]
        return []


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, by length."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def summary(output: str) -> dict[str, Any]:
    """The JSON object on the last line of a peer script's output; empty without one."""
    with contextlib.suppress(json.JSONDecodeError, IndexError):
        found = json.loads(output.strip().splitlines()[-1])
        if isinstance(found, dict):
            return found
    return {}


def last_error(log: Path) -> str:
    """The last line of a log, short."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "no message"


def machine() -> dict[str, Any]:
    """What a figure depends on: processor, cores, interpreter, our own packages."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    packages = ("numba", "numpy", "pyarrow", "wafermill")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }
