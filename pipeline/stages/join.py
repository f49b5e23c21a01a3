"""The join: which documents share a digest, one key range of one channel at a time."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline import layout
from pipeline.core.manifest import Shard
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.stages.batches import Batches
from pipeline.stages.signatures import KEY

_ENTRY_BYTES = 48
"""Working memory of one entry: digest and document, twice for the sort, and its bucket."""


@dataclass(frozen=True)
class SortedRuns:
    """Sorted runs of one documents shard: `base` is the dense index of its first document."""

    shard: Shard
    base: int
    location: str


@dataclass(frozen=True)
class JoinJob:
    """Digests of `channel` in [low, high], both included, over all runs."""

    index: int
    channel: str
    low: int
    high: int
    runs: tuple[SortedRuns, ...]
    first_new: int


def _join(job: JoinJob, inputs: Inputs) -> Result:
    """Columns member (uint32 dense index), bucket (uint32 from 0); only buckets of two and more
    documents, of which one is new."""
    from dedup.join import buckets
    from dedup.lsh import slice_run

    digests, members = [], []
    for run in job.runs:
        owner = Inputs(Path(run.location)) if run.location else inputs
        table = owner.table(run.shard, [job.channel, f"{job.channel}_row"])
        column = table[job.channel].to_numpy()
        start, stop = slice_run(column, job.low, job.high)
        if stop > start:
            digests.append(column[start:stop])
            rows = table[f"{job.channel}_row"].to_numpy()[start:stop]
            members.append((rows + np.uint64(run.base)).astype(np.uint32))
    member, bucket = buckets(digests, members, new_from=job.first_new)
    table = pa.table({"member": pa.array(member), "bucket": pa.array(bucket)})
    output = arrow_output(layout.shard("bands", job.index, "arrow"), table)
    found = int(bucket.max()) + 1 if len(bucket) else 0
    return Result((output,), {"channel": job.channel, "buckets": found, "memberships": len(member)})


def join_stage(batches: Batches, channels: tuple[str, ...], memory: int) -> Stage:
    """Tasks = channels x key ranges; the ranges follow from the number of documents and the memory
    of one task alone."""
    from dedup.join import key_ranges

    batches.check_size()
    tasks: list[Task] = []
    for channel in channels:
        runs = _runs(batches, channel)
        own = tuple(run.shard for run in runs if not run.location)
        size = sum(shard.size for shard in own) // max(len(channels), 1)
        ranges = key_ranges(batches.total, _ENTRY_BYTES, memory)
        for low, high in ranges:
            job = JoinJob(len(tasks), channel, low, high, runs, batches.first_new)
            label = f"{channel} from {low:016x}"
            tasks.append(Task(label, job, own, size // len(ranges)))
    return Stage("bands", 2, _join, tuple(tasks), {"first_new": batches.first_new})


def _runs(batches: Batches, channel: str) -> tuple[SortedRuns, ...]:
    runs, base = [], 0
    for batch in batches.all:
        shards = [s for s in batch.runs if s.path.endswith(".key.arrow") == (channel == KEY)]
        if shards:
            bases = [base + sum(batch.counts[:i]) for i in range(len(batch.counts))]
            runs += [SortedRuns(s, b, batch.location) for s, b in zip(shards, bases, strict=True)]
        base += batch.total
    return tuple(runs)
