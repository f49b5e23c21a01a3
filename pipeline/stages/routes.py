"""From candidates to tasks of `clusters`: `components` finds what candidate edges connect (4 bytes
a document) and deals whole components out to tasks, and `route` sorts every shard of memberships by
the task that will choose the representatives. Where routes are too many for one task, they are
merged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import U8, U32
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.levels import Bundle, bundle_shards, merge_in_levels
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
from pipeline.runs.views import BandsOutput, ComponentsOutput, RoutesOutput
from pipeline.stages.candidates import RunStage

_LARGEST_TASK = 1 << 15
_MEMBER_BYTES = 400
"""Working memory of one document while representatives are chosen, apart from its signature."""


@dataclass(frozen=True)
class ComponentsJob:
    """Every shard of memberships; `documents` over all batches; documents of one later task."""

    bands: tuple[Shard, ...]
    documents: int
    documents_per_task: int


def _components(job: ComponentsJob, inputs: Inputs) -> Result:
    """MEMBERS: columns member, component (uint32), by component, then index; TASK_OF: column task
    (uint32) per dense index, 0 for a document without candidates, else 1 + its task."""
    from dedup.components import components, flatten_labels, new_parents, unite

    parents = new_parents(job.documents)
    for shard in job.bands:
        table = inputs.table(shard)
        unite(parents, table["member"].to_numpy(), table["bucket"].to_numpy())
    flatten_labels(parents)
    members, starts = components(parents)
    cuts = task_cuts(starts, job.documents_per_task)
    task_of = np.zeros(job.documents, np.uint32)
    for number, (start, stop) in enumerate(cuts):
        task_of[members[start:stop]] = number + 1
    sizes = np.diff(starts)
    component = np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes)
    outputs = (
        arrow_output(layout.MEMBERS, pa.table({"member": members, "component": component})),
        arrow_output(layout.TASK_OF, pa.table({"task": task_of})),
    )
    counters = {
        "components": len(sizes),
        "documents": len(members),
        "largest": int(sizes.max(initial=0)),
        "tasks": cuts,
    }
    return Result(outputs, counters)


def task_cuts(starts: npt.NDArray[np.int64], largest: int) -> list[list[int]]:
    """[start, stop) ranges of members, whole components each, `largest` documents and more only
    where one component has more.

    >>> task_cuts(np.array([0, 2, 5, 9]), 5)
    [[0, 5], [5, 9]]
    """
    cuts, start = [], 0
    while len(starts) and start < starts[-1]:
        place = int(np.searchsorted(starts, start + largest, side="right")) - 1
        stop = int(starts[place]) if starts[place] > start else int(starts[place + 1])
        cuts.append([start, stop])
        start = stop
    return cuts


_COMPONENT_BYTES = 12


def components_stage(
    bands: BandsOutput, documents: int, signature_bytes: int, memory: int
) -> Stage:
    """One fan-in task; its memory is `_COMPONENT_BYTES` a document and one shard of memberships."""
    per_task = max(1, min(_LARGEST_TASK, memory // (_MEMBER_BYTES + signature_bytes)))
    job = ComponentsJob(bands.memberships, documents, per_task)
    sizes = [shard.size for shard in bands.memberships]
    needed = _COMPONENT_BYTES * documents + MEMORY_PER_WORK * max(sizes, default=0)
    task = Task("components", job, job.bands, sum(sizes), needed)
    return Stage(name="components", version=1, function=_components, tasks=(task,))


@dataclass(frozen=True, kw_only=True)
class RouteJob:
    """One shard of memberships, the number of its channel, and the table that says who needs
    them."""

    index: int
    memberships: Shard
    channel: int
    task_of: Shard


def _route(job: RouteJob, inputs: Inputs) -> Result:
    """Two shards: member, bucket, channel (uint8), sorted by task; and the tasks that have some
    (uint32) with where they start (int64)."""
    table = inputs.table(job.memberships)
    member = table["member"].to_numpy()
    task = inputs.table(job.task_of)["task"].to_numpy()[member] - np.uint32(1)
    channel = np.full(len(member), job.channel, np.uint8)
    return Result(_routed("routes", job.index, task, member, table["bucket"].to_numpy(), channel))


def _routed(
    directory: str, index: int, task: U32, member: U32, bucket: U32, channel: U8
) -> tuple[Output, Output]:
    order = np.argsort(task, kind="stable")
    tasks, starts = np.unique(task[order], return_index=True)
    columns = {"member": member[order], "bucket": bucket[order], "channel": channel[order]}
    return (
        arrow_output(layout.shard(directory, index, layout.ROUTES_SHARD), pa.table(columns)),
        arrow_output(
            layout.shard(directory, index, layout.STARTS_SHARD),
            pa.table({"task": tasks, "start": starts.astype(np.int64)}),
        ),
    )


def route_stage(
    bands: BandsOutput, components: ComponentsOutput, channels: tuple[str, ...]
) -> Stage:
    """One task per shard of memberships."""
    task_of = components.task_of
    tasks = tuple(
        Task(
            f"routes of {shard.path}",
            RouteJob(index=i, memberships=shard, channel=channels.index(channel), task_of=task_of),
            (shard, task_of),
            shard.size,
        )
        for i, (shard, channel) in enumerate(zip(bands.memberships, bands.channels, strict=True))
    )
    return Stage(name="route", version=2, function=_route, tasks=tasks)


@dataclass(frozen=True)
class RouteSlice:
    """The memberships of some tasks in one shard: its rows, and the task of each, (M,)."""

    rows: pa.Table
    task: U32


def slice_routes(
    routes: Iterable[tuple[Shard, Shard]], first: int, stop: int, inputs: Inputs
) -> Iterator[RouteSlice]:
    """The memberships of tasks [first, stop) in every shard."""
    for shard, starts in routes:
        routed, index = inputs.open(shard), inputs.table(starts)
        tasks = index["task"].to_numpy()
        start = np.append(index["start"].to_numpy(), len(routed))
        low, high = np.searchsorted(tasks, [first, stop])
        rows = routed.read(None, int(start[low]), int(start[high]))
        yield RouteSlice(rows, np.repeat(tasks[low:high], np.diff(start[low : high + 1])))


@dataclass(frozen=True, kw_only=True)
class MergeRoutesJob:
    """The memberships of tasks [first, stop) in a group of shards."""

    index: int
    first: int
    stop: int
    routes: Shared[tuple[Shard, ...]]
    starts: Shared[tuple[Shard, ...]]


def _merge_routes(job: MergeRoutesJob, inputs: Inputs) -> Result:
    """Shards as those of `route`, with buckets numbered over all shards of the group."""
    shards = zip(job.routes.value, job.starts.value, strict=True)
    slices = list(slice_routes(shards, job.first, job.stop, inputs))
    rows = pa.concat_tables([part.rows for part in slices])
    shard = np.repeat(np.arange(len(slices), dtype=np.uint64), [len(p.rows) for p in slices])
    _, bucket = np.unique((shard << np.uint64(32)) + rows["bucket"].to_numpy(), return_inverse=True)
    task = np.concatenate([part.task for part in slices])
    member, channel = rows["member"].to_numpy(), rows["channel"].to_numpy()
    numbers = bucket.astype(np.uint32)
    return Result(_routed("merged_routes", job.index, task, member, numbers, channel))


def merge_routes(
    routes: RoutesOutput, components: ComponentsOutput, run: RunStage
) -> tuple[Bundle, ...]:
    """The routes of all tasks of `clusters`, merged where they are too many for one of them."""

    def merge(name: str, wide: Sequence[Bundle]) -> StageManifest:
        tasks = []
        for index, bundle in enumerate(wide):
            shards, starts = bundle.kinds
            job = MergeRoutesJob(
                index=index, first=bundle.first, stop=bundle.stop, routes=shards, starts=starts
            )
            tasks.append(Task(f"{name} from {bundle.first}", job, bundle.kinds, bundle.work))
        return run(Stage(name=name, version=1, function=_merge_routes, tasks=tuple(tasks)))

    kinds = Shared(routes.memberships), Shared(routes.starts)
    size = sum(shard.size for shard in routes.memberships)
    whole = bundle_shards("clusters", len(components.tasks), *kinds, work=size)
    return merge_in_levels((whole,), ("merge_routes",), merge)
