"""The keep-list: one terminal state and one split per document; publishes clusters.parquet."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8, U64
from pipeline.config.prep import Config
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output, parquet_output
from pipeline.runs import layout, splits
from pipeline.runs.layout import KINDS, STATES
from pipeline.runs.views import ClustersOutput
from pipeline.screening.evidence import DECISIONS
from pipeline.stages.batches import Batch, Batches, Corpus
from pipeline.stages.candidates import KEY, SAME
from pipeline.stages.clusters import CHOICE

NOT_REPRESENTED = len(KINDS)
"""The kind of a document that no other represents."""


@dataclass(frozen=True)
class KeepJob:
    """Everything that decides a document's end; `batches` ends with this run's documents."""

    batches: Batches
    clusters: tuple[Shard, ...]
    channels: tuple[str, ...]
    seed: int
    held_out: splits.HeldOut


@dataclass(frozen=True, kw_only=True)
class _Documents:
    """Columns over this run's documents (N): ids, keys as (N, 2) uint64, their text keys likewise,
    sources as codes of `source_names`."""

    doc_id: npt.NDArray[np.uint64]
    key_N2: U64  # noqa: N815 - shape suffix
    text_key_N2: U64  # noqa: N815
    source: I64
    source_names: tuple[str, ...]
    decision: U8


@dataclass(frozen=True, kw_only=True)
class _Duplicates:
    """Columns over duplicates (M): position in this run, dense index, key and text key of the
    representative, batch that holds it, channels shared, estimated and exact similarity."""

    member: I64
    representative: I64
    key_M2: U64  # noqa: N815
    text_key_M2: U64  # noqa: N815
    batch: I64
    channels: U64
    estimate: npt.NDArray[np.float64]
    exact: npt.NDArray[np.float64]


def _keep(job: KeepJob, inputs: Inputs) -> Result:
    corpus = Corpus(job.batches, inputs)
    documents = _load(job.batches.all[-1], inputs)
    duplicates = _duplicates(job, corpus, inputs)
    state = np.full(len(documents.doc_id), STATES.index("kept"), np.uint8)
    state[duplicates.member] = STATES.index("duplicate")
    state[documents.decision == DECISIONS.index("quarantine")] = STATES.index("quarantined")
    state[documents.decision == DECISIONS.index("drop")] = STATES.index("dropped")
    key, text_key = documents.key_N2.copy(), documents.text_key_N2.copy()
    key[duplicates.member] = duplicates.key_M2
    text_key[duplicates.member] = duplicates.text_key_M2
    is_kept = state == STATES.index("kept")
    split = splits.assign(text_key, is_kept, job.held_out, job.seed)
    kind = np.full(len(state), NOT_REPRESENTED, np.uint8)
    kind[duplicates.member] = kinds(duplicates.channels, duplicates.exact, job.channels)
    ends = {"state": state, "kind": kind}
    outputs = [*_shards(job.batches.all[-1], documents, ends, split, key)]
    outputs.append(_clusters(job, documents, state, duplicates))
    counts = {name: int((state == i).sum()) for i, name in enumerate(STATES)}
    counters = {"documents": len(state), **counts, "sources": _by_source(documents, state)}
    return Result(tuple(outputs), counters)


def _load(batch: Batch, inputs: Inputs) -> _Documents:
    columns = ["doc_id", "doc_key", "text_key", "source"]
    table = pa.concat_tables([inputs.table(s, columns) for s in batch.documents])
    source = table["source"].combine_chunks().dictionary_encode()
    doc_id = table["doc_id"].to_numpy()
    decision = np.zeros(len(table), np.uint8)
    for shard in batch.decisions:
        rows = inputs.table(shard)
        ranks = [DECISIONS.index(d) for d in rows["decision"].to_pylist()]
        decision[np.searchsorted(doc_id, rows["doc_id"].to_numpy())] = ranks
    return _Documents(
        doc_id=doc_id,
        key_N2=ids.keys_as_u64(table["doc_key"]),
        text_key_N2=ids.keys_as_u64(table["text_key"]),
        source=source.indices.to_numpy().astype(np.int64),
        source_names=tuple(source.dictionary.to_pylist()),
        decision=decision,
    )


def _duplicates(job: KeepJob, corpus: Corpus, inputs: Inputs) -> _Duplicates:
    """All duplicates by ascending position, with what the keep-list needs of representatives."""
    table = pa.concat_tables([CHOICE.empty_table(), *(inputs.table(s) for s in job.clusters)])
    member = table["member"].to_numpy().astype(np.int64)
    representative = table["representative"].to_numpy().astype(np.int64)
    order = np.argsort(member)
    standing, place = np.unique(representative[order], return_inverse=True)
    keys = corpus.take("documents", ["doc_key", "text_key"], standing)
    batch = np.zeros(len(standing), np.int64)
    for shard, where, _ in corpus.split_by_shard(standing):
        batch[where] = corpus.batch_number(shard)
    return _Duplicates(
        member=member[order] - job.batches.first_new,
        representative=representative[order],
        key_M2=ids.keys_as_u64(keys["doc_key"])[place],
        text_key_M2=ids.keys_as_u64(keys["text_key"])[place],
        batch=batch[place],
        channels=table["channels"].to_numpy()[order],
        estimate=table["estimate"].to_numpy()[order],
        exact=table["exact"].to_numpy()[order],
    )


def _by_source(documents: _Documents, state: U8) -> dict[str, list[int]]:
    """source -> [documents, duplicates], what the alarm looks at."""
    names = documents.source_names
    total = np.bincount(documents.source, minlength=len(names))
    gone = np.bincount(documents.source[state == STATES.index("duplicate")], minlength=len(names))
    return {name: [int(total[i]), int(gone[i])] for i, name in enumerate(names)}


def _shards(
    batch: Batch, documents: _Documents, ends: dict[str, U8], split: U8, representative_N2: U64
) -> list[Output]:
    """Per documents shard: states and why others represent them, row-aligned with it; apart from
    them the splits, which another seed changes without touching what is tokenized.
    """
    outputs, first = [], 0
    for index, count in enumerate(batch.counts):
        rows = slice(first, first + count)
        first += count
        table = pa.table(
            {
                **{name: pa.array(column[rows]) for name, column in ends.items()},
                "representative": ids.keys_from_u64(representative_N2[rows]),
            }
        )
        assigned = pa.table(
            {"doc_id": pa.array(documents.doc_id[rows]), "split": pa.array(split[rows])}
        )
        outputs.append(arrow_output(layout.shard("keep", index, "arrow"), table))
        outputs.append(arrow_output(layout.shard("splits", index, "arrow"), assigned))
    return outputs


def _clusters(job: KeepJob, documents: _Documents, state: U8, duplicates: _Duplicates) -> Output:
    """One row per document that another represents, by kept key, then member key: both keys, why,
    the bands both share, the estimated and exact Jaccard similarity (null where not computed), and
    the earlier batch that holds the kept document (empty: this run)."""
    member_key = documents.key_N2[duplicates.member]
    order = ids.sort_order(member_key)
    order = order[ids.sort_order(duplicates.key_M2[order])]
    channels = duplicates.channels[order]
    edge_kinds = kinds(channels, duplicates.exact[order], job.channels)
    names = [*(batch.name for batch in job.batches.all[:-1]), ""]
    table = pa.table(
        {
            "kept": ids.keys_from_u64(duplicates.key_M2[order]),
            "member": ids.keys_from_u64(member_key[order]),
            "kind": pa.array(KINDS).take(pa.array(edge_kinds)),
            "bands": _bands(channels, job.channels),
            "estimate": pa.array(duplicates.estimate[order], from_pandas=True),
            "jaccard": pa.array(duplicates.exact[order], from_pandas=True),
            "member_state": pa.array(STATES).take(pa.array(state[duplicates.member[order]])),
            "index": pa.array(names, pa.string()).take(pa.array(duplicates.batch[order])),
        }
    )
    return parquet_output(layout.CLUSTERS, table)


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
    config: Config, batches: Batches, clusters: ClustersOutput | None, channels: tuple[str, ...]
) -> Stage:
    """One fan-in task over small columns."""
    own = batches.all[-1]
    chosen = clusters.choices if clusters else ()
    job = KeepJob(batches, chosen, channels, config.seed, splits.held_out(config))
    settings = {"seed": config.seed, "splits": [list(s) for s in splits.held_out(config)]}
    task = Task("keep-list", job, (*own.documents, *chosen, *own.decisions))
    return Stage(
        name="keep", version=3, function=_keep, tasks=(task,), settings=settings, reads_texts=False
    )
