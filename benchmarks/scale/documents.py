"""A billion documents without their text: what do the stages cost that know all documents?

    python -m benchmarks.scale.documents [--documents 1 10 100] [--scratch DIR] [--json FILE]

For so many million documents a generator writes the tables that cleaning, signatures and
tokenizing would leave, in shards of 65,536 documents (64 MiB of web text): keys, sorted digests of
SlimPajama's nine bands and of the whole text, four tokens a document. A third of the documents are
in clusters of three on average, and one cluster holds a hundredth of all; each member has half of
the bands of its cluster. The stages behind them then run for real, one task after the other in one
process, from the join of digests to the keep-list, the table of documents, what the report counts
of the tables (`pages`), and the plan of the shuffle.

Printed per stage: tasks, CPU seconds and bytes written per million documents, and the largest peak
of the resident memory during a task, mapped files included. None should grow with the documents.
What no later stage reads is deleted: 100 million take 35 GB at once.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common.measuring import ROOT
from dedup.arrays import I64, U64
from dedup.lsh import sort_run
from pipeline.config.prep import load_config
from pipeline.core.ids import keys_as_u64, keys_from_u64
from pipeline.core.journal import Journal
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.levels import shards_together
from pipeline.engine.memory import SizedJob
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output, parquet_output
from pipeline.runs import layout
from pipeline.runs.run_directory import removed_directories
from pipeline.runs.views.data_set import TokensOutput
from pipeline.runs.views.documents import CleanOutput
from pipeline.stages.report import count_tables
from pipeline.stages.shuffle.gather import gather_streams
from pipeline.stages.shuffle.places import in_order, places
from pipeline.stages.shuffle.scatter import Scattered
from pipeline.stages.tables import documents_stage
from pipeline.stages.tokenize import token_lists
from pipeline.stories.selection import deduplicate

SHARD_DOCUMENTS = 1 << 16
_COSTS = "costs.json"
_LAST_READ_BY = {
    "merge_runs": ("runs",),
    "bands": ("runs", "merged_runs"),
    "clusters": ("bands", "components", "routes", "merged_routes", "members", "merged_members"),
    "keep": ("clusters", "merged_choices"),
    "cluster_table": ("edges", "merged_edges"),
}
"""Directories that no stage reads once these are done; a hundred million documents fill a disk."""
_BANDS = 9
_TOKENS = 4
_SOURCES = np.array(["web", "code", "papers"])
_DROPS = pa.schema(
    [
        ("doc_id", pa.uint64()),
        ("doc_key", pa.binary(16)),
        ("source", pa.string()),
        ("path_id", pa.uint32()),
        ("line", pa.uint64()),
        ("byte_offset", pa.uint64()),
        ("byte_length", pa.uint64()),
        ("licence", pa.string()),
        ("reason", pa.string()),
        ("bad_record", pa.bool_()),
        ("text_bytes", pa.uint64()),
        ("excerpt", pa.string()),
    ]
)


@dataclass(frozen=True)
class ShardJob:
    """Documents [first, first + count) of `total`, and what earlier stages made of them."""

    index: int
    first: int
    count: int
    total: int
    shards: tuple[Shard, ...] = ()


def _mix(value: U64 | I64, salt: int) -> U64:
    """A hash of each value: murmur3's 64-bit finalizer."""
    mixed = value.astype(np.uint64) + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(33))


def _clean(job: ShardJob, inputs: Inputs) -> Result:
    number = np.arange(job.first, job.first + job.count)
    row = np.arange(job.count, dtype=np.uint64)
    key = keys_from_u64(np.stack([_mix(number, 1), _mix(number, 2)], axis=1))
    source = pa.array(_SOURCES[(_mix(number, 3) % np.uint64(len(_SOURCES))).astype(np.int64)])
    empty = pa.array([""]).take(pa.array(np.zeros(job.count, np.int64)))
    columns = {
        "doc_id": pa.array((np.uint64(job.index) << np.uint64(32)) + row),
        "doc_key": key,
        "source": source,
        "path_id": pa.array(np.full(job.count, job.index, np.uint32)),
        "line": pa.array(row),
        "byte_offset": pa.array(row * np.uint64(1000)),
        "byte_length": pa.array(np.full(job.count, 1000, np.uint64)),
        "licence": empty,
        "text_key": key,
        "text_bytes": pa.array(np.full(job.count, 1000, np.uint64)),
        "meta": empty,
        "text": empty.cast(pa.large_string()),
    }
    documents = arrow_output(layout.shard("documents", job.index, "arrow"), pa.table(columns))
    drops = parquet_output(layout.shard("drops", job.index, "parquet"), _DROPS.empty_table())
    return Result((documents, drops), {"records": job.count})


