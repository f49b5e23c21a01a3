"""Components: what candidate edges connect, dealt out to the tasks of `clusters`; and what these
tasks get, sorted by task: `route` sorts every shard of memberships, `members` what is known of the
documents.

`components` is the one stage that knows all candidates at once. It takes 8 bytes for each document
that has one, in a mapped file, a bit and a half for every other, and runs where workers have no
limits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, U32
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
from pipeline.runs import layout, parts
from pipeline.runs.views.duplicates import BandsOutput, ComponentsOutput
from pipeline.screening.evidence import DECISIONS
from pipeline.sources.preference import LAST, Preference, preference_names
from pipeline.stages.batches import Batches

PART = 1 << 23
"""Documents in a shard: what reads one has 64 MiB mapped, and there are at most 512."""
_COLUMNS = pa.schema([("task", pa.uint32()), ("component", pa.uint32())])
Parts = Shared[tuple[Shard, ...]]
"""The shards."""
_TASK_DOCUMENTS = 1 << 10
"""Documents that a task of `clusters` takes at least, if memory allows: comparing their texts is
half a second's work."""
_TASKS = 256
"""Where this many such tasks are not enough, each takes more documents instead, so that what it
reads of every shard does not shrink."""
MEMBER_BYTES = 1024
"""Working memory of one document while representatives are chosen, apart from its signature."""
_KEPT, _DUPLICATE = (layout.STATES.index(state) for state in ("kept", "duplicate"))
_CONTAINED = layout.ENDS.index(layout.CONTAINED)


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
    wanted = max(_TASK_DOCUMENTS, documents // _TASKS)
    per_task = max(1, min(wanted, memory // (MEMBER_BYTES + signature_bytes)))
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
        tables.append(inputs.open(shards.value[number]).read(None, low, high))
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


@dataclass(frozen=True, kw_only=True)
class RouteJob:
    """One shard of memberships, the number of its channel and of its first bucket, and the shards
    that say who needs them."""

    index: int
    memberships: Shard
    channel: int
    first_bucket: int
    components: Parts


def _route(job: RouteJob, inputs: Inputs) -> Result:
    """Columns task, member (uint32), bucket (uint64, numbered over all shards) and channel (uint8);
    by task."""
    table = inputs.table(job.memberships)
    task = look_up_tasks(table["member"].to_numpy(), job.components, inputs)
    bucket = table["bucket"].to_numpy() + np.uint64(job.first_bucket)
    columns = {
        "task": pa.array(task),
        "member": table["member"],
        "bucket": pa.array(bucket),
        "channel": pa.array(np.full(len(task), job.channel, np.uint8)),
    }
    return Result((_sort_by_task("routes", job.index, pa.table(columns)),))


def _sort_by_task(directory: str, index: int, rows: pa.Table) -> Output:
    order = pa.array(np.argsort(rows["task"].to_numpy(), kind="stable"))
    return arrow_output(layout.shard(directory, index, "arrow"), rows.take(order).combine_chunks())


def route_stage(
    bands: BandsOutput, components: ComponentsOutput, channels: tuple[str, ...]
) -> Stage:
    """One task per shard of memberships."""
    shared = Shared(components.components)
    tasks: list[Task] = []
    first = accumulate(bands.buckets, initial=0)
    for index, (shard, channel) in enumerate(zip(bands.memberships, bands.channels, strict=True)):
        job = RouteJob(
            index=index,
            memberships=shard,
            channel=channels.index(channel),
            first_bucket=next(first),
            components=shared,
        )
        tasks.append(Task(f"routes of {shard.path}", job, (shard, shared), shard.size))
    return Stage(name="route", version=3, function=_route, tasks=tuple(tasks))


@dataclass(frozen=True, kw_only=True)
class MembersJob:
    """Documents of some shards of one batch, from dense index `first` on. `decided`: decisions on
    them, or in an earlier batch, which is in `location`, their states."""

    index: int
    batch: int
    is_old: bool
    location: str
    first: int
    counts: tuple[int, ...]
    documents: tuple[Shard, ...]
    decided: tuple[Shard, ...]
    signatures: tuple[Shard, ...]
    components: Parts
    source_priority: tuple[str, ...]
    preferences: tuple[Preference, ...]


def _members(job: MembersJob, inputs: Inputs) -> Result:
    """The documents with candidates, by task: task, member, component; what ranks them (batch,
    decision, priority, preferences), origin; keys, source; the signature, if signatures are
    compared."""
    own = Inputs(Path(job.location)) if job.location else inputs
    found, firsts = [], accumulate(job.counts, initial=job.first)
    for number, (first, count) in enumerate(zip(firsts, job.counts, strict=False)):
        part = slice_components(job.components, first, first + count, inputs)
        row = np.flatnonzero(part["task"].to_numpy())
        routed = {
            "task": pa.array(part["task"].to_numpy()[row] - np.uint32(1)),
            "member": pa.array((first + row).astype(np.uint32)),
            "component": part["component"].take(row),
        }
        found.append(pa.table({**routed, **_describe(job, number, row, own)}))
    table = pa.concat_tables(found)
    counters: dict[str, Any] = {}
    if job.preferences and not job.is_old:
        names = preference_names(job.preferences)
        counters["documents"] = len(table)
        counters["without"] = [int((table[n].to_numpy() == LAST).sum()) for n in names]
    return Result((_sort_by_task("members", job.index, table),), counters)


def _describe(
    job: MembersJob, number: int, row: I64, own: Inputs
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """These rows of a documents shard."""
    names = ["doc_id", "doc_key", "text_key", "source"]
    if job.preferences:
        names += ["text_bytes", "meta"]
    documents = own.table(job.documents[number], names).take(pa.array(row))
    priority = pc.fill_null(
        pc.index_in(documents["source"], value_set=pa.array(job.source_priority, pa.string())),
        len(job.source_priority),
    )
    decision, origin = np.zeros(len(row), np.uint8), np.zeros(len(row), np.uint8)
    if job.is_old:
        keep = own.table(job.decided[number], ["state", "kind"]).take(pa.array(row))
        state, kind = keep["state"].to_numpy(), keep["kind"].to_numpy()
        # What a longer document contains is in the data with that one.
        is_there = (state == _KEPT) | ((state == _DUPLICATE) & (kind == _CONTAINED))
        origin = np.where(is_there, 1, 2).astype(np.uint8)
    elif job.decided:
        decisions = own.table(job.decided[number])
        decision = look_up_decisions(decisions, documents["doc_id"].to_numpy()).astype(np.uint8)
    columns = {
        "batch": pa.array(np.full(len(row), job.batch, np.uint32)),
        "decision": pa.array(decision),
        "priority": priority,
        "origin": pa.array(origin),
        "doc_key": documents["doc_key"],
        "text_key": documents["text_key"],
        "source": documents["source"],
    }
    for name, preference in zip(preference_names(job.preferences), job.preferences, strict=True):
        rank = np.full(len(row), LAST) if job.is_old else preference.rank(documents)
        columns[name] = pa.array(rank)
    if job.signatures:
        columns["signature"] = own.table(job.signatures[number])["signature"].take(pa.array(row))
    return columns


def look_up_decisions(decisions: pa.Table, doc_id: npt.NDArray[np.uint64]) -> I64:
    """Index into DECISIONS of each of these ascending doc_ids; 0 for those without a row."""
    rank = np.zeros(len(doc_id), np.int64)
    ranks = np.array([DECISIONS.index(d) for d in decisions["decision"].to_pylist()], np.int64)
    decided = decisions["doc_id"].to_numpy()
    here = np.isin(decided, doc_id)
    rank[np.searchsorted(doc_id, decided[here])] = ranks[here]
    return rank


def members_stage(
    batches: Batches,
    components: ComponentsOutput,
    source_priority: tuple[str, ...],
    preferences: tuple[Preference, ...],
    signature_bytes: int,
) -> Stage:
    """One task per part of a batch; `signature_bytes` are 0 where no signatures are compared."""
    shared, before = Shared(components.components), 0
    tasks: list[Task] = []
    for number, batch in enumerate(batches.all):
        is_old = number < len(batches.all) - 1
        decided = batch.keep if is_old else batch.decisions
        starts = list(accumulate(batch.counts, initial=before))
        before = starts[-1]
        for group in parts.group_tasks(batch.counts):
            at = slice(group.start, group.stop)
            job = MembersJob(
                index=len(tasks),
                batch=number,
                is_old=is_old,
                location=batch.location,
                first=starts[group.start],
                counts=batch.counts[at],
                documents=batch.documents[at],
                decided=decided[at],
                signatures=batch.signatures[at] if signature_bytes else (),
                components=shared,
                source_priority=source_priority,
                preferences=preferences,
            )
            read = (*job.documents, *job.decided, *job.signatures)
            own = () if batch.location else read
            documents = sum(job.counts)
            memory = (parts.RECORD_MEMORY + 3 * signature_bytes) * documents
            label = f"members from document {job.first:,} on"
            tasks.append(Task(label, job, (*own, shared), documents, memory))
    return Stage(
        name="members", version=2, function=_members, tasks=tuple(tasks), reads_texts=False
    )
