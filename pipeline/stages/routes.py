"""What tasks of `clusters` get, sorted by task: `route` sorts every shard of memberships, `members`
what is known of the documents.
"""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.manifest import Shard
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output
from pipeline.runs import layout, parts
from pipeline.runs.views import BandsOutput, ComponentsOutput
from pipeline.screening.evidence import DECISIONS
from pipeline.stages.batches import Batches
from pipeline.stages.components import Parts, look_up_tasks, slice_components

KEPT_STATE = 0
"""`kept` in pipeline.runs.layout.STATES, as an earlier batch wrote it."""


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


def _members(job: MembersJob, inputs: Inputs) -> Result:
    """The documents with candidates, by task: task, member, component; what ranks them (batch,
    decision, priority), origin; keys; the signature, if signatures are compared."""
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
    return Result((_sort_by_task("members", job.index, pa.concat_tables(found)),))


def _describe(
    job: MembersJob, number: int, row: I64, own: Inputs
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """These rows of a documents shard."""
    names = ["doc_id", "doc_key", "text_key", "source"]
    documents = own.table(job.documents[number], names).take(pa.array(row))
    priority = pc.fill_null(
        pc.index_in(documents["source"], value_set=pa.array(job.source_priority, pa.string())),
        len(job.source_priority),
    )
    decision, origin = np.zeros(len(row), np.uint8), np.zeros(len(row), np.uint8)
    if job.is_old:
        state = own.table(job.decided[number])["state"].to_numpy()[row]
        origin = np.where(state == KEPT_STATE, 1, 2).astype(np.uint8)
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
    }
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
            )
            read = (*job.documents, *job.decided, *job.signatures)
            own = () if batch.location else read
            documents = sum(job.counts)
            memory = (parts.RECORD_MEMORY + 3 * signature_bytes) * documents
            label = f"members from document {job.first:,} on"
            tasks.append(Task(label, job, (*own, shared), documents, memory))
    return Stage(
        name="members", version=1, function=_members, tasks=tuple(tasks), reads_texts=False
    )