def _signatures(job: ShardJob, inputs: Inputs) -> Result:
    """A hundredth of the documents are in the hub, a third in clusters of three on average."""
    number = np.arange(job.first, job.first + job.count)
    rows = np.arange(job.count, dtype=np.uint32)
    kind, chosen = _mix(number, 4) % np.uint64(100), _mix(number, 5)
    cluster = _mix(number, 6) % np.uint64(max(1, job.total * 34 // 300))
    cluster = np.where(kind == 0, np.uint64(job.total), cluster)
    columns: dict[str, pa.Array] = {}
    for channel, name in enumerate(["same", *(f"band_{b:02d}" for b in range(_BANDS))]):
        is_shared = (kind < 35) & (chosen >> np.uint64(channel) & np.uint64(1) == 1) & (channel > 0)
        digests = np.where(is_shared, _mix(cluster, 100 + channel), _mix(number, 200 + channel))
        ordered, owners = sort_run(digests, rows)
        columns |= {name: pa.array(ordered), f"{name}_row": pa.array(owners)}
    runs = arrow_output(layout.shard("runs", job.index, "arrow"), pa.table(columns))
    counts = [min(SHARD_DOCUMENTS, job.count - at) for at in range(0, job.count, SHARD_DOCUMENTS)]
    return Result((runs,), {"documents": job.count, "counts": counts, "keyed": 0})


def _tokenize(job: ShardJob, inputs: Inputs) -> Result:
    documents, states = (inputs.table(shard) for shard in job.shards)
    is_kept = pa.array(states["state"].to_numpy() == layout.STATES.index("kept"))
    names = documents.select(["doc_id", "doc_key"]).filter(is_kept).combine_chunks()
    lengths = np.full(len(names), _TOKENS)
    tokens = token_lists(np.zeros(int(lengths.sum()), np.uint16), lengths)
    split, once = np.zeros(len(names), np.uint8), np.ones(len(names), np.uint8)
    placed = places(keys_as_u64(names["doc_key"]), split, once, seed=1)
    table = in_order(names.append_column("tokens", tokens), placed)
    of_splits = {"train": len(tokens.values), "validation": 0}
    counters = {"documents": len(table), "tokens": len(tokens.values), "splits": of_splits}
    return Result((arrow_output(layout.shard("tokens", job.index, "arrow"), table),), counters)


def _synthetic_stage(
    name: str, function: Any, total: int, *shards: tuple[Shard, ...], together: int = 1
) -> Stage:
    tasks, most = [], SHARD_DOCUMENTS * together
    for index, first in enumerate(range(0, total, most)):
        count = min(most, total - first)
        read = tuple(column[index] for column in shards)
        tasks.append(Task(name, ShardJob(index, first, count, total, read), read, count))
    return Stage(name=name, version=1, function=function, tasks=tuple(tasks))


@dataclass(frozen=True)
class PagesJob:
    """The tables that the report counts."""

    clusters: tuple[Shard, ...]
    documents: tuple[Shard, ...]


def _pages(job: PagesJob, inputs: Inputs) -> Result:
    clusters, documents = count_tables(job.clusters, job.documents, inputs)
    counted = [clusters.rows, sum(share.compared for share in documents.shares())]
    return Result((), {"rows": counted})


@dataclass
class _Cost:
    tasks: int = 0
    cpu: float = 0.0
    bytes: int = 0
    peak: int = 0


def _free_memory() -> None:
    """Hand back what earlier tasks left, which is no part of the next one's peak."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


class _Measured:
    """Runs tasks one after the other in this process, and measures each."""

    workers = 0

    def __init__(self, saved: Path) -> None:
        """Takes over what stages cost that are done already."""
        costs = json.loads(saved.read_text()) if saved.exists() else {}
        self.costs = {name: _Cost(**cost) for name, cost in costs.items()}

    def save(self, path: Path) -> None:
        """Note what the stages so far cost."""
        path.write_text(json.dumps({name: asdict(cost) for name, cost in self.costs.items()}))

    def run(
        self, call: Callable[[Any], Any], jobs: Sequence[SizedJob]
    ) -> Iterator[tuple[int, Any]]:
        """See Executor."""
        for index, job in enumerate(jobs):
            _free_memory()
            Path("/proc/self/clear_refs").write_text("5")
            begin = time.process_time()
            result = call(job)
            cost = self.costs.setdefault(job.record_path.parent.name, _Cost())  # type: ignore[attr-defined]
            cost.cpu += time.process_time() - begin
            cost.tasks += 1
            cost.bytes += sum(shard.size for shard in result.record.shards)
            status = Path("/proc/self/status").read_text().partition("VmHWM:")[2]
            cost.peak = max(cost.peak, int(status.split()[0]) << 10)
            yield index, result


def measure(total: int, out: Path) -> dict[str, _Cost]:
    """Every stage over so many documents; its costs by name."""
    settings = {
        "name": "scale",
        "inputs": [{"name": "scale", "path": "."}],
        "dedup": {"verify": "none", "max_source_share": 1},
    }
    config = load_config(settings).config
    measured = _Measured(out / _COSTS)
    runner = Runner(out, measured, Journal(out), Progress(), removed_directories(out))

    def run(stage: Stage) -> StageManifest:
        if stage.name == "signatures":
            together = shards_together(-(-total // SHARD_DOCUMENTS))
            stage = _synthetic_stage(stage.name, _signatures, total, together=together)
        manifest = runner.run(stage)
        runner.release(_LAST_READ_BY.get(stage.name, ()))
        measured.save(out / _COSTS)
        return manifest

    clean = CleanOutput(run(_synthetic_stage("clean", _clean, total)))
    keep = deduplicate(config, (), clean, None, run)
    shards = clean.documents, keep.states
    tokens = TokensOutput(run(_synthetic_stage("tokenize", _tokenize, total, *shards)))
    documents = run(documents_stage(clean, keep, None, tokens)).shards
    clusters = next(m for m in runner.manifests if m.stage == "cluster_table").shards
    pages = Task("pages", PagesJob(tuple(clusters), tuple(documents)))
    run(Stage(name="pages", version=1, function=_pages, tasks=(pages,)))
    gather_streams(config, Scattered(tokens.tokens, tuple(tokens.of_splits)), run)
    return measured.costs


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=float, nargs="+", default=[1, 10, 100], metavar="M")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="default: the system's")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with tempfile.TemporaryDirectory(dir=options.one[1]) as first:
            measure(SHARD_DOCUMENTS, Path(first))  # loads libraries and kernels
        costs = measure(int(options.one[0]), Path(options.one[1]))
        print(json.dumps({name: asdict(cost) for name, cost in costs.items()}))
        return
    results: dict[float, dict[str, dict[str, float]]] = {}
    for millions in options.documents:
        with tempfile.TemporaryDirectory(dir=options.scratch) as out:
            results[millions] = _run_fresh(round(millions * 1e6), out)
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def _run_fresh(total: int, out: str) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.scale.documents", "--one", str(total), out]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    costs: dict[str, dict[str, float]] = json.loads(ended.stdout.splitlines()[-1])
    return costs


def show(results: dict[float, dict[str, dict[str, float]]]) -> None:
    """A line per stage and number of documents."""
    print(f"{'stage':12} {'M docs':>7} {'tasks':>6} {'CPU s/M':>8} {'MB/M':>7} {'peak MB':>8}")
    for stage in max(results.values(), key=len):
        for millions, costs in results.items():
            if (cost := costs.get(stage)) is None:
                continue
            print(
                f"{stage:12} {millions:7,g} {cost['tasks']:6,} {cost['cpu'] / millions:8.2f} "
                f"{cost['bytes'] / millions / 1e6:7.1f} {cost['peak'] / 1e6:8,.0f}"
            )


if __name__ == "__main__":
    main()
