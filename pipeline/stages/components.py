"""Components: what candidate edges connect, dealt out to the tasks of `clusters`.

The one stage that knows all candidates at once. It takes 8 bytes for each document that has one, in
a mapped file, a bit and a half for every other, and runs where workers have no limits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.arrays import U32
from pipeline.core import storage
from pipeline.core.manifest import Shard
from pipeline.engine.shared import Shared
from pipeline.engine.stage import (
    MEMORY_PER_WORK,
    Inputs,
    Output,
    Result,
    Stage,
    Task,
    arrow_output,
)
from pipeline.runs import layout
from pipeline.runs.views import BandsOutput

PART = 1 << 23
"""Documents in a shard: what reads one has 64 MiB mapped, and there are at most 512."""
_COLUMNS = pa.schema([("task", pa.uint32()), ("component", pa.uint32())])
Parts = Shared[tuple[Shard, ...]]
"""The shards."""
_LARGEST_TASK = 1 << 15
MEMBER_BYTES = 1024
"""Working memory of one document while representatives are chosen, apart from its signature."""


@dataclass(frozen=True)
class ComponentsJob:
    """Every shard of memberships; `documents` over all batches; documents of one later task."""

    bands: tuple[Shard, ...]
    documents: int
    documents_per_task: int


def _components(job: ComponentsJob, inputs: Inputs) -> Result:
    """Columns task (uint32: 0 for a document without candidates, else 1 + its task) and component
    (uint32, by smallest dense index), one row per dense index, PART rows a shard."""
    counters: dict[str, Any] = {}
    return Result(_find_components(job, inputs, counters), counters)


def _find_components(
    job: ComponentsJob, inputs: Inputs, counters: dict[str, Any]
) -> Iterator[Output]:
    from dedup.components import CandidateComponents

    def allocate(count: int) -> U32:
        scratch = storage.map_scratch(inputs.root, 8 * count)
        return np.frombuffer(scratch, np.uint32, 2 * count).reshape(2, count)

    members = (inputs.table(shard)["member"].to_numpy() for shard in job.bands)
    candidates = CandidateComponents(job.documents, members, allocate)
    for shard in job.bands:
        table = inputs.table(shard)
        candidates.unite(table["member"].to_numpy(), table["bucket"].to_numpy())
    components, largest, sizes = candidates.deal(job.documents_per_task)
    counters["components"] = components
    counters["documents"] = candidates.count
    counters["largest"] = largest
    counters["tasks"] = sizes.tolist()
    for number, first in enumerate(range(0, job.documents, PART)):
        task, component = candidates.look_up(first, min(first + PART, job.documents))
        table = pa.table([pa.array(task), pa.array(component)], schema=_COLUMNS)
        yield arrow_output(layout.shard("components", number, "arrow"), table)


def components_stage(
    bands: BandsOutput, documents: int, signature_bytes: int, memory: int
) -> Stage:
    """One fan-in task. The mapped file is no part of the memory that it needs."""
    per_task = max(1, min(_LARGEST_TASK, memory // (MEMBER_BYTES + signature_bytes)))
    job = ComponentsJob(bands.memberships, documents, per_task)
    sizes = [shard.size for shard in bands.memberships]
    part = MEMORY_PER_WORK * max(8 * min(PART, documents), max(sizes, default=0))
    needed = documents // 8 + documents // 16 + part
    task = Task("components", job, job.bands, sum(sizes), needed)
    return Stage(name="components", version=2, function=_components, tasks=(task,), in_driver=True)


def slice_components(shards: Parts, first: int, stop: int, inputs: Inputs) -> pa.Table:
    """Task and component of documents [first, stop)."""
    tables = [_COLUMNS.empty_table()]
    for number in range(first // PART, -(-stop // PART)):
        low, high = max(0, first - number * PART), min(PART, stop - number * PART)
        tables.append(inputs.table(shards.value[number]).slice(low, high - low))
    return pa.concat_tables(tables)


def look_up_tasks(member_M: U32, shards: Parts, inputs: Inputs) -> U32:
    """The task of each of these documents, all of which have candidates; one shard is open at a
    time."""
    order = np.argsort(member_M)
    ordered, task = member_M[order], np.empty_like(member_M)
    starts = np.searchsorted(
        ordered, np.arange(len(shards.value), dtype=np.uint32) * np.uint32(PART)
    )
    for number, (start, stop) in enumerate(pairwise([*starts, len(ordered)])):
        if start < stop:
            tasks = inputs.table(shards.value[number], ["task"])["task"].to_numpy()
            rows = ordered[start:stop] - np.uint32(number * PART)
            task[order[start:stop]] = tasks[rows] - np.uint32(1)
    return task
