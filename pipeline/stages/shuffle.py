"""The global shuffle, two rounds: scatter (each shard sorted by rank), gather (one bucket of
ranks).

A document's rank is hash(seed, doc_key), so another document never moves it. A scatter shard is
sorted by (split, rank), so a bucket is one contiguous slice of each; the gather merges the slices.
The stream of a split is its buckets one after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline import layout
from pipeline.config import Config
from pipeline.core import ids, rng
from pipeline.core.manifest import Shard, StageManifest
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.stages.tokenize import list_lengths


@dataclass(frozen=True)
class ScatterJob:
    """One tokens shard, and the split of every document of its task."""

    index: int
    tokens: Shard
    splits: Shard
    seed: int


def _scatter(job: ScatterJob, inputs: Inputs) -> Result:
    table, splits = inputs.table(job.tokens), inputs.table(job.splits)
    rows = np.searchsorted(splits["doc_id"].to_numpy(), table["doc_id"].to_numpy())
    split = splits["split"].to_numpy()[rows]
    rank = rng.rank(ids.keys_as_u64(table["doc_key"]), job.seed, "shuffle")
    order = ids.sort_order(ids.keys_as_u64(table["doc_key"]), rank, split)
    table = table.append_column("split", pa.array(split)).append_column("rank", pa.array(rank))
    table = table.take(pa.array(order))
    lengths = list_lengths(table["tokens"])
    counters = {
        "documents": len(table),
        "tokens": {s: int(lengths[split[order] == i].sum()) for i, s in enumerate(layout.SPLITS)},
    }
    output = arrow_output(layout.shard("shuffle", job.index, "arrow"), table.combine_chunks())
    return Result((output,), counters)


def scatter_stage(config: Config, keep: StageManifest, tokens: StageManifest) -> Stage:
    """The round that reads document order and writes rank order."""
    splits = keep.below("splits")
    tasks = tuple(
        Task(f"scatter of {t.path}", ScatterJob(i, t, s, config.seed), (t, s), t.size)
        for i, (t, s) in enumerate(zip(tokens.shards, splits, strict=True))
    )
    return Stage("scatter", 1, _scatter, tasks, {"seed": config.seed})


@dataclass(frozen=True)
class GatherJob:
    """Bucket `bucket` of `buckets` equal ranges of rank, in one split."""

    split: int
    bucket: int
    buckets: int
    shards: tuple[Shard, ...]

    def bounds(self) -> tuple[int, int]:
        """Ranks [low, high) of the bucket."""
        return (
            self.bucket * (1 << 64) // self.buckets,
            (self.bucket + 1) * (1 << 64) // self.buckets,
        )


def _gather(job: GatherJob, inputs: Inputs) -> Result:
    """Columns doc_id, doc_key, tokens, in stream order."""
    low, high = job.bounds()
    parts = []
    for shard in job.shards:
        table = inputs.table(shard)
        first, last = np.searchsorted(table["split"].to_numpy(), [job.split, job.split + 1])
        rank = table["rank"].to_numpy()[first:last]
        start = int(np.searchsorted(rank, np.uint64(low)))
        end = len(rank) if high >> 64 else int(np.searchsorted(rank, np.uint64(high)))
        parts.append(table.slice(first + start, end - start))
    table = pa.concat_tables(parts)
    order = ids.sort_order(ids.keys_as_u64(table["doc_key"]), table["rank"].to_numpy())
    table = table.take(pa.array(order)).select(["doc_id", "doc_key", "tokens"]).combine_chunks()
    counters = {"documents": len(table), "tokens": int(list_lengths(table["tokens"]).sum())}
    path = f"stream/{layout.SPLITS[job.split]}-{job.bucket:06d}.arrow"
    return Result((arrow_output(path, table),), counters)


def gather_stage(config: Config, scatter: StageManifest) -> Stage:
    """The round that writes each split's stream, bucket by bucket."""
    shards = tuple(scatter.shards)
    tasks = []
    for split, name in enumerate(layout.SPLITS):
        tokens = sum(_tokens(task.counters, name) for task in scatter.tasks)
        if not tokens:
            continue
        buckets = -(-tokens // config.pack.bucket_tokens)
        tasks += [
            Task(
                f"gather of {name} bucket {b}",
                GatherJob(split, b, buckets, shards),
                shards,
                2 * tokens // buckets,
            )
            for b in range(buckets)
        ]
    return Stage("gather", 1, _gather, tuple(tasks), {"bucket_tokens": config.pack.bucket_tokens})


def _tokens(counters: Mapping[str, Mapping[str, int]], split: str) -> int:
    return counters["tokens"][split]
