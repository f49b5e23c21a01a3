"""The keep-list: one terminal state and one split per document, and clusters.parquet.

A task of `keep` looks at the documents of a few clean tasks: their decisions, and what represents
them. What is global is small: how many kept documents each split has, which comes from counters,
and the order of clusters.parquet, whose parts are ranges of the kept key.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, U8, U64
from dedup.presets import Preset
from pipeline.config.prep import Config
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.ranges import Ranges, Shards, merge_ranges, slice_range
from pipeline.engine.shared import Shared
from pipeline.engine.stage import (
    Inputs,
    Output,
    Result,
    RunStage,
    Stage,
    Task,
    arrow_output,
    parquet_output,
)
from pipeline.runs import layout, parts, splits
from pipeline.runs.layout import CONTAINED, ENDS, KINDS, STATES
from pipeline.runs.views.documents import KeepOutput
from pipeline.runs.views.duplicates import (
    ClustersOutput,
    ContainedOutput,
    ContainmentsOutput,
    StaysOutput,
)
from pipeline.screening.evidence import DECISIONS
from pipeline.stages.batches import Batches
from pipeline.stages.candidates import KEY, SAME
from pipeline.stages.clusters import CHOICE
from pipeline.stages.containment import ContainmentRules, find_contained, read_contained

NOT_REPRESENTED = ENDS.index("")
"""The kind of a document that no other represents."""


@dataclass(frozen=True)
class Representatives:
    """What there is to represent documents: the names of the channels, and the batches by name with
    the dense index behind their last documents."""

    channels: tuple[str, ...]
    batches: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class KeepJob:
    """The documents of some clean tasks, from number `task` on and from dense index `first` on, and
    all that decides their ends; `choices` are shards of CHOICE."""

    part: int
    task: int
    first: int
    counts: tuple[int, ...]
    documents: tuple[Shard, ...]
    decisions: tuple[Shard, ...]
    choices: Shards
    representatives: Shared[Representatives]
    seed: int
    held_out: splits.HeldOut


@dataclass(frozen=True, kw_only=True)
class KeepWithoutContainedJob(KeepJob):
    """The same where contained documents go, too: their links, by documents shard, and by which of
    all links documents go."""

    links: tuple[Shard, ...]
    contained: Shard


@dataclass(frozen=True, kw_only=True)
class _Documents:
    """Columns over a task's documents (N): keys as (N, 2) uint64, their text keys likewise, sources
    as codes of `source_names`."""

    key_N2: U64  # noqa: N815 - shape suffix
    text_key_N2: U64  # noqa: N815
    source: I64
    source_names: tuple[str, ...]
    decision: U8


@dataclass(frozen=True, kw_only=True)
class _Duplicates:
    """Columns over a task's duplicates (M): row among its documents, key, text key and source of
    the representative, name of the earlier batch that holds it (empty: this run), channels shared,
    estimated and exact similarity, and of contained ones the share that it has of them (else
    NaN)."""

    row: I64
    key_M2: U64  # noqa: N815
    text_key_M2: U64  # noqa: N815
    source: pa.ChunkedArray
    batch: pa.Array
    channels: U64
    estimate: npt.NDArray[np.float64]
    exact: npt.NDArray[np.float64]
    share: npt.NDArray[np.float64]


def _stays(job: KeepJob, inputs: Inputs) -> Result:
    """The column state alone."""
    state = _states(_load(job, inputs).decision, _duplicates(job, inputs))
    return Result(tuple(_cut(job, "stays", pa.table({"state": pa.array(state)}))))


def _states(decision: U8, duplicates: _Duplicates) -> U8:
    """The end of every document, an index into STATES, (N,)."""
    state = np.full(len(decision), STATES.index("kept"), np.uint8)
    state[duplicates.row] = STATES.index("duplicate")
    state[decision == DECISIONS.index("quarantine")] = STATES.index("quarantined")
    state[decision == DECISIONS.index("drop")] = STATES.index("dropped")
    return state


def _cut(job: KeepJob, directory: str, table: pa.Table) -> list[Output]:
    """A shard for every documents shard."""
    starts = accumulate(job.counts[:-1], initial=0)
    return [
        arrow_output(layout.shard(directory, task, "arrow"), table.slice(start, count))
        for task, (start, count) in enumerate(zip(starts, job.counts, strict=True), job.task)
    ]


def _keep(job: KeepJob, inputs: Inputs) -> Result:
    documents, duplicates = _load(job, inputs), _duplicates(job, inputs)
    state = _states(documents.decision, duplicates)
    kind = np.full(len(state), NOT_REPRESENTED, np.uint8)
    kind[duplicates.row] = kinds(
        duplicates.channels, duplicates.exact, job.representatives.value.channels
    )
    is_contained = ~np.isnan(duplicates.share)
    kind[duplicates.row[is_contained]] = ENDS.index(CONTAINED)
    key, text_key = documents.key_N2.copy(), documents.text_key_N2.copy()
    key[duplicates.row] = duplicates.key_M2
    text_key[duplicates.row] = duplicates.text_key_M2
    table = pa.table(
        {
            "state": pa.array(state),
            "kind": pa.array(kind),
            "representative": ids.keys_from_u64(key),
            "text_key": ids.keys_from_u64(text_key),
        }
    )
    outputs = _cut(job, "keep", table)
    edges = _edges(job, documents, state, kind, duplicates)
    outputs.append(arrow_output(layout.shard("edges", job.part, "arrow"), edges))
    counts = {name: int((state == i).sum()) for i, name in enumerate(STATES)}
    is_kept = state == STATES.index("kept")
    drawn = splits.draw(text_key, job.seed)
    counters = {
        "documents": len(state),
        **counts,
        "sources": _by_source(documents, state),
        "draws": asdict(splits.count_kept(drawn, is_kept, job.held_out)),
    }
    return Result(tuple(outputs), counters)


def _load(job: KeepJob, inputs: Inputs) -> _Documents:
    columns = ["doc_id", "doc_key", "text_key", "source"]
    table = pa.concat_tables([inputs.table(s, columns) for s in job.documents])
    source = table["source"].combine_chunks().dictionary_encode()
    doc_id = table["doc_id"].to_numpy()
    decision = np.zeros(len(table), np.uint8)
    for shard in job.decisions:
        rows = inputs.table(shard)
        ranks = [DECISIONS.index(d) for d in rows["decision"].to_pylist()]
        decision[np.searchsorted(doc_id, rows["doc_id"].to_numpy())] = ranks
    return _Documents(
        key_N2=ids.keys_as_u64(table["doc_key"]),
        text_key_N2=ids.keys_as_u64(table["text_key"]),
        source=source.indices.to_numpy().astype(np.int64),
        source_names=tuple(source.dictionary.to_pylist()),
        decision=decision,
    )


def _duplicates(job: KeepJob, inputs: Inputs) -> _Duplicates:
    """The task's duplicates by ascending row: a slice of every shard, which is sorted by member."""
    bounds = job.first, job.first + sum(job.counts)
    rows = slice_range(job.choices, "member", bounds, CHOICE.empty_table(), inputs)
    if isinstance(job, KeepWithoutContainedJob):
        contained = read_contained(job.contained, job.links, bounds, inputs)
        rows = pa.concat_tables([rows, contained], promote_options="default")
    else:
        rows = rows.append_column("share", pa.nulls(len(rows), pa.float64()))
    table = rows.sort_by("member")
    names, ends = zip(*job.representatives.value.batches, strict=True)
    batch = np.searchsorted(ends, table["representative"].to_numpy(), side="right")
    return _Duplicates(
        row=table["member"].to_numpy().astype(np.int64) - job.first,
        key_M2=ids.keys_as_u64(table["kept_key"]),
        text_key_M2=ids.keys_as_u64(table["kept_text_key"]),
        source=table["kept_source"],
        batch=pa.array(names, pa.string()).take(pa.array(batch)),
        channels=pc.fill_null(table["channels"], 0).to_numpy(),
        estimate=table["estimate"].to_numpy(),
        exact=table["exact"].to_numpy(),
        share=table["share"].to_numpy(),
    )


