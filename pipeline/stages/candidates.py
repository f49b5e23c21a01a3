"""Dedup up to candidates, in four stages.

`signatures` reads the text once: per documents shard, `signatures/` has the MinHash signature of
every document (unless nothing is verified by it) and `runs/` the sorted digests of every channel
with their rows. Channels are the bands; `same`, the digest of the whole normalised text; and, where
one is configured, `key`, the digest of a field of `meta`. `bands` joins one key range of a channel
over all shards, `components` finds what candidate edges connect (4 bytes a document), and `route`
sorts every shard of memberships by the task that will choose the representatives.
"""

from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from dedup.presets import Preset
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
from pipeline.runs.views import BandsOutput, CleanOutput, ComponentsOutput
from pipeline.stages.batches import Batches

SAME = "same"
KEY = "key"

Entries = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]


@dataclass(frozen=True)
class SignatureJob:
    """One documents shard under a preset; `key` is a dotted field of meta, or empty."""

    index: int
    documents: Shard
    preset: Preset
    key: str
    keep_signatures: bool


def channels(preset: Preset, key: str | None) -> tuple[str, ...]:
    """Names of the channels in which documents can meet: bands, then `same`, then `key`."""
    bands = tuple(f"band_{b:02d}" for b in range(preset.bands))
    return (*bands, SAME, *((KEY,) if key else ()))


def _signatures(job: SignatureJob, inputs: Inputs) -> Result:
    from dedup.lsh import band_digests
    from dedup.minhash import sketch_documents

    table = inputs.table(job.documents, ["meta", "text"])
    sketches = sketch_documents(table["text"], job.preset)
    rows = np.flatnonzero(sketches.shingles > 0).astype(np.uint32)
    signatures = sketches.signatures
    runs: dict[str, Entries] = {SAME: (sketches.text_digest[rows], rows)}
    if job.preset.bands:
        digests = band_digests(signatures[rows], job.preset.bands, job.preset.rows)
        runs |= {f"band_{b:02d}": (digests[b], rows) for b in range(job.preset.bands)}
    outputs = [_runs(layout.shard("runs", job.index, "arrow"), runs)]
    keyed = 0
    if job.key:
        key_run = _key_digests(table["meta"], job.key)
        keyed = len(key_run[1])
        outputs.append(_runs(layout.shard("runs", job.index, "key.arrow"), {KEY: key_run}))
    if job.keep_signatures:
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(np.ascontiguousarray(signatures).reshape(-1)), job.preset.num_perm
        )
        path = layout.shard("signatures", job.index, "arrow")
        outputs.append(arrow_output(path, pa.table({"signature": column})))
    counters = {"documents": len(table), "entries": len(rows), "keyed": keyed}
    return Result(tuple(outputs), counters)


def _runs(path: str, runs: dict[str, Entries]) -> Output:
    """Columns CHANNEL (uint64 digests, ascending) and CHANNEL_row (uint32) per channel."""
    from dedup.lsh import sort_run

    columns: dict[str, pa.Array] = {}
    for channel, (digests, rows) in runs.items():
        ordered, owners = sort_run(digests, rows)
        columns |= {channel: pa.array(ordered), f"{channel}_row": pa.array(owners)}
    return arrow_output(path, pa.table(columns))


def _key_digests(metas: pa.ChunkedArray, key: str) -> Entries:
    """Digests of the field `key` of every meta object that holds it, and their rows."""
    digests, rows = [], []
    for row, meta in enumerate(metas):
        value = _field(msgspec.json.decode(meta.as_buffer()), key)
        if value not in (None, ""):
            digests.append(xxhash.xxh3_64_intdigest(msgspec.json.encode(value)))
            rows.append(row)
    return np.array(digests, np.uint64), np.array(rows, np.uint32)


def _field(meta: Any, key: str) -> Any:
    for name in key.split("."):
        meta = meta.get(name) if isinstance(meta, dict) else None
    return meta


