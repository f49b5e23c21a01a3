"""Repeated passages (`prep dedup --substrings`): cost of every stage, and what is cut.

    python -m benchmarks.dedup.substrings FILES... [--preset exact] [--least 200] [--json FILE]
    python -m benchmarks.dedup.substrings FILES... --published MEGABYTES

FILES are JSON lines. One process runs all of `prep dedup`: CPU seconds of every stage that repeated
passages add, the bytes on disk that it leaves before `prep clean-up`, the peak of the process's
memory, and the share of the kept text that is cut. MB are 10^6 bytes of the text that is kept.
Kernels are compiled before.

With `--published`, instead, the first documents of the files, as they are, and what is repeated of
them by suffixes sorted in memory: runs of 50 GPT-2 tokens and more, as Lee et al. (2022) compare
them (their tool strikes every occurrence, the first too), and runs of `--least` bytes and more.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common.corpus import read_texts
from benchmarks.common.measuring import machine, peak_memory
from dedup.arrays import I64
from dedup.find import warm_up
from pipeline import tokenize_texts
from pipeline.config.prep import DedupConfig, ReadConfig, SubstringsConfig
from pipeline.core.manifest import StageManifest
from pipeline.engine.progress import Progress
from pipeline.engine.stage import Stage
from pipeline.runs.views.cuts import CutsOutput
from pipeline.runs.views.documents import KeepOutput
from pipeline.stories.dedup import DEDUP, make_dedup_config
from pipeline.stories.loop import StageRecord
from pipeline.stories.preparation import Preparation, Story, Unchanged
from pipeline.stories.run import run_preparation
from tests.dedup.plain_substrings import rank_windows

PASSAGES = ("seeds", "shared_seeds", "windows", "repeated_windows", "substrings", "cuts")
TOKENS = 50


class TimedRecord(StageRecord):
    """Notes the CPU seconds of every stage, which runs in this process."""

    def __init__(self, run: StageRecord, seconds: dict[str, float]) -> None:
        super().__init__(run)
        self._seconds = seconds

    def __call__(self, stage: Stage) -> StageManifest:
        """See StageRecord."""
        before = time.process_time()
        manifest = super().__call__(stage)
        self._seconds[stage.name] = time.process_time() - before
        return manifest


def measure(files: list[str], preset: str, least: int) -> dict[str, Any]:
    """One run of `prep dedup` in this process."""
    warm_up("slimpajama" if preset == "exact" else preset)
    passages = SubstringsConfig(cut=True, min_bytes=least)
    config = DedupConfig.model_validate({"preset": preset, "substrings": passages})
    loaded = make_dedup_config(files, config, read=ReadConfig())
    seconds: dict[str, float] = {}

    def tell(prepared: Preparation, run: StageRecord, unchanged: Unchanged) -> None:
        DEDUP.tell(prepared, TimedRecord(run, seconds), unchanged)

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        finished = run_preparation(
            loaded, out, 0, progress=Progress(quiet=True), story=Story("dedup", tell)
        )
        ledger = json.loads((out / "ledger.json").read_bytes())
        kept = sum(source["kept"]["bytes"] for source in ledger["sources"].values())
        cuts = finished.stages["cuts"]
        disk = {name: sum(s.size for s in finished.stages[name].shards) / kept for name in PASSAGES}
    added = sum(seconds[name] for name in PASSAGES)
    return {
        "documents": sum(KeepOutput(finished.stages["keep"]).kept),
        "megabytes": kept / 1e6,
        "seconds": {name: seconds[name] for name in PASSAGES},
        "megabytes_per_second": kept / 1e6 / added,
        "disk_bytes_per_byte": disk,
        "cuts": sum(CutsOutput(cuts).counts),
        "documents_with_cuts": sum(task.counters["documents"] for task in cuts.tasks),
        "share_cut": sum(task.counters["bytes"] for task in cuts.tasks) / kept,
        "peak_memory": peak_memory(),
        "records_seconds": seconds["records"],
        "clean_seconds": seconds["clean"],
    }


def compare(files: list[str], megabytes: float, least: int) -> dict[str, Any]:
    """What sorted suffixes find in the first documents, by tokens and by bytes."""
    texts = read_texts(files, megabytes)
    tokens = [np.asarray(one.values) for one in tokenize_texts(texts)]
    raw = [np.frombuffer(text.encode(), np.uint8) for text in texts]
    found: dict[str, Any] = {"documents": len(texts), "megabytes": sum(map(len, raw)) / 1e6}
    for name, parts, width in (("tokens", tokens, TOKENS), ("bytes", raw, least)):
        every, later = repeated_shares([part.astype(np.int64) for part in parts], width)
        found |= {name: sum(map(len, parts)), f"{name}_in_repeats": every}
        found[f"{name}_behind_the_first"] = later
    return found


def repeated_shares(parts: list[I64], width: int) -> tuple[float, float]:
    """Shares of all values that are in a window of `width` that occurs again, and in one that has
    occurred before, apart from it."""
    end = int(max(part.max() for part in parts if len(part))) + 1
    joined = np.concatenate([np.r_[part, end + number] for number, part in enumerate(parts)])
    _, first, of_window, counts = np.unique(
        rank_windows(joined, width), return_index=True, return_inverse=True, return_counts=True
    )
    here, total = np.arange(len(of_window)), len(joined) - len(parts)
    repeated, later = counts[of_window] > 1, here - first[of_window] >= width
    return tuple(covered(np.flatnonzero(m), width, len(joined)) / total for m in (repeated, later))


def covered(starts: I64, width: int, length: int) -> int:
    """How many places windows that begin here cover."""
    marks = np.zeros(length + 1, np.int64)
    np.add.at(marks, starts, 1)
    np.add.at(marks, starts + width, -1)
    return int((np.cumsum(marks) > 0).sum())


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+")
    parser.add_argument("--preset", default="exact")
    parser.add_argument("--least", type=int, default=200, metavar="BYTES")
    parser.add_argument("--published", type=float, metavar="MEGABYTES")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.published:
        found = compare(options.files, options.published, options.least)
    else:
        found = measure(options.files, options.preset, options.least)
    table = Table("figure", "value", title="repeated passages")
    for name, value in found.items():
        table.add_row(name, json.dumps(value) if isinstance(value, dict) else f"{value:,.4g}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), **found}, indent=1))


if __name__ == "__main__":
    main()
