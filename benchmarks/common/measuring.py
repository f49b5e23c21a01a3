"""Processes of the benchmarks: pinned, timed, their memory and disk watched; peers found."""

import contextlib
import ctypes
import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
"""Where `python -m benchmarks.…` runs."""
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
_SET_CHILD_SUBREAPER = 36
"""prctl's number of it."""
_SAMPLE_SECONDS = 0.05
_ROUNDS = 5
"""Samples between two looks at what processes and files there are, which take milliseconds."""


@dataclass(frozen=True)
class Peer:
    """One release of one package in one interpreter."""

    package: str
    version: str
    python: str


def find_peers(pythons: Sequence[str], packages: Sequence[str]) -> tuple[list[Peer], list[str]]:
    """Releases found in the interpreters (each release once), and the packages found nowhere."""
    found: dict[tuple[str, str], Peer] = {}
    for python in map(os.path.abspath, pythons):  # they are started in other directories, too
        answer = subprocess.run(
            [python, "-c", _PROBE, *packages], capture_output=True, text=True, check=True
        )
        for package, release in json.loads(answer.stdout).items():
            found.setdefault((package, release), Peer(package, release, python))
    missing = [name for name in packages if not any(key[0] == name for key in found)]
    return [found[key] for key in sorted(found)], missing


def one_thread() -> dict[str, str]:
    """The environment of a process that shall use one thread and no network."""
    quiet = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
    limits = dict.fromkeys((*quiet, "POLARS_MAX_THREADS"), "1")
    return {**os.environ, **limits, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def peak_memory() -> int:
    """Bytes that this process had resident at most, without those of what started it."""
    status = Path("/proc/self/status").read_text().partition("VmHWM:")[2]
    return int(status.split()[0]) << 10


@dataclass
class Usage:
    """What one command used, with all its children."""

    code: int
    wall: float
    cpu: float
    peak_rss: int
    largest_rss: int
    peak_disk: int
    final_disk: int
    output: str


def run_command(
    command: list[str],
    cpus: Collection[int],
    folder: Path,
    log: Path,
    limit: float | None = None,
) -> Usage:
    """Run a command in `folder`, pinned to CPUs; watch its memory and the bytes of the folder.

    `peak_rss` is the sum of resident sizes of the command and all its descendants, `largest_rss`
    that of the largest of them, sampled every 50 ms (shared pages count in each process; one that
    lives less than a quarter of a second may be missed). CPU seconds are those of the command and
    of all its descendants. After `limit` seconds all are killed (code -9).
    """
    started = time.perf_counter()
    adopt_orphans()
    with open(log, "w", encoding="utf-8") as err, open(f"{log}.out", "w+", encoding="utf-8") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            env=one_thread(),
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            cwd=folder,
        )
        watch = _Watch(process.pid, folder, started + limit if limit else None)
        watch.start()
        used = wait_for_family(process)
        wall = used.ended - started
        watch.stop()
        out.seek(0)
        output = out.read()
    return Usage(
        code=process.returncode,
        wall=wall,
        cpu=used.cpu,
        peak_rss=max(watch.rss, used.largest_rss),
        largest_rss=max(watch.largest, used.largest_rss),
        peak_disk=max(watch.disk, final := folder_bytes(folder)),
        final_disk=final,
        output=output,
    )


@dataclass
class FamilyUsage:
    """What a process and all its descendants used; `ended` is when it ended, by perf_counter."""

    ended: float
    cpu: float
    largest_rss: int


def adopt_orphans() -> None:
    """Descendants of children of this process become its own children when their parent ends
    (Linux), so that none goes uncounted."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_for_family(process: "subprocess.Popen[Any]") -> FamilyUsage:
    """Wait for a process, and for those of its descendants that nobody else waits for. This process
    has no other children, and has called `adopt_orphans` before. Sets the return code."""
    used = []
    ended = 0.0
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, usage = os.wait3(0)
            used.append(usage)
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                ended = time.perf_counter()
    return FamilyUsage(
        ended=ended,
        cpu=sum(usage.ru_utime + usage.ru_stime for usage in used),
        largest_rss=max(usage.ru_maxrss for usage in used) * 1024,
    )


class _Watch(threading.Thread):
    def __init__(self, pid: int, folder: Path, end: float | None) -> None:
        super().__init__(daemon=True)
        self.rss = self.largest = self.disk = 0
        self._root, self._folder, self._end = psutil.Process(pid), folder, end
        self._stopped = threading.Event()

    def run(self) -> None:
        rounds = 0
        tree: list[psutil.Process] = []
        while not self._stopped.wait(_SAMPLE_SECONDS):
            if rounds % _ROUNDS == 0:
                tree = self._tree()
                self.disk = max(self.disk, folder_bytes(self._folder))
            sizes = [_resident(process) for process in tree]
            self.rss = max(self.rss, sum(sizes))
            self.largest = max(self.largest, *sizes, 0)
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
