"""Rows of many sorted shards in one range of their key: where the shards are too many for one task,
they are merged before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.levels import Bundle, bundle_shards, merge_in_levels, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output

Shards = Shared[tuple[Shard, ...]]


@dataclass(frozen=True, kw_only=True)
class MergeRangeJob:
    """Rows of these shards with values of `column` in [low, high)."""

    path: str
    column: str
    low: int
    high: int
    shards: Shards


def _merge_range(job: MergeRangeJob, inputs: Inputs) -> Result:
    """The columns of the shards, in the order of `column`, then of shards."""
    first = inputs.open(job.shards.value[0]).empty
    rows = slice_range(job.shards, job.column, (job.low, job.high), first, inputs)
    order = np.argsort(rows[job.column].to_numpy(), kind="stable")
    return Result((arrow_output(job.path, rows.take(pa.array(order)).combine_chunks()),))


def slice_range(
    shards: Shards, column: str, bounds: tuple[int, int], empty: pa.Table, inputs: Inputs
) -> pa.Table:
    """The rows with values in [low, high) of every shard, one after the other; as `empty` where
    there are none. One shard is open at a time."""
    slices = [empty]
    for shard in shards.value:
        rows = inputs.open(shard)
        start, stop = rows.find(column, *bounds)
        if start < stop:
            slices.append(copy_table(rows.read(None, start, stop)))
    return pa.concat_tables(slices)


def copy_table(table: pa.Table) -> pa.Table:
    """The same rows in memory of their own, so that the file behind them can be closed."""
    copied: pa.Table = pa.concat_tables([table.slice(0, 0), table]).combine_chunks()
    return copied


@dataclass(frozen=True)
class Ranges:
    """Consecutive ranges of the values of a column, [bounds[i], bounds[i + 1]), and all shards that
    have rows of them, each sorted by it."""

    shards: tuple[Shard, ...]
    bounds: tuple[int, ...]


def merge_ranges(
    name: str, column: str, several: Sequence[Ranges], run: RunStage
) -> list[list[Shards]]:
    """For each range of each of these the shards that have its rows: all, or where these are too
    many what the stage of this name merged them into."""

    def merge(name: str, wide: Sequence[Bundle]) -> StageManifest:
        tasks = []
        for index, bundle in enumerate(wide):
            bounds = several[int(bundle.name)].bounds
            job = MergeRangeJob(
                path=f"{name.replace('merge', 'merged', 1)}/{index:06d}.arrow",
                column=column,
                low=bounds[bundle.first],
                high=bounds[bundle.stop],
                shards=bundle.shards,
            )
            label = f"{name} from {job.low:,}, group {index}"
            tasks.append(Task(label, job, (bundle.shards,), bundle.work))
        stage = Stage(name=name, version=1, function=_merge_range, tasks=tuple(tasks))
        return run(replace(stage, reads_texts=False))

    bundles = [
        bundle_shards(
            str(number),
            len(one.bounds) - 1,
            Shared(one.shards),
            work=sum(s.size for s in one.shards),
        )
        for number, one in enumerate(several)
        if one.shards
    ]
    found: list[list[Shards]] = [[] for _ in several]
    for _, part in single_ranges(merge_in_levels(bundles, (name,), merge, short=True)):
        found[int(part.name)].append(part.shards)
    nothing: Shards = Shared(())
    return [of or [nothing] * (len(one.bounds) - 1) for of, one in zip(found, several, strict=True)]
