"""The streams of all splits: which documents every bucket of ranks has, in order -> stream/; and
what merges scattered shards where there are too many for a bucket -> merged/. The tokens stay where
they are until rows are made of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.prep import Config
from pipeline.core.manifest import Shard
from pipeline.engine.arrow_shard import ArrowShard
from pipeline.engine.levels import Bundle, bundle_shards, merge_in_levels, single_ranges
from pipeline.engine.ranges import copy_table
from pipeline.engine.shared import Shared
from pipeline.engine.stage import (
    MEMORY_PER_WORK,
    Inputs,
    Result,
    RunStage,
    Stage,
    Task,
    arrow_output,
)
from pipeline.runs import splits
from pipeline.runs.views.data_set import GatherOutput
from pipeline.stages.shuffle.scatter import Scattered
from pipeline.stages.shuffle.slices import (
    WHOLE,
    find_ranks,
    merge_slices,
    order_by_rank,
    slice_ranks,
)
from pipeline.stages.shuffle.stream import SplitStream

MERGES = ("merge", "merge_again")
"""Stages between scatter and gather, as many as are needed."""
_WIDE = ("tokens", "text")


@dataclass(frozen=True, kw_only=True)
class MergeJob:
    """Ranks [low, high) of one split in a group of scatter shards, or of merged ones."""

    path: str
    split: int
    low: int
    high: int
    shards: Shared[tuple[Shard, ...]]


def _merge(job: MergeJob, inputs: Inputs) -> Result:
    """The columns of the shards, and their order."""
    empty = inputs.open(job.shards.value[0]).empty
    ranges = ((shard, job.low, job.high) for shard in job.shards.value)
    slices = slice_ranks(ranges, job.split, inputs)
    table = merge_slices(slices, empty, _WIDE, order_by_rank, inputs)
    return Result((arrow_output(job.path, table),), {"documents": len(table)})


def merge_stage(name: str, bundles: Sequence[Bundle], split_names: Sequence[str]) -> Stage:
    """One task per group of shards and range of ranks."""
    tasks = []
    for index, bundle in enumerate(bundles):
        low, high = bundle.bounds(WHOLE)
        job = MergeJob(
            path=f"merged/{name}-{index:06d}.arrow",
            split=split_names.index(bundle.name),
            low=low,
            high=high,
            shards=bundle.shards,
        )
        label = f"{name} of {bundle.name} from {low:016x}, group {index}"
        tasks.append(Task(label, job, (bundle.shards,), bundle.work))
    return Stage(name=name, version=1, function=_merge, tasks=tuple(tasks))


@dataclass(frozen=True)
class GatherJob:
    """Bucket `bucket` of `buckets` equal ranges of rank, in one split."""

    split: int
    name: str
    bucket: int
    buckets: int
    shards: Shared[tuple[Shard, ...]]


def _gather(job: GatherJob, inputs: Inputs) -> Result:
    """Columns doc_id, doc_key, rank and tokens (how many), in stream order."""
    low, high = (WHOLE * (job.bucket + i) // job.buckets for i in (0, 1))
    parts = [_read_narrow(inputs.open(job.shards.value[0]), 0, 0)]
    for shard in job.shards.value:
        rows = inputs.open(shard)
        first, stop = find_ranks(rows, job.split, low, high)
        if first < stop:
            parts.append(_read_narrow(rows, first, stop))
    table = pa.concat_tables(parts)
    table = table.take(pa.array(order_by_rank(table))).combine_chunks()
    counters = {
        "documents": len(table),
        "tokens": pc.sum(table["tokens"], min_count=0).as_py(),
        "split": job.name,
    }
    path = f"stream/{job.name}-{job.bucket:06d}.arrow"
    return Result((arrow_output(path, table),), counters)


def _read_narrow(rows: ArrowShard, first: int, stop: int) -> pa.Table:
    table = copy_table(rows.read(["doc_id", "doc_key", "rank"], first, stop))
    return table.append_column("tokens", pa.array(rows.lengths("tokens", first, stop)))


def gather_streams(config: Config, scattered: Scattered, run: RunStage) -> list[SplitStream]:
    """Run the stages that put every split's stream together; returns the streams that have a
    token."""
    names, shards = splits.names(config), Shared(scattered.shards)
    bundles = []
    for name in names:
        tokens = sum(of_task[name] for of_task in scattered.tokens)
        if tokens:
            buckets = -(-tokens // config.pack.bucket_tokens)
            bundles.append(bundle_shards(name, buckets, shards, work=2 * tokens))
    narrow = merge_in_levels(
        bundles, MERGES, lambda stage, wide: run(merge_stage(stage, wide, names))
    )
    gather = GatherOutput(run(_gather_stage(config, narrow)))
    read = [part.shards for _, part in single_ranges(narrow)]
    streams = []
    for bundle in bundles:
        counts = gather.of_split(bundle.name, gather.tokens)
        stream = SplitStream(
            name=bundle.name,
            number=names.index(bundle.name),
            buckets=tuple(compress(gather.of_split(bundle.name, gather.buckets), counts)),
            bucket_tokens=tuple(filter(None, counts)),
            documents=sum(gather.of_split(bundle.name, gather.documents)),
            shards=tuple(compress(gather.of_split(bundle.name, read), counts)),
        )
        streams.append(stream)
    return streams


def _gather_stage(config: Config, bundles: Sequence[Bundle]) -> Stage:
    """One task per bucket, which reads all but the tokens."""
    names = splits.names(config)
    tasks = []
    for bucket, part in single_ranges(bundles):
        tokens_bytes = part.work // (part.stop - part.first)
        tasks.append(
            Task(
                f"gather of {part.name} bucket {bucket}",
                GatherJob(names.index(part.name), part.name, bucket, part.ranges, part.shards),
                (part.shards,),
                tokens_bytes // _TOKENS_PER_NARROW,
                MEMORY_PER_WORK * tokens_bytes,
            )
        )
    settings = {"bucket_tokens": config.pack.bucket_tokens}
    return Stage(name="gather", version=2, function=_gather, tasks=tuple(tasks), settings=settings)


_TOKENS_PER_NARROW = 16
"""Bytes of tokens for each byte of a document's other columns, about."""