def _by_source(documents: _Documents, state: U8) -> dict[str, list[int]]:
    """source -> [documents, duplicates], what the alarm looks at."""
    names = documents.source_names
    total = np.bincount(documents.source, minlength=len(names))
    gone = np.bincount(documents.source[state == STATES.index("duplicate")], minlength=len(names))
    return {name: [int(total[i]), int(gone[i])] for i, name in enumerate(names)}


def _edges(
    job: KeepJob, documents: _Documents, state: U8, kind: U8, duplicates: _Duplicates
) -> pa.Table:
    """The task's rows of clusters.parquet in its order, each with the start of its kept key."""
    member_key = documents.key_N2[duplicates.row]
    names, is_here = pa.array(documents.source_names, pa.string()), pc.equal(duplicates.batch, "")
    table = pa.table(
        {
            "kept": ids.keys_from_u64(duplicates.key_M2),
            "member": ids.keys_from_u64(member_key),
            "kind": pa.array(ENDS).take(pa.array(kind[duplicates.row])),
            "bands": _bands(duplicates.channels, job.representatives.value.channels),
            "estimate": pa.array(duplicates.estimate, from_pandas=True),
            "jaccard": pa.array(duplicates.exact, from_pandas=True),
            "member_state": pa.array(STATES).take(pa.array(state[duplicates.row])),
            "index": duplicates.batch,
            "source": names.take(pa.array(documents.source[duplicates.row])),
            "kept_source": pc.if_else(is_here, duplicates.source, None),
            START: pa.array(duplicates.key_M2.byteswap()[:, 0].copy()),
        }
    )
    if isinstance(job, KeepWithoutContainedJob):
        share = pa.array(duplicates.share, from_pandas=True)
        table = table.append_column(CONTAINED_SHARE, share)
    return table.take(pa.array(_order(duplicates.key_M2, member_key)))


