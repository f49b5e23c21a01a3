"""Sorted runs of digests, and their joins: each task of a join reads one range of digests of every
run, and what it finds goes back to the shards that the runs are of. Where runs, or what was found,
are too many for one task, they are merged. The ranges follow from the number of entries and the
memory of one task, and the outcome does not depend on them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.arrays import I64, U32, U64
from pipeline.core import ids
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.arrow_shard import ArrowShard
from pipeline.engine.levels import Bundle, bundle_shards, merge_in_levels, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import (
    Inputs,
    Output,
    Result,
    RunStage,
    Stage,
    Task,
    TaskFunction,
    arrow_output,
)
from pipeline.runs import layout


@dataclass(frozen=True)
class SortedRuns:
    """Sorted runs of a few documents shards: `base` is the dense index of their first document,
    `location` the directory of an earlier run."""

    shard: Shard
    base: int
    location: str

    @property
    def size(self) -> int:
        """Bytes of the shard."""
        return self.shard.size


Runs = Shared[tuple[SortedRuns | Shard, ...]]
"""Those of documents shards, or merged ones."""


def open_run(entry: SortedRuns | Shard, inputs: Inputs) -> tuple[ArrowShard, int]:
    """A run, and what is added to its rows to make dense indices of them."""
    run = entry if isinstance(entry, SortedRuns) else SortedRuns(entry, 0, "")
    owner = Inputs(Path(run.location)) if run.location else inputs
    return owner.open(run.shard), run.base


def with_own_shards(
    bundles: Iterable[Bundle],
) -> Iterator[tuple[Bundle, tuple[Shared[tuple[Shard, ...]], ...]]]:
    """Bundles of runs, each with its shards that are of this run directory."""
    own: dict[int, Shared[tuple[Shard, ...]]] = {}
    for bundle in bundles:
        runs = bundle.shards
        if id(runs) not in own:
            of_batches = [run for run in runs.value if isinstance(run, SortedRuns)]
            mine = tuple(run.shard for run in of_batches if not run.location)
            own[id(runs)] = Shared(mine) if of_batches else runs
        yield bundle, (own[id(runs)], *bundle.kinds[1:])


@dataclass(frozen=True, kw_only=True)
class RunsJob:
    """Digests in [low, high], both included, over runs with the columns digest (ascending), shard
    and row; the keys of the rows of each run where merged runs do not have them, if a join needs
    them."""

    index: int
    low: int
    high: int
    runs: Runs
    keys: Shared[tuple[Shard, ...]] | None


@dataclass(frozen=True, kw_only=True)
class MergeDigestsJob(RunsJob):
    """A group of runs, and the directory of what they are merged into."""

    directory: str


def slice_runs(job: RunsJob, inputs: Inputs) -> Iterator[tuple[pa.Table, Shard | None]]:
    """The entries of the job's digests in every run, rows of SortedRuns as dense indices, and the
    keys of the rows of its shard."""
    runs = job.runs.value
    for run, keys in zip(runs, job.keys.value if job.keys else (None,) * len(runs), strict=True):
        entries, base = open_run(run, inputs)
        table = entries.read(None, *entries.find("digest", job.low, job.high + 1))
        if base:
            row, place = table["row"].to_numpy() + np.uint32(base), table.column_names.index("row")
            table = table.set_column(place, "row", pa.array(row))
        yield table, keys


def shared_entries(job: RunsJob, inputs: Inputs) -> tuple[pa.Table, U32]:
    """The entries of the job whose digest occurs more than once, ascending by digest, and numbers
    that are equal for equal digests, (M,)."""
    from dedup.join import buckets

    tables = [table for table, _ in slice_runs(job, inputs)]
    counts = np.array([len(table) for table in tables], np.int64)
    numbers = np.split(np.arange(counts.sum(), dtype=np.uint32), np.cumsum(counts)[:-1])
    member, bucket = buckets([t["digest"].to_numpy() for t in tables], numbers)
    return pa.concat_tables(tables).take(pa.array(member)), bucket


def entry_keys(job: RunsJob, inputs: Inputs, entries: pa.Table) -> U64:
    """The doc_key of each entry's document, (M, 2) uint64."""
    if job.keys is None:
        return ids.keys_as_u64(entries["doc_key"])
    shard_M, row_M = entries["shard"].to_numpy(), entries["row"].to_numpy()
    key_M2 = np.zeros((len(entries), 2), np.uint64)
    order = np.argsort(shard_M, kind="stable")
    for number, here in zip(*_split(shard_M[order], order), strict=True):
        keys = inputs.open(job.keys.value[number])
        if len(here) < len(keys):
            key_M2[here] = ids.keys_as_u64(keys.take(["doc_key"], row_M[here])["doc_key"])
        else:
            key_M2[here] = ids.keys_as_u64(keys.read(["doc_key"])["doc_key"])[row_M[here]]
    return key_M2


def _split(number_M: U32, entry_M: I64) -> tuple[list[int], list[I64]]:
    """Numbers that ascend, each once, and the entries with each."""
    starts = np.flatnonzero(np.r_[True, number_M[1:] != number_M[:-1]][: len(number_M)])
    return number_M[starts].tolist(), np.split(entry_M, starts[1:])[: len(starts)]


