"""Speed and memory of every stage of a preparation, end to end.

    python benchmarks/end_to_end.py CONFIG [--workers 2] [--set key=value ...]

Runs the preparation once into a temporary directory and prints, per stage: seconds, bytes of work
(text, or tokens times two), MB/s over all workers, and the largest memory of any one process of the
tree, sampled ten times a second. The numbers depend on the machine; compare ratios.
"""

import argparse
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from pipeline.config.prep import load_config
from pipeline.core.hashes import tree_hash
from pipeline.engine.progress import Progress
from pipeline.runs.views.documents import CleanOutput
from pipeline.stories.run import run_preparation


class PeakMemory:
    """Samples the resident memory of this process and its children."""

    def __init__(self) -> None:
        self.largest = 0
        self.total = 0
        self._stop = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.1):
            sizes = []
            for process in [me, *me.children(recursive=True)]:
                try:
                    sizes.append(process.memory_info().rss)
                except psutil.Error:
                    continue
            self.largest = max(self.largest, *sizes)
            self.total = max(self.total, sum(sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("config")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    loaded = load_config(options.config, tuple(options.set))
    progress, memory = Progress(), PeakMemory()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        started = time.monotonic()
        with memory.watching():
            manifest = run_preparation(loaded, out, options.workers, progress=progress)
        seconds = time.monotonic() - started
        text = sum(
            account["documents"]["bytes"]
            for sources in CleanOutput(manifest.stages["clean"]).sources
            for account in sources.values()
        )
        python = platform.python_version()
        print(f"machine: {os.cpu_count()} cores, {platform.machine()}, Python {python}")
        print(f"workers: {options.workers}, text: {text / 1e6:.1f} MB, tree hash {tree_hash(out)}")
        print(f"{'stage':<12}{'seconds':>9}{'MB work':>10}{'MB/s':>9}{'text MB/s':>11}")
        for name, (took, work) in progress.timings.items():
            rate = work / 1e6 / took if took else 0.0
            print(
                f"{name:<12}{took:>9.2f}{work / 1e6:>10.1f}{rate:>9.1f}{text / 1e6 / took:>11.1f}"
            )
        print(f"{'all':<12}{seconds:>9.2f}{'':>10}{'':>9}{text / 1e6 / seconds:>11.2f}")
        print(
            f"peak memory: {memory.largest / 1e6:.0f} MB in one process, "
            f"{memory.total / 1e6:.0f} MB in all processes (shared pages counted in each)"
        )


if __name__ == "__main__":
    main()
