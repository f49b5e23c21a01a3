"""Components: documents that candidate edges connect, and how they are dealt out to tasks.

Two rounds: union-find over all memberships in one array of 4 bytes a document, then every shard of
memberships is sorted by the task that will choose the representatives of its component.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import layout
from pipeline.core.manifest import Shard, StageManifest
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output

MEMBERS = "components/members.arrow"
TASK_OF = "components/tasks.arrow"
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
    from dedup.components import components, finish, new_parents, unite

    parents = new_parents(job.documents)
    for shard in job.bands:
        table = inputs.table(shard)
        unite(parents, table["member"].to_numpy(), table["bucket"].to_numpy())
    finish(parents)
    members, starts = components(parents)
    cuts = task_cuts(starts, job.documents_per_task)
    task_of = np.zeros(job.documents, np.uint32)
    for number, (start, stop) in enumerate(cuts):
        task_of[members[start:stop]] = number + 1
    sizes = np.diff(starts)
    component = np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes)
    outputs = (
        arrow_output(MEMBERS, pa.table({"member": members, "component": component})),
        arrow_output(TASK_OF, pa.table({"task": task_of})),
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
    cuts = []
    total = int(starts[-1]) if len(starts) else 0
    start = 0
    while start < total:
        place = int(np.searchsorted(starts, start + largest, side="right")) - 1
        stop = int(starts[place])
        if stop <= start:
            stop = int(starts[place + 1])
        cuts.append([start, stop])
        start = stop
    return cuts


def components_stage(
    bands: StageManifest, documents: int, signature_bytes: int, memory: int
) -> Stage:
    """One fan-in task; its memory is 12 bytes a document and one shard of memberships."""
    per_task = max(1, min(_LARGEST_TASK, memory // (_MEMBER_BYTES + signature_bytes)))
    job = ComponentsJob(tuple(bands.shards), documents, per_task)
    size = sum(shard.size for shard in bands.shards)
    return Stage("components", 1, _components, (Task("components", job, job.bands, size),))


@dataclass(frozen=True)
class RouteJob:
    """One shard of memberships and the table that says who needs them."""

    index: int
    memberships: Shard
    task_of: Shard
    tasks: int


def _route(job: RouteJob, inputs: Inputs) -> Result:
    """The same columns sorted by task; counter `cuts`: where each task's memberships start."""
    table = inputs.table(job.memberships)
    member = table["member"].to_numpy()
    task = inputs.table(job.task_of)["task"].to_numpy()[member]
    order = np.argsort(task, kind="stable")
    cuts = np.searchsorted(task[order], np.arange(1, job.tasks + 2))
    routed = pa.table({"member": member[order], "bucket": table["bucket"].to_numpy()[order]})
    output = arrow_output(layout.shard("routes", job.index, "arrow"), routed)
    return Result((output,), {"cuts": cuts.tolist()})


def route_stage(bands: StageManifest, components: StageManifest) -> Stage:
    """One task per shard of memberships."""
    tasks = len(components.tasks[0].counters["tasks"])
    task_of = components.find(TASK_OF)
    jobs = [RouteJob(i, shard, task_of, tasks) for i, shard in enumerate(bands.shards)]
    return Stage(
        "route",
        1,
        _route,
        tuple(
            Task(f"routes of {j.memberships.path}", j, (j.memberships, task_of), j.memberships.size)
            for j in jobs
        ),
    )
