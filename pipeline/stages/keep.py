"""The keep-list: one terminal state and one split per document; publishes clusters.parquet."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.clusters import KEPT, select
from pipeline import layout
from pipeline.config import Config
from pipeline.core import ids, rng
from pipeline.core.manifest import Shard, StageManifest
from pipeline.provenance.policy import DECISIONS
from pipeline.stage import Inputs, Output, Result, Stage, Task, arrow_output, parquet_output

STATES = ("kept", "duplicate", "quarantined", "dropped")
"""State s of a document is an index into this tuple. Precedence: policy > duplicate > kept."""

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class KeepJob:
    """Everything that decides a document's end."""

    documents: tuple[Shard, ...]
    bands: tuple[Shard, ...]
    decisions: tuple[Shard, ...]
    source_priority: tuple[str, ...]
    seed: int
    validation_share: float


@dataclass(frozen=True)
class _Documents:
    """Columns over all documents (N): ids, keys as (N, 2) uint64, and their text keys likewise."""

    doc_id: npt.NDArray[np.uint64]
    key_N2: rng.U64  # noqa: N815 - shape suffix
    text_key_N2: rng.U64  # noqa: N815
    priority: I64
    decision: U8

    def index_of(self, doc_ids: npt.NDArray[np.uint64]) -> I64:
        """Positions of these ids (sorted ids, so a binary search)."""
        return np.searchsorted(self.doc_id, doc_ids).astype(np.int64)


def _keep(job: KeepJob, inputs: Inputs) -> Result:
    documents = _load(job, inputs)
    representative, shared = _select(job, inputs, documents)
    state = np.full(len(documents.doc_id), STATES.index("kept"), np.uint8)
    state[representative != KEPT] = STATES.index("duplicate")
    state[documents.decision == DECISIONS.index("quarantine")] = STATES.index("quarantined")
    state[documents.decision == DECISIONS.index("drop")] = STATES.index("dropped")
    stands_for = np.where(representative == KEPT, np.arange(len(state)), representative)
    split = _splits(documents.text_key_N2[stands_for], state, job)
    outputs = [*_shards(job, inputs, state, split, stands_for, documents)]
    outputs.append(_clusters(documents, state, representative, shared))
    counts = {name: int((state == i).sum()) for i, name in enumerate(STATES)}
    return Result(tuple(outputs), {"documents": len(state), **counts})


def _load(job: KeepJob, inputs: Inputs) -> _Documents:
    columns = ["doc_id", "doc_key", "text_key", "source"]
    table = pa.concat_tables([inputs.table(s, columns) for s in job.documents])
    source = table["source"].combine_chunks().dictionary_encode()
    names = source.dictionary.to_pylist()
    order = {name: i for i, name in enumerate(job.source_priority)}
    by_name = np.array([order.get(name, len(order)) for name in names] or [0], np.int64)
    doc_id = table["doc_id"].to_numpy()
    decision = np.zeros(len(table), np.uint8)
    for shard in job.decisions:
        found = inputs.table(shard)
        ranks = [DECISIONS.index(d) for d in found["decision"].to_pylist()]
        decision[np.searchsorted(doc_id, found["doc_id"].to_numpy())] = ranks
    return _Documents(
        doc_id, ids.keys_as_u64(table["doc_key"]), ids.keys_as_u64(table["text_key"]),
        by_name[source.indices.to_numpy()] if len(table) else np.zeros(0, np.int64), decision,
    )  # fmt: skip


def _select(job: KeepJob, inputs: Inputs, documents: _Documents) -> tuple[I64, I64]:
    """Representatives by ascending (decision, source priority, doc_key)."""
    order = ids.sort_order(documents.key_N2, documents.priority, documents.decision)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    members, numbers, first = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for shard in job.bands:
        table = inputs.table(shard)
        members.append(documents.index_of(table["doc_id"].to_numpy()))
        bucket = table["bucket"].to_numpy()
        numbers.append(bucket + first)
        first += int(bucket.max()) + 1 if len(bucket) else 0
    return select(np.concatenate(members), np.concatenate(numbers), rank)


def _splits(text_key_N2: rng.U64, state: U8, job: KeepJob) -> U8:
    """Split by hash(seed, text key of the representative), (N,) indices into SPLITS."""
    drawn = rng.rank(text_key_N2, job.seed, "split")
    validation = rng.unit_interval(drawn) < job.validation_share
    kept = np.flatnonzero(state == STATES.index("kept"))
    if job.validation_share > 0 and len(kept) > 1 and not validation[kept].any():
        smallest = kept[np.argmin(drawn[kept])]
        validation |= drawn == drawn[smallest]
    return validation.astype(np.uint8)


def _shards(
    job: KeepJob, inputs: Inputs, state: U8, split: U8, stands_for: I64, documents: _Documents
) -> list[Output]:
    """Per documents shard: states row-aligned with it, and apart from them the splits, which
    another seed changes without touching what is tokenized.
    """
    outputs, first = [], 0
    for index, shard in enumerate(job.documents):
        doc_id = inputs.table(shard, ["doc_id"])["doc_id"]
        count = len(doc_id)
        rows = slice(first, first + count)
        first += count
        table = pa.table(
            {
                "state": pa.array(state[rows]),
                "representative": ids.keys_from_u64(documents.key_N2[stands_for[rows]]),
            }
        )
        splits = pa.table({"doc_id": doc_id, "split": pa.array(split[rows])})
        outputs.append(arrow_output(layout.shard("keep", index, "arrow"), table))
        outputs.append(arrow_output(layout.shard("splits", index, "arrow"), splits))
    return outputs


def _clusters(documents: _Documents, state: U8, representative: I64, shared: I64) -> Output:
    """One row per document that another stands for: its key, the kept key, bands shared."""
    members = np.flatnonzero(representative != KEPT)
    kept = representative[members]
    order = ids.sort_order(documents.key_N2[members])
    order = order[ids.sort_order(documents.key_N2[kept[order]])]
    members, kept = members[order], kept[order]
    table = pa.table(
        {
            "kept": ids.keys_from_u64(documents.key_N2[kept]),
            "member": ids.keys_from_u64(documents.key_N2[members]),
            "bands_shared": pa.array(shared[members].astype(np.uint8)),
            "member_state": pa.array([STATES[s] for s in state[members]], pa.string()),
        }
    )
    return parquet_output(layout.CLUSTERS, table)


def keep_stage(
    config: Config, clean: StageManifest, bands: StageManifest | None, screen: StageManifest
) -> Stage:
    """One fan-in task over small columns."""
    documents = clean.below("documents")
    decisions = tuple(s for s in screen.shards if s.path.endswith(".decisions.arrow"))
    joined = tuple(bands.shards) if bands else ()
    job = KeepJob(
        documents, joined, decisions, config.dedup.source_priority, config.seed,
        config.pack.validation_share,
    )  # fmt: skip
    settings = {"seed": config.seed, "validation_share": config.pack.validation_share}
    task = Task("keep-list", job, (*documents, *joined, *decisions))
    return Stage("keep", 1, _keep, (task,), settings)
