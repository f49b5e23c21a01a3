"""Clusters: for every component of candidates, which documents stay and which one represents each
of the others, proven by exact Jaccard similarity unless the config asks for less."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8
from dedup.presets import Preset, Verify
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.levels import Bundle, single_ranges
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, Shards, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.views import ComponentsOutput
from pipeline.screening.evidence import DECISIONS
from pipeline.stages.batches import Batches, Corpus
from pipeline.stages.candidates import KEY, SAME
from pipeline.stages.routes import slice_routes

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
    ]
)
"""One row per document that another represents, by its dense index: dense indices of both, the
channels they share as a bit mask, estimated and exact Jaccard similarity (NaN where not computed),
key and text key of the one that stays."""

KEPT_STATE = 0
"""`kept` in pipeline.runs.layout.STATES, as an earlier batch wrote it."""


@dataclass(frozen=True)
class ClusterRules:
    """What makes a candidate a duplicate, and which document is preferred."""

    preset: Preset
    channels: tuple[str, ...]
    verify: Verify
    threshold: float
    source_priority: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """Members [start, stop) of whole components, and their memberships."""

    index: int
    members: Shard
    start: int
    stop: int
    routes: Shared[tuple[Shard, ...]]
    starts: Shared[tuple[Shard, ...]]
    batches: Shared[Batches]
    rules: ClusterRules


@dataclass(frozen=True)
class _RankedDocuments:
    """A task's documents (D) in rank order: dense index, component, and 0 new, 1 kept or 2 dropped
    by an earlier batch; keys and text keys."""

    index: I64
    component: I64
    origin: U8
    keys: pa.Table


def _clusters(job: ClusterJob, inputs: Inputs) -> Result:
    from dedup.clusters import KEPT, collapse, select_representatives

    corpus = Corpus(job.batches.value, inputs)
    ranked = _rank(job, corpus, inputs)
    memberships = _memberships(job, inputs, ranked)
    if job.rules.verify == "none":
        selection = collapse(memberships, ranked.component, ranked.origin)
    else:
        selection = select_representatives(
            memberships,
            _signatures(corpus, ranked),
            selection_rules(job.rules),
            _Reader(job.rules.preset, corpus, ranked.index),
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
    counters = {"documents": job.stop - job.start, "duplicates": len(dropped), **selection.counts}
    return Result((output,), counters)


def _rank(job: ClusterJob, corpus: Corpus, inputs: Inputs) -> _RankedDocuments:
    """Ascending (batch, decision, source priority, doc_key): the smallest is preferred."""
    table = inputs.open(job.members).read(None, job.start, job.stop)
    order = np.argsort(table["member"].to_numpy())
    index = table["member"].to_numpy()[order].astype(np.int64)
    component = table["component"].to_numpy()[order].astype(np.int64)
    columns = corpus.take("documents", ["doc_id", "doc_key", "text_key", "source"], index)
    preferred = {name: i for i, name in enumerate(job.rules.source_priority)}
    priority = [preferred.get(source, len(preferred)) for source in columns["source"].to_pylist()]
    doc_id = columns["doc_id"].to_numpy()
    decision, batch = np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
    origin = np.zeros(len(index), np.uint8)
    for shard, place, rows in corpus.split_by_shard(index):
        batch[place] = corpus.batch_number(shard)
        if corpus.is_old(shard):
            state = corpus.table("keep", shard)["state"].to_numpy()[rows]
            origin[place] = np.where(state == KEPT_STATE, 1, 2)
        elif job.batches.value.all[-1].decisions:
            decision[place] = look_up_decisions(corpus.table("decisions", shard), doc_id[place])
    keys = ids.keys_as_u64(columns["doc_key"])
    rank = ids.sort_order(keys, np.array(priority), decision, batch)
    ranked_keys = columns.select(["doc_key", "text_key"]).take(pa.array(rank))
    return _RankedDocuments(index[rank], component[rank], origin[rank], ranked_keys)


def look_up_decisions(decisions: pa.Table, doc_id: npt.NDArray[np.uint64]) -> I64:
    """Index into DECISIONS of each of these ascending doc_ids; 0 for those without a row."""
    rank = np.zeros(len(doc_id), np.int64)
    ranks = np.array([DECISIONS.index(d) for d in decisions["decision"].to_pylist()], np.int64)
    decided = decisions["doc_id"].to_numpy()
    place = np.searchsorted(doc_id, decided)
    here = (place < len(doc_id)) & (doc_id[np.minimum(place, len(doc_id) - 1)] == decided)
    rank[place[here]] = ranks[here]
    return rank


def _memberships(job: ClusterJob, inputs: Inputs, ranked: _RankedDocuments) -> "Memberships":
    """The task's memberships by rank, buckets numbered over all channels."""
    from dedup.clusters import group_memberships

    by_index = np.argsort(ranked.index)
    members, buckets, channels, first = [], [], [], 0
    shards = zip(job.routes.value, job.starts.value, strict=True)
    for part in slice_routes(shards, job.index, job.index + 1, inputs):
        table = part.rows
        place = np.searchsorted(ranked.index, table["member"].to_numpy(), sorter=by_index)
        members.append(by_index[place].astype(np.uint32))
        _, local = np.unique(table["bucket"].to_numpy(), return_inverse=True)
        buckets.append(local.astype(np.int64) + first)
        channels.append(table["channel"].to_numpy())
        first += int(local.max(initial=-1)) + 1
    return group_memberships(
        np.concatenate(members),
        np.concatenate(buckets),
        np.concatenate(channels),
        len(ranked.index),
    )


def _signatures(corpus: Corpus, ranked: _RankedDocuments) -> npt.NDArray[np.unsignedinteger]:
    """Signatures in rank order, (D, P)."""
    order = np.argsort(ranked.index)
    column = corpus.take("signatures", ["signature"], ranked.index[order])["signature"]
    flat = column.combine_chunks().flatten().to_numpy()
    matrix = np.empty((len(order), len(flat) // len(order)), flat.dtype)
    matrix[order] = flat.reshape(len(order), -1)
    return matrix


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

    def __init__(self, preset: Preset, corpus: Corpus, index: I64) -> None:
        from dedup.similarity import PairJaccard

        self._pair = PairJaccard(preset)
        self._corpus = corpus
        self._index = index

    def __call__(self, a: int, b: int) -> float:
        first, second = (self._corpus.text(int(self._index[i])) for i in (a, b))
        return self._pair.of(first, 0, len(first), second, 0, len(second))


def cluster_stage(
    routes: Iterable[Bundle],
    components: ComponentsOutput,
    batches: Batches,
    rules: ClusterRules,
    memory: int,
) -> Stage:
    """One task per group of components, which are as large as the memory of a task allows."""
    members, own, compared = components.members, batches.all[-1], Shared(batches)
    read = [own.documents, own.decisions]
    if rules.verify != "none":
        read.append(own.signatures)
    inputs: tuple[Shards, ...] = (members, *(Shared(shards) for shards in read))
    tasks = []
    for index, part in single_ranges(routes):
        start, stop = components.tasks[index]
        shards, starts = part.kinds
        job = ClusterJob(
            index=index,
            members=members,
            start=start,
            stop=stop,
            routes=shards,
            starts=starts,
            batches=compared,
            rules=rules,
        )
        work = stop - start
        tasks.append(Task(f"clusters {index}", job, (*inputs, *part.kinds), work, memory))
    settings = {"verify": rules.verify, "threshold": rules.threshold}
    return Stage(
        name="clusters", version=3, function=_clusters, tasks=tuple(tasks), settings=settings
    )
