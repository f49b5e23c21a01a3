"""Clusters: for every component of candidates, which documents stay and which one represents each
of the others, proven by exact Jaccard similarity unless the config asks for less."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8
from dedup.presets import Preset, Verify
from pipeline.core import ids
from pipeline.engine.ranges import Ranges, Shards, merge_ranges, slice_range
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.views.duplicates import MembersOutput, RoutesOutput
from pipeline.sources.preference import PREFERENCE
from pipeline.stages.batches import Batches, Corpus
from pipeline.stages.candidates import KEY, SAME
from pipeline.stages.components import MEMBER_BYTES

if TYPE_CHECKING:
    from dedup.clusters import Memberships
    from dedup.clusters import Rules as Selection


CHOICE = pa.schema(
    [
        ("member", pa.uint32()),
        ("representative", pa.uint32()),
        ("channels", pa.uint64()),
        ("estimate", pa.float64()),
        ("exact", pa.float64()),
        ("kept_key", pa.binary(ids.KEY_BYTES)),
        ("kept_text_key", pa.binary(ids.KEY_BYTES)),
        ("kept_source", pa.string()),
    ]
)
"""One row per document that another represents, by its dense index: dense indices of both, the
channels they share as a bit mask, estimated and exact Jaccard similarity (NaN where not computed),
key, text key and source of the one that stays."""


@dataclass(frozen=True)
class ClusterRules:
    """What makes a candidate a duplicate."""

    preset: Preset
    channels: tuple[str, ...]
    verify: Verify
    threshold: float


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """Which task it is; shards, sorted by task, of what is known of documents and of memberships;
    the batches, whose texts may be compared."""

    index: int
    members: Shards
    routes: Shards
    batches: Shared[Batches]
    rules: ClusterRules


@dataclass(frozen=True, kw_only=True)
class _RankedDocuments:
    """A task's documents (D) in rank order: dense index, component, and 0 new, 1 kept or 2 dropped
    by an earlier batch; keys, text keys and sources; the columns of `members` in their own order,
    and the row of each document there."""

    index: I64
    component: I64
    origin: U8
    keys: pa.Table
    table: pa.Table
    row: I64


def _clusters(job: ClusterJob, inputs: Inputs) -> Result:
    from dedup.clusters import KEPT, collapse, select_representatives

    ranked = _rank(job, inputs)
    memberships = _memberships(job, inputs, ranked)
    if job.rules.verify == "none":
        selection = collapse(memberships, ranked.component, ranked.origin)
    else:
        selection = select_representatives(
            memberships,
            _signatures(ranked),
            selection_rules(job.rules),
            _Reader(job, inputs, ranked.index),
            ranked.origin,
        )
    dropped = np.flatnonzero(selection.representative != KEPT)
    dropped = dropped[np.argsort(ranked.index[dropped])]
    kept = selection.representative[dropped]
    columns = (
        ranked.index[dropped].astype(np.uint32),
        ranked.index[kept].astype(np.uint32),
        selection.channels[dropped],
        selection.estimate[dropped],
        selection.exact[dropped],
    )
    keys = ranked.keys.take(pa.array(kept)).columns
    table = pa.table([*(pa.array(column) for column in columns), *keys], schema=CHOICE)
    output = arrow_output(layout.shard("clusters", job.index, "arrow"), table)
    counters = {"documents": len(ranked.index), "duplicates": len(dropped), **selection.counts}
    return Result((output,), counters)


def _rank(job: ClusterJob, inputs: Inputs) -> _RankedDocuments:
    """Ascending (batch, decision, source priority, preferences, doc_key): the smallest is
    preferred."""
    table = _slice(job, job.members, inputs)
    keys = ids.keys_as_u64(table["doc_key"])
    preferred = sorted((n for n in table.column_names if n.startswith(PREFERENCE)), reverse=True)
    columns = [table[name].to_numpy() for name in (*preferred, "priority", "decision", "batch")]
    row = ids.sort_order(keys, *columns)
    index, component = (table[n].to_numpy()[row].astype(np.int64) for n in ("member", "component"))
    ranked_keys = table.select(["doc_key", "text_key", "source"]).take(pa.array(row))
    return _RankedDocuments(
        index=index,
        component=component,
        origin=table["origin"].to_numpy()[row],
        keys=ranked_keys,
        table=table,
        row=row,
    )


def _slice(job: ClusterJob, shards: Shards, inputs: Inputs) -> pa.Table:
    empty = inputs.open(shards.value[0]).empty
    return slice_range(shards, "task", (job.index, job.index + 1), empty, inputs)


def _memberships(job: ClusterJob, inputs: Inputs, ranked: _RankedDocuments) -> "Memberships":
    """The task's memberships by rank, buckets numbered over all channels."""
    from dedup.clusters import group_memberships

    table = _slice(job, job.routes, inputs)
    rank = np.empty(len(ranked.row), np.uint32)
    rank[ranked.row] = np.arange(len(rank), dtype=np.uint32)
    by_index = np.searchsorted(ranked.table["member"].to_numpy(), table["member"].to_numpy())
    _, bucket = np.unique(table["bucket"].to_numpy(), return_inverse=True)
    return group_memberships(rank[by_index], bucket, table["channel"].to_numpy(), len(rank))


