"""The second round of the shuffle: one bucket of ranks after the other -> stream/; and what merges
scatter shards where there are too many for it -> merged/.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.prep import Config
from pipeline.core.manifest import Shard
from pipeline.engine.levels import Bundle, bundle_shards, merge_in_levels, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import splits
from pipeline.runs.views import GatherOutput, ScatterOutput
from pipeline.stages.shuffle.slices import WHOLE, merge_slices, order_by_rank, slice_ranks

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
    """Columns doc_id, doc_key, tokens, in stream order."""
    low, high = (WHOLE * (job.bucket + i) // job.buckets for i in (0, 1))
    empty = inputs.open(job.shards.value[0]).empty
    ranges = ((shard, low, high) for shard in job.shards.value)
    slices = slice_ranks(ranges, job.split, inputs)
    table = merge_slices(slices, empty, _WIDE, order_by_rank, inputs)
    table = table.select(["doc_id", "doc_key", "tokens"])
    tokens = len(table["tokens"].chunk(0).values)
    counters = {"documents": len(table), "tokens": tokens, "split": job.name}
    path = f"stream/{job.name}-{job.bucket:06d}.arrow"
    return Result((arrow_output(path, table),), counters)


def gather_streams(config: Config, scatter: ScatterOutput, run: RunStage) -> GatherOutput:
    """Run the stages that put every split's stream together; returns what they left."""
    names, shards = splits.names(config), Shared(scatter.shards)
    bundles = []
    for name in names:
        tokens = sum(of_task[name] for of_task in scatter.tokens)
        if tokens:
            buckets = -(-tokens // config.pack.bucket_tokens)
            bundles.append(bundle_shards(name, buckets, shards, work=2 * tokens))
    narrow = merge_in_levels(
        bundles, MERGES, lambda stage, wide: run(merge_stage(stage, wide, names))
    )
    return GatherOutput(run(_gather_stage(config, narrow)))


def _gather_stage(config: Config, bundles: Sequence[Bundle]) -> Stage:
    names = splits.names(config)
    tasks = [
        Task(
            f"gather of {part.name} bucket {bucket}",
            GatherJob(names.index(part.name), part.name, bucket, part.ranges, part.shards),
            (part.shards,),
            part.work // (part.stop - part.first),
        )
        for bucket, part in single_ranges(bundles)
    ]
    settings = {"bucket_tokens": config.pack.bucket_tokens}
    return Stage(name="gather", version=1, function=_gather, tasks=tuple(tasks), settings=settings)