CONTAINED_SHARE = "share"
"""The column of clusters.parquet where contained documents go: the share of the member's shingles
that the kept one has."""
START = "kept_start"
"""The first eight bytes of the kept key as a number; their order is that of the keys."""


def _order(kept_M2: U64, member_M2: U64) -> I64:
    """By kept key, then member key."""
    order = ids.sort_order(member_M2)
    return order[ids.sort_order(kept_M2[order])]


def kinds(channels: U64, exact: npt.NDArray[np.float64], names: tuple[str, ...]) -> U8:
    """Why M documents are duplicates, by the channels they share with what represents each
    and their exact similarity: indices into KINDS, (M,)."""
    bands = np.uint64((1 << sum(n not in (SAME, KEY) for n in names)) - 1)
    same = np.uint64(1 << names.index(SAME)) if SAME in names else np.uint64(0)
    kind = np.full(len(channels), KINDS.index("chain"), np.uint8)
    kind[channels != 0] = KINDS.index("key")
    kind[(channels & bands) != 0] = KINDS.index("near")
    kind[((channels & same) != 0) & ~(exact < 1)] = KINDS.index("exact")
    return kind


def _bands(channels: U64, names: tuple[str, ...]) -> pa.ListArray:
    """The bands among the channels, as a list<uint8> per row."""
    count = sum(name not in (SAME, KEY) for name in names)
    bits = (channels[:, None] >> np.arange(count, dtype=np.uint64)) & np.uint64(1) == 1
    rows, bands = np.nonzero(bits)
    offsets = np.searchsorted(rows, np.arange(len(channels) + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(bands.astype(np.uint8)))


def keep_stage(
    config: Config,
    batches: Batches,
    clusters: ClustersOutput | None,
    channels: tuple[str, ...],
    run: RunStage,
    shingles: Preset | None = None,
) -> Stage:
    """One task per part of the run; what merges `clusters/` for them runs at once, and what finds
    contained documents by these shingles, if some are given."""
    jobs = list(_make_jobs(config, batches, clusters, channels, run))
    held_out = splits.held_out(config)
    stage = Stage(
        name="keep",
        version=5,
        function=_keep,
        tasks=tuple(_make_task("keep-list", job) for job in jobs),
        settings={"seed": config.seed, "splits": [list(s) for s in held_out]},
        reads_texts=False,
    )
    if shingles is None:
        return stage
    tasks = tuple(_make_task("documents that stay", job) for job in jobs)
    stays = StaysOutput(
        run(Stage(name="stays", version=1, function=_stays, tasks=tasks, reads_texts=False))
    )
    rules = ContainmentRules(shingles, config.dedup.containment.min_share)
    links, contained = find_contained(batches, stays.states, rules, config.dedup.memory, run)
    tasks = tuple(_make_task("keep-list", _without(job, links, contained)) for job in jobs)
    return replace(stage, tasks=tasks)


def _make_jobs(
    config: Config,
    batches: Batches,
    clusters: ClustersOutput | None,
    channels: tuple[str, ...],
    run: RunStage,
) -> Iterator[KeepJob]:
    own = batches.all[-1]
    ends = list(accumulate(batch.total for batch in batches.all))
    names = [*(batch.name for batch in batches.all[:-1]), ""]
    representatives = Shared(Representatives(channels, tuple(zip(names, ends, strict=True))))
    before = list(accumulate(own.counts, initial=batches.first_new))
    groups = parts.group_tasks(own.counts)
    bounds = batches.first_new, *(before[group.stop] for group in groups)
    ranges = Ranges(clusters.choices if clusters else (), bounds)
    (choices,) = merge_ranges("merge_choices", "member", [ranges], run)
    for part, (group, chosen) in enumerate(zip(groups, choices, strict=True)):
        at = slice(group.start, group.stop)
        yield KeepJob(
            part=part,
            task=group.start,
            first=before[group.start],
            counts=own.counts[at],
            documents=own.documents[at],
            decisions=own.decisions[at],
            choices=chosen,
            representatives=representatives,
            seed=config.seed,
            held_out=splits.held_out(config),
        )


def _without(
    job: KeepJob, links: ContainmentsOutput, contained: ContainedOutput
) -> KeepWithoutContainedJob:
    of_job = links.links[job.task : job.task + len(job.counts)]
    fields = vars(job) | {"links": of_job, "contained": contained.chosen}
    return KeepWithoutContainedJob(**fields)


def _make_task(what: str, job: KeepJob) -> Task:
    read: tuple[Any, ...] = (*job.documents, *job.decisions, job.choices)
    if isinstance(job, KeepWithoutContainedJob):
        read += (*job.links, job.contained)
    documents = sum(job.counts)
    return Task(f"{what} of part {job.part}", job, read, documents, parts.RECORD_MEMORY * documents)


@dataclass(frozen=True)
class ClusterTableJob:
    """Part `part` of clusters.parquet: rows whose kept keys start with a number in [low, high)."""

    part: int
    low: int
    high: int
    edges: Shards


def _cluster_table(job: ClusterTableJob, inputs: Inputs) -> Result:
    """One row per document that another represents, by kept key, then member key: both keys, why,
    the bands both share, the estimated and exact Jaccard similarity (null where not computed), the
    earlier batch that holds the kept document (empty: this run), the sources of both (null: of an
    earlier batch)."""
    empty = inputs.open(job.edges.value[0]).empty
    table = slice_range(job.edges, START, (job.low, job.high), empty, inputs)
    table = table.drop_columns([START])
    order = _order(ids.keys_as_u64(table["kept"]), ids.keys_as_u64(table["member"]))
    path = parts.part(layout.CLUSTERS, job.part)
    return Result((parquet_output(path, table.take(pa.array(order)).combine_chunks()),))


def cluster_table_stage(keep: KeepOutput, clusters: ClustersOutput | None, run: RunStage) -> Stage:
    """One task per range of the kept key; what merges `edges/` for them runs at once."""
    duplicates = clusters.duplicates if clusters else [0]
    contained = max(0, sum(keep.duplicate) - sum(duplicates))  # at least so many
    count = max(1, -(-(sum(duplicates) + contained) // parts.RECORDS))
    # All of one kept document are in one part.
    most = parts.RECORDS + max(duplicates, default=0) + contained
    bounds = tuple((1 << 64) * part // count for part in range(count + 1))
    (merged,) = merge_ranges("merge_edges", START, [Ranges(keep.edges, bounds)], run)
    tasks = [
        Task(
            f"part {part} of the table of clusters",
            ClusterTableJob(part, bounds[part], bounds[part + 1], edges),
            (edges,),
            memory=parts.RECORD_MEMORY * most,
        )
        for part, edges in enumerate(merged)
    ]
    return Stage(
        name="cluster_table",
        version=2,
        function=_cluster_table,
        tasks=tuple(tasks),
        reads_texts=False,
    )