def rank_keys(key_M2: U64) -> I64:
    """The place of each key among them in byte order, equal for equal keys, (M,)."""
    order = ids.sort_order(key_M2)
    ordered = key_M2[order]
    new = np.concatenate([[False], (ordered[1:] != ordered[:-1]).any(axis=1)])[: len(order)]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(new)
    return rank


def _merge_runs(job: MergeDigestsJob, inputs: Inputs) -> Result:
    """The columns of the runs, and doc_key where there are keys."""
    parts = []
    for table, keys in slice_runs(job, inputs):
        if keys is not None:
            of_rows = inputs.open(keys).take(["doc_key"], table["row"].to_numpy())
            table = table.append_column("doc_key", of_rows["doc_key"])
        parts.append(table)
    return Result((_sorted_by("digest", parts, layout.shard(job.directory, job.index, "arrow")),))


def _sorted_by(column: str, parts: list[pa.Table], path: str) -> Output:
    table = pa.concat_tables(parts)
    order = np.argsort(table[column].to_numpy(), kind="stable")
    return arrow_output(path, table.take(pa.array(order)).combine_chunks())


@dataclass(frozen=True, kw_only=True)
class Join:
    """A stage that joins runs: its function, and what makes a job of the fields of a RunsJob; the
    stage that merges runs for it, and the directory of merged ones; working memory of one entry, in
    bytes."""

    name: str
    version: int
    function: TaskFunction
    make_job: Callable[..., RunsJob]
    merge: str
    merged: str
    entry_bytes: int


def join_digests(
    join: Join,
    runs: Sequence[SortedRuns | Shard],
    keys: Sequence[Shard] | None,
    entries: int,
    memory: int,
    run: RunStage,
) -> StageManifest:
    """Run the stages that join these runs, each with the keys of its rows."""
    from dedup.join import key_ranges

    ranges = len(key_ranges(entries, join.entry_bytes, memory))
    needed = min(memory, join.entry_bytes * entries)

    def merge(name: str, wide: Sequence[Bundle]) -> StageManifest:
        tasks = []
        for index, (part, own) in enumerate(with_own_shards(wide)):
            low, high = part.bounds(1 << 64)
            job = MergeDigestsJob(directory=join.merged, **_fields(index, low, high, part))
            label = f"{name} from {low:016x}, group {index}"
            tasks.append(Task(label, job, own, part.work, needed))
        return run(Stage(name=name, version=1, function=_merge_runs, tasks=tuple(tasks)))

    kinds: list[Shared[tuple[Any, ...]]] = [Shared(tuple(runs))]
    if keys is not None:
        kinds.append(Shared(tuple(keys)))
    whole = bundle_shards(join.name, ranges, *kinds, work=sum(s.size for s in runs))
    tasks = []
    merged = single_ranges(merge_in_levels((whole,), (join.merge,), merge))
    for index, (part, own) in enumerate(with_own_shards(part for _, part in merged)):
        low, high = (((index + i) << 64) // ranges for i in (0, 1))
        job = join.make_job(**_fields(index, low, high, part))
        work = part.work // (part.stop - part.first)
        tasks.append(Task(f"{join.name} from {low:016x}", job, own, work, needed))
    stage = Stage(name=join.name, version=join.version, function=join.function, tasks=tuple(tasks))
    return run(stage)


def _fields(index: int, low: int, high: int, part: Bundle) -> dict[str, Any]:
    keys = part.kinds[1] if len(part.kinds) > 1 else None
    return {"index": index, "low": low, "high": high - 1, "runs": part.shards, "keys": keys}


@dataclass(frozen=True, kw_only=True)
class MergeFoundJob:
    """What was found of shards [first, stop) in a group of key ranges, and the directory of what
    that is merged into."""

    index: int
    first: int
    stop: int
    found: Shared[tuple[Shard, ...]]
    directory: str


def _merge_found(job: MergeFoundJob, inputs: Inputs) -> Result:
    """The same by shard."""
    parts = list(slice_found(job.found.value, job.first, job.stop, inputs))
    return Result((_sorted_by("shard", parts, layout.shard(job.directory, job.index, "arrow")),))


def slice_found(
    found: Iterable[Shard], first: int, stop: int, inputs: Inputs
) -> Iterator[pa.Table]:
    """What was found of shards [first, stop) in every key range."""
    for shard in found:
        rows = inputs.open(shard)
        yield rows.read(None, *rows.find("shard", first, stop))


def return_found(
    found: Sequence[Shard], shards: int, name: str, directory: str, run: RunStage
) -> tuple[Bundle, ...]:
    """What the key ranges found of every shard, by the column `shard`; merged, by the stage of this
    name into this directory, where they are too many for one task."""

    def merge(name: str, wide: Sequence[Bundle]) -> StageManifest:
        tasks = []
        for index, part in enumerate(wide):
            job = MergeFoundJob(
                index=index,
                first=part.first,
                stop=part.stop,
                found=part.shards,
                directory=directory,
            )
            tasks.append(Task(f"{name} from shard {part.first}", job, part.kinds, part.work))
        return run(Stage(name=name, version=1, function=_merge_found, tasks=tuple(tasks)))

    size = sum(shard.size for shard in found)
    whole = bundle_shards(name, shards, Shared(tuple(found)), work=size)
    return merge_in_levels((whole,), (name,), merge)
