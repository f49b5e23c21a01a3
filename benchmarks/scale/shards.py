"""The shards of a terabyte on 300 MB: what does a task cost when there are many?

    python -m benchmarks.scale.shards SHARDS... [--tasks 575 1150 2300 4600] [--json FILE]

SHARDS are JSON lines with `text`, such as a sample of the Pile; word replicas of them, no two of
which share a shingle, fill 64 KiB a task. Every call is pickled and read back as if a worker did
it, in one process, so that CPU seconds are those of the work and of the engine, without start-up.
Printed per number of tasks: CPU seconds per MB of text; bytes hashed to verify files per byte that
the tasks wrote; milliseconds of the driver per task, in which it plans, fingerprints, submits and
records; bytes of the largest call; peak memory; seconds and peak memory of a second run with
nothing to do, in a fresh process, which holds what the driver holds. None should grow, but for the
last two with the tasks.
"""

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from benchmarks.common.corpus import read_records, text_bytes
from benchmarks.common.measuring import ROOT, peak_memory
from benchmarks.common.replicas import WordReplicas, replicable

TASK_BYTES = 64 << 10
_SHARD_BYTES = 8 << 20
_SETTINGS = (
    f"read.task_bytes={TASK_BYTES}",
    "pack.bucket_tokens=32768",
    "hdf5.shard_bytes=1 MiB",
    "pack.max_sequence_length=128",
)

_COLUMNS = (
    "tasks",
    "calls",
    "CPU s/MB",
    "hashed/wrote",
    "driver ms",
    "largest call",
    "peak MB",
    "no-op s",
    "no-op MB",
)


class Postman:
    """Sends every call as to a worker, and counts the time between tasks."""

    workers = 1

    def __init__(self) -> None:
        self.calls, self.largest, self.written = 0, 0, 0
        self.cpu: Counter[str] = Counter()
        """Seconds of the tasks of each stage."""

    def run(self, call: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See Executor."""
        for index, job in enumerate(jobs):
            sent = pickle.dumps((call, job))
            self.calls, self.largest = self.calls + 1, max(self.largest, len(sent))
            begin = time.process_time()
            function, received = pickle.loads(sent)  # noqa: S301 - made above
            result = function(received)
            self.cpu[job.record_path.parent.name] += time.process_time() - begin
            self.written += sum(shard.size for shard in result.record.shards)
            yield index, result


def measure(raw: Path, out: Path) -> dict[str, Any]:
    """One run in this process."""
    import pipeline.engine.verified as verified
    from pipeline.config.prep import load_config
    from pipeline.stories import loop
    from pipeline.stories.run import run_preparation

    postman, hashed = Postman(), 0
    verify = verified.verify_file

    def counting(path: Path, expected: str) -> None:
        nonlocal hashed
        hashed += path.stat().st_size
        verify(path, expected)

    @contextmanager
    def send(*settings: Any) -> Iterator[Postman]:
        yield postman

    verified.verify_file = counting
    loop.executor = send
    begin, cpu = time.perf_counter(), time.process_time()
    run_preparation(load_config(raw / "scale.yaml", _SETTINGS), out)
    cpu = time.process_time() - cpu
    return {
        "calls": postman.calls,
        "seconds": time.perf_counter() - begin,
        "cpu": cpu,
        "driver": cpu - postman.cpu.total(),
        "stages": postman.cpu,
        "largest_call": postman.largest,
        "written": postman.written,
        "hashed": hashed,
        "memory": peak_memory(),
    }


def write_corpus(shards: list[str], text: int, directory: Path) -> None:
    """Replicas of the documents up to so many bytes of text, and the config that reads them."""
    documents = list(replicable(read_records(shards)))
    Random(0).shuffle(documents)  # whatever the size, the same mixture
    replicas = WordReplicas(documents)
    (directory / "scale.yaml").write_text("name: scale\ninputs:\n  - {name: scale, path: raw}\n")
    (directory / "raw").mkdir()
    made, lines, size = 0, [], 0
    for document in (d for number in count() for d in replicas.make(number)):
        lines.append(json.dumps({"text": document["text"]}))
        size += text_bytes(document)
        if size >= min(_SHARD_BYTES, text):
            data = pa.compress("\n".join(lines).encode(), "zstd", asbytes=True)
            (directory / f"raw/{made:04d}.jsonl.zst").write_bytes(data)
            made, text, lines, size = made + 1, text - size, [], 0
        if text <= 0:
            return


def _run_fresh(raw: Path, out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale.shards", "--one", str(raw), str(out)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    value: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return value


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", nargs="*")
    parser.add_argument("--tasks", type=int, nargs="+", default=[575, 1150, 2300, 4600])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    rows = []
    print(" ".join(name.rjust(12) for name in _COLUMNS))
    for tasks in options.tasks:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            write_corpus(options.shards, tasks * TASK_BYTES, directory)
            first = _run_fresh(directory, directory / "run")
            again = _run_fresh(directory, directory / "run")
        assert again["calls"] == 0, "the second run had something to do"
        text = tasks * TASK_BYTES
        rows.append({"tasks": tasks, "text": text, "first": first, "again": again})
        figures = (
            f"{tasks:,}",
            f"{first['calls']:,}",
            f"{first['cpu'] / text * 1e6:.3f}",
            f"{first['hashed'] / first['written']:.2f}",
            f"{first['driver'] / first['calls'] * 1e3:.2f}",
            f"{first['largest_call']:,}",
            f"{first['memory'] / 1e6:,.0f}",
            f"{again['seconds']:.1f}",
            f"{again['memory'] / 1e6:,.0f}",
        )
        print(" ".join(figure.rjust(12) for figure in figures), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