def _signatures(ranked: _RankedDocuments) -> npt.NDArray[np.unsignedinteger]:
    """Signatures in rank order, (D, P)."""
    chunks = [chunk.flatten().to_numpy() for chunk in ranked.table["signature"].chunks]
    flat = np.concatenate(chunks)
    return flat.reshape(len(ranked.row), -1)[ranked.row]


def selection_rules(rules: ClusterRules) -> "Selection":
    """The rules as the selection takes them: channels as bits."""
    from dedup.clusters import Rules as Selection

    bits = {name: 1 << i for i, name in enumerate(rules.channels)}
    sure = bits.get(KEY, 0)
    if rules.preset.bands == 0:
        sure |= bits[SAME]
    return Selection(rules.verify, rules.threshold, rules.preset.num_perm, sure, bits[SAME])


class _Reader:
    """Exact Jaccard similarity of two documents of a task, by rank."""

    def __init__(self, job: ClusterJob, inputs: Inputs, index: I64) -> None:
        from dedup.similarity import PairJaccard

        self._pair = PairJaccard(job.rules.preset)
        self._corpus = Corpus(job.batches.value, inputs)
        self._index = index

    def __call__(self, a: int, b: int) -> float:
        first, second = (self._corpus.text(int(self._index[i])) for i in (a, b))
        return self._pair.of(first, 0, len(first), second, 0, len(second))


def cluster_stage(
    output: tuple[MembersOutput, RoutesOutput],
    sizes: Sequence[int],
    batches: Batches,
    rules: ClusterRules,
    memory: int,
    run: RunStage,
) -> Stage:
    """One task per group of components, which are as large as the memory of a task allows; `sizes`
    are their documents. What merges `members/` and `routes/` for them runs at once."""
    compared, reads_texts = Shared(batches), rules.verify == "exact"
    texts = (Shared(batches.all[-1].documents),) if reads_texts else ()
    numbers, (of_members, of_routes) = tuple(range(len(sizes) + 1)), output
    (known,) = merge_ranges("merge_members", "task", [Ranges(of_members.members, numbers)], run)
    (routed,) = merge_ranges("merge_routes", "task", [Ranges(of_routes.routes, numbers)], run)
    tasks = []
    for index, (members, routes) in enumerate(zip(known, routed, strict=True)):
        job = ClusterJob(index=index, members=members, routes=routes, batches=compared, rules=rules)
        needed = max(memory, (MEMBER_BYTES + rules.preset.signature_bytes) * sizes[index])
        inputs = (members, routes, *texts)
        tasks.append(Task(f"clusters {index}", job, inputs, sizes[index], needed))
    settings = {"verify": rules.verify, "threshold": rules.threshold}
    return Stage(
        name="clusters",
        version=5,
        function=_clusters,
        tasks=tuple(tasks),
        settings=settings,
        reads_texts=reads_texts,
    )
