"""Tasks say how much memory they take: as many run at a time as fit, and none takes more."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import storage
from pipeline.core.errors import ResourceError
from pipeline.core.journal import Journal
from pipeline.engine import executor
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner
from pipeline.engine.stage import Inputs, Result, Stage, Task

GIB = 1 << 30


@dataclass(frozen=True)
class Job:
    label: str
    memory: int
    file: Path
    allocates: int = 0


def work(job: Job) -> int:
    """Note when the job began and ended, and how much memory it took."""
    began = time.monotonic()
    data = b"\1" * job.allocates
    time.sleep(0.3)
    with open(job.file, "a") as file:
        file.write(f"{began} {time.monotonic()}\n")
    return len(data)


def most_at_a_time(file: Path) -> int:
    spans = [tuple(map(float, line.split())) for line in file.read_text().splitlines()]
    return max(sum(begin <= other < end for begin, end in spans) for other, _ in spans)


@pytest.fixture(scope="module")
def pair() -> Iterator[Any]:
    """Two workers on a machine of 1.5 GiB."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("executor", "memory"):
            patch.setattr(f"pipeline.engine.{module}.machine_memory", lambda: 3 * GIB // 2)
        with executor.executor(2, 0) as running:
            yield running


def test_as_many_at_a_time_as_fit(pair: Any, tmp_path: Path) -> None:
    for name, memory, most in [("small", GIB // 2, 2), ("large", GIB, 1)]:
        jobs = [Job(f"job {i}", memory, tmp_path / name) for i in range(6)]
        assert sorted(index for index, _ in pair.run(work, jobs)) == list(range(6))
        assert most_at_a_time(tmp_path / name) == most


def test_a_large_task_may_take_more_than_a_share(pair: Any, tmp_path: Path) -> None:
    """A worker's share is 0.75 GiB here; Dask would kill one that takes more."""
    jobs = [Job("large", 5 * GIB // 4, tmp_path / "log", allocates=GIB)]
    assert list(pair.run(work, jobs)) == [(0, GIB)]
    assert len((tmp_path / "log").read_text().splitlines()) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_what_cannot_fit_is_refused_before_anything_runs(
    workers: int, pair: Any, tmp_path: Path
) -> None:
    where = pair if workers else executor.LocalExecutor()
    jobs = [Job("small", 1, tmp_path / "log"), Job("bands from 00", 1 << 50, tmp_path / "log")]
    with pytest.raises(ResourceError, match=r"bands from 00: needs .* lower read\.task_bytes"):
        list(where.run(work, jobs))
    assert not (tmp_path / "log").exists()


def say_where(job: int, _: Inputs) -> Result:
    return Result((), {"process": os.getpid()})


@pytest.mark.parametrize("in_driver", [True, False])
def test_some_stages_run_where_workers_have_no_limits(
    in_driver: bool, pair: Any, tmp_path: Path
) -> None:
    runner = Runner(tmp_path, pair, Journal(tmp_path), Progress())
    tasks = (Task("one", 1), Task("another", 2))
    stage = Stage(
        name="components", version=1, function=say_where, tasks=tasks, in_driver=in_driver
    )
    processes = {task.counters["process"] for task in runner.run(stage).tasks}
    assert (processes == {os.getpid()}) == in_driver


def test_scratch_is_a_file_without_a_name(tmp_path: Path) -> None:
    scratch = storage.map_scratch(tmp_path, 1 << 20)
    assert scratch[:] == bytes(1 << 20) and not any(tmp_path.iterdir())
    with pytest.raises(ResourceError, match=r"no room to write 9,000,000,000,000,000 bytes"):
        storage.map_scratch(tmp_path, 9 * 10**15)


MEASURE = """
import gc, json, sys
from pathlib import Path
from pipeline.engine.executor import LocalExecutor

peaks = []

def run(self, call, jobs):
    for index, job in enumerate(jobs):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        yield index, call(job)
        status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
        peaks.append((job.label, int(status.split()[0]) << 10, job.memory))

LocalExecutor.run = run
from pipeline.commands.app import main
try:
    main()
finally:
    Path(sys.argv[2]).with_suffix(".peaks").write_text(json.dumps(peaks))
"""


@pytest.mark.slow
@pytest.mark.parametrize("task_bytes", ["64 MiB", "8 MiB"])
def test_no_task_takes_more_than_it_says(
    task_bytes: str, shared_data: Path, tmp_path: Path
) -> None:
    """Peaks of the resident memory of a process that does all tasks of a real run itself."""
    config = tmp_path / "config.yaml"
    shards = shared_data / "pile_sample" / "*.jsonl.zst"
    config.write_text(
        f"inputs: [{{name: pile, path: {shards}}}]\nread: {{task_bytes: {task_bytes}}}\n"
    )
    options = ["run", str(config), "--out", str(tmp_path / "run"), "--workers", "0"]
    subprocess.run([sys.executable, "-c", MEASURE, *options], check=True, capture_output=True)
    peaks = json.loads(config.with_suffix(".peaks").read_text())
    assert len(peaks) > 20
    assert [(label, peak, said) for label, peak, said in peaks if peak > said] == []


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak of memory to reset here"
)
@pytest.mark.parametrize(("word", "least", "most"), [("a", 20, 70), ("ab ", 0, 12)])
def test_a_word_of_megabytes_takes_more(word: str, least: int, most: int) -> None:
    """Bytes of memory for each byte of a text of 8 MB, with no break between its words and with
    many."""
    code = f"""
from pathlib import Path
import pyarrow as pa
from pipeline.tokenizers.engine import open_tokenizer, tokenize_array
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
tokenizer = open_tokenizer()
text = pa.array([{word!r} * {8_000_000 // len(word)}], pa.large_string())
tokenize_array(pa.array(["warm"], pa.large_string()), tokenizer)
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
before = peak()
tokenize_array(text, tokenizer)
print((peak() - before) / 8_000_000)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert least <= float(done.stdout) <= most