def signature_stage(clean: CleanOutput, preset: Preset, key: str | None, keep: bool) -> Stage:
    """The stage that reads each document once; `keep` also writes the signatures themselves."""
    tasks = tuple(
        Task(f"signatures of {s.path}", SignatureJob(i, s, preset, key or "", keep), (s,), s.size)
        for i, s in enumerate(clean.documents)
    )
    settings = {"preset": asdict(preset), "key": key or ""}
    return Stage(name="signatures", version=2, function=_signatures, tasks=tasks, settings=settings)


_ENTRY_BYTES = 48
"""Working memory of one entry: digest and document, twice for the sort, and its bucket."""


@dataclass(frozen=True)
class SortedRuns:
    """Sorted runs of one documents shard: `base` is the dense index of its first document."""

    shard: Shard
    base: int
    location: str


@dataclass(frozen=True, kw_only=True)
class JoinJob:
    """Digests of `channel` in [low, high], both included, over all runs."""

    index: int
    channel: str
    low: int
    high: int
    runs: Shared[tuple[SortedRuns, ...]]
    first_new: int


def _join(job: JoinJob, inputs: Inputs) -> Result:
    """Columns member (uint32 dense index), bucket (uint32 from 0); only buckets of two and more
    documents, of which one is new."""
    from dedup.join import buckets
    from dedup.lsh import slice_run

    digests, members = [], []
    for run in job.runs.value:
        owner = Inputs(Path(run.location)) if run.location else inputs
        table = owner.table(run.shard, [job.channel, f"{job.channel}_row"])
        column = table[job.channel].to_numpy()
        start, stop = slice_run(column, job.low, job.high)
        if stop > start:
            digests.append(column[start:stop])
            rows = table[f"{job.channel}_row"].to_numpy()[start:stop]
            members.append((rows + np.uint64(run.base)).astype(np.uint32))
    member, bucket = buckets(digests, members, new_from=job.first_new)
    table = pa.table({"member": pa.array(member), "bucket": pa.array(bucket)})
    output = arrow_output(layout.shard("bands", job.index, "arrow"), table)
    count = int(bucket.max()) + 1 if len(bucket) else 0
    return Result((output,), {"channel": job.channel, "buckets": count, "memberships": len(member)})


def join_stage(batches: Batches, channels: tuple[str, ...], memory: int) -> Stage:
    """Tasks = channels x key ranges; the ranges follow from the number of documents and the memory
    of one task alone."""
    from dedup.join import key_ranges

    batches.check_size()
    tasks: list[Task] = []
    for channel in channels:
        runs = _runs_of_channel(batches, channel)
        own = Shared(tuple(run.shard for run in runs if not run.location))
        size = sum(shard.size for shard in own.value) // max(len(channels), 1)
        every = Shared(runs)
        ranges = key_ranges(batches.total, _ENTRY_BYTES, memory)
        needed = min(memory, _ENTRY_BYTES * batches.total)
        for low, high in ranges:
            job = JoinJob(
                index=len(tasks),
                channel=channel,
                low=low,
                high=high,
                runs=every,
                first_new=batches.first_new,
            )
            label = f"{channel} from {low:016x}"
            tasks.append(Task(label, job, (own,), size // len(ranges), needed))
    settings = {"first_new": batches.first_new}
    return Stage(name="bands", version=2, function=_join, tasks=tuple(tasks), settings=settings)


def _runs_of_channel(batches: Batches, channel: str) -> tuple[SortedRuns, ...]:
    runs, base = [], 0
    for batch in batches.all:
        shards = [s for s in batch.runs if s.path.endswith(".key.arrow") == (channel == KEY)]
        if shards:
            bases = accumulate(batch.counts[:-1], initial=base)
            runs += [SortedRuns(s, b, batch.location) for s, b in zip(shards, bases, strict=True)]
        base += batch.total
    return tuple(runs)


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


def route_stage(bands: BandsOutput, components: ComponentsOutput) -> Stage:
    """One task per shard of memberships."""
    tasks, task_of = len(components.tasks), components.task_of
    return Stage(
        name="route",
        version=1,
        function=_route,
        tasks=tuple(
            Task(f"routes of {s.path}", RouteJob(i, s, task_of, tasks), (s, task_of), s.size)
            for i, s in enumerate(bands.memberships)
        ),
    )
