"""The size of the cluster that each kept document stands for, and its class -> cluster_sizes/ and
cluster_classes/, for a mixture with cluster weights.

The size is that of the report: the document itself and all documents of this run that it
represents, whatever else was decided about them. Documents that an earlier index represents count
for nobody here. `clusters/` is sorted by what is represented, so each of its shards is counted by
itself first; what a shard counted of a kept document is whole, as one task has all of a component.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, U8
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard
from pipeline.engine.ranges import Ranges, Shards, merge_ranges, slice_range
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.splits import TRAIN
from pipeline.runs.views.data_set import DocumentsOutput, GroupsOutput
from pipeline.runs.views.documents import CleanOutput
from pipeline.runs.views.duplicates import ClusterSizesOutput, ClustersOutput
from pipeline.stages.mixture.quotas import SizeClasses, Totals

SIZE = pa.schema([("document", pa.uint32()), ("size", pa.uint32())])
"""One row per document that represents others: its number among those of this run, and the
documents of its cluster, itself included."""


@dataclass(frozen=True)
class ClusterSizesJob:
    """A shard of `clusters/`; the dense index of this run's first document."""

    index: int
    choices: Shard
    first_new: int


def _cluster_sizes(job: ClusterSizesJob, inputs: Inputs) -> Result:
    """Rows of `SIZE`, by document."""
    kept = inputs.table(job.choices, ["representative"])["representative"].to_numpy()
    document, count = np.unique(kept[kept >= job.first_new], return_counts=True)
    columns = (document - np.uint32(job.first_new), count.astype(np.uint32) + np.uint32(1))
    table = pa.table([pa.array(column) for column in columns], schema=SIZE)
    return Result((arrow_output(layout.shard("cluster_sizes", job.index, "arrow"), table),))


def cluster_sizes_stage(clusters: ClustersOutput, first_new: int) -> Stage:
    """One task per shard of `clusters/`; `first_new` is the dense index of this run's first
    document."""
    tasks = [
        Task(f"sizes of {shard.path}", ClusterSizesJob(index, shard, first_new), (shard,))
        for index, shard in enumerate(clusters.choices)
    ]
    return Stage(
        name="cluster_sizes",
        version=1,
        function=_cluster_sizes,
        tasks=tuple(tasks),
        reads_texts=False,
    )


@dataclass(frozen=True, kw_only=True)
class ClusterClassesJob:
    """A part of documents.parquet, with documents [first, stop) of this run; the sizes of all
    clusters of several documents, each shard by document."""

    part: int
    documents: Shard
    first: int
    stop: int
    sizes: Shards
    classes: SizeClasses


@dataclass(frozen=True, kw_only=True)
class GroupedClassesJob(ClusterClassesJob):
    """The same where the config has groups: which of them each kept document is in."""

    groups: Shard


def _cluster_classes(job: ClusterClassesJob, inputs: Inputs) -> Result:
    """`class` of every kept document of the part, in order; per source (or group) and class, how
    many are in train and their tokens."""
    path = inputs.path(job.documents)
    names = ["source", "state", "split", "tokens", "representative"]
    table = pq.read_table(path, columns=names)
    documents = table.filter(pc.is_valid(table["representative"]))
    if len(documents) != job.stop - job.first:
        raise IntegrityError(
            f"{path}: {len(documents):,} documents; {job.stop - job.first:,} were cleaned"
        )
    is_kept = pc.equal(documents["state"], "kept").to_numpy()
    of_kept = job.classes.find(_sizes(job, inputs)[is_kept])
    kept = documents.filter(pa.array(is_kept))
    if isinstance(job, GroupedClassesJob):
        kept = pq.read_table(inputs.path(job.groups), columns=["source", "split", "tokens"])
    counts = _count_train(kept, of_kept)
    output = pa.table({"class": pa.array(of_kept)})
    path_of_part = layout.shard("cluster_classes", job.part, "arrow")
    return Result((arrow_output(path_of_part, output),), {"counts": counts})


def _sizes(job: ClusterClassesJob, inputs: Inputs) -> I64:
    """The size of the cluster of every document of the part; 1 for one that represents none."""
    size = np.ones(job.stop - job.first, np.int64)
    rows = slice_range(job.sizes, "document", (job.first, job.stop), SIZE.empty_table(), inputs)
    size[rows["document"].to_numpy().astype(np.int64) - job.first] = rows["size"].to_numpy()
    return size


def _count_train(kept: pa.Table, of_kept: U8) -> list[list[object]]:
    """[source, class, documents, tokens] of train."""
    table = kept.append_column("class", pa.array(of_kept))
    train = table.filter(pc.equal(table["split"], TRAIN))
    keys = ["source", "class"]
    sums = train.group_by(keys, use_threads=False).aggregate([([], "count_all"), ("tokens", "sum")])
    rows = sums.select([*keys, "count_all", "tokens_sum"])
    ordered = rows.sort_by([(key, "ascending") for key in keys])
    return [list(row.values()) for row in ordered.to_pylist()]


def cluster_classes_stage(
    classes: SizeClasses,
    clean: CleanOutput,
    documents: DocumentsOutput,
    grouped: GroupsOutput | None,
    sizes: ClusterSizesOutput,
    run: RunStage,
) -> Stage:
    """One task per part of documents.parquet, which counts by group where there are some; what
    merges `cluster_sizes/` for them runs at once."""
    of_tasks = [sum(by_source.values()) for by_source in clean.documents_by_source]
    of_parts = [sum(of_tasks[g.start : g.stop]) for g in documents.tasks_of_parts(clean)]
    bounds = tuple(accumulate(of_parts, initial=0))
    ranges = Ranges(sizes.sizes, bounds)
    (merged,) = merge_ranges("merge_cluster_sizes", "document", [ranges], run)
    tasks = []
    for part, (shard, of_part) in enumerate(zip(documents.parts, merged, strict=True)):
        job = ClusterClassesJob(
            part=part,
            documents=shard,
            first=bounds[part],
            stop=bounds[part + 1],
            sizes=of_part,
            classes=classes,
        )
        groups = grouped.parts[part : part + 1] if grouped else ()
        if groups:
            job = GroupedClassesJob(**vars(job), groups=groups[0])
        tasks.append(Task(f"clusters of {shard.path} by size", job, (shard, of_part, *groups)))
    return Stage(
        name="cluster_classes",
        version=1,
        function=_cluster_classes,
        tasks=tuple(tasks),
        reads_texts=False,
    )


def class_totals(
    counts: Sequence[Sequence[tuple[str, int, int, int]]], sources: Sequence[str], classes: int
) -> Totals:
    """Documents and tokens of train by source and class, from what the parts counted."""
    totals = {name: [(0, 0)] * classes for name in sources}
    for source, number, documents, tokens in (row for part in counts for row in part):
        before = totals[source][number]
        totals[source][number] = before[0] + documents, before[1] + tokens
    return totals
