"""The split of every record, from documents.parquet -> splits/.

The keep-list writes splits/ in the first place; this makes it again for `prep repack`, whose run
may have been cleaned up.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.manifest import Shard, StageManifest
from pipeline.stage import Inputs, Output, Result, Stage, Task, arrow_output


@dataclass(frozen=True)
class SplitsJob:
    """The table, how many of its rows belong to every clean task, and the splits in order."""

    documents: Shard
    records: tuple[int, ...]
    names: tuple[str, ...]


def _splits(job: SplitsJob, inputs: Inputs) -> Result:
    return Result(_shards(job, inputs))


def _shards(job: SplitsJob, inputs: Inputs) -> Iterator[Output]:
    """Columns doc_id and split, one shard per task; records without a split get the first."""
    names = pq.read_table(inputs.path(job.documents), columns=["split"])["split"]
    split = pc.fill_null(pc.index_in(names, value_set=pa.array(job.names)), 0)
    start = 0
    for task, count in enumerate(job.records):
        doc_id = (np.uint64(task) << np.uint64(32)) + np.arange(count, dtype=np.uint64)
        part = split.slice(start, count).cast(pa.uint8())
        table = pa.table({"doc_id": pa.array(doc_id), "split": part}).combine_chunks()
        yield arrow_output(layout.shard("splits", task, "arrow"), table)
        start += count


def splits_stage(clean: StageManifest, documents: Shard, names: tuple[str, ...]) -> Stage:
    """One task over a small column."""
    records = tuple(task.counters["records"] for task in clean.tasks)
    task = Task("table of splits", SplitsJob(documents, records, names), (documents,))
    return Stage("splits", 1, _splits, (task,))
