"""What compiles kernels before a first run ends with it, and leaves tasks nothing to compile."""

import json
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


CONFIGS = {
    "quickstart": [],
    "rules": [
        "signals.fineweb=true", "filters.gopher=true", "filters.gopher_repetition=true",
        "filters.c4={}", "clean.mask=[email, ip]", "dedup.preset=custom", "dedup.unit=word",
        "dedup.size=5",
    ],
    "cuts": [
        "dedup.containment.drop=true", "dedup.substrings.cut=true", "lines.unit=paragraph",
        "decontaminate.sets=[items.jsonl]",
    ],
}  # fmt: skip
"""Options of `prep run quickstart`."""
RUN = """
import sys
from pathlib import Path
import pipeline
from pipeline.stories import run
cache, kept, compile_missing = Path(sys.argv[1]), [], run.compile_missing
def compile_and_list(parts, note):
    compile_missing(parts, note)
    kept.extend(cache.rglob("*.nbc"))
run.compile_missing = compile_and_list
pipeline.run("quickstart", "out", overrides=sys.argv[2:])
print(len(kept), sorted(p.name for p in {*cache.rglob("*.nbc")} - {*kept}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_tasks_compile_nothing(name: str, tmp_path: Path) -> None:
    """What is compiled before the tasks of a config is all that they call."""
    cache = tmp_path / "cache"
    environment = os.environ | {"WAFERMILL_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    item = {"id": "1", "text": " ".join(f"word{i}" for i in range(20))}
    (tmp_path / "items.jsonl").write_text(json.dumps(item) + "\n")
    command = [sys.executable, "-c", RUN, cache, *CONFIGS[name]]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    kept, _, more = done.stdout.strip().rpartition("\n")[2].partition(" ")
    assert int(kept) > 20 and more == "[]", done.stderr[-2000:]
