"""Decisions, and verdicts: decisions after they spread over clusters.

`decisions` applies the policy to all evidence on a documents shard and joins what filters and
decontamination decided; the most severe holds. What the policy decided alone is published too, for
only that spreads. `verdicts` publishes decisions.parquet and the policy.
"""

import itertools
import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.manifest import Shard, fingerprint_of
from pipeline.core.storage import canonical_json
from pipeline.engine.stage import (
    Inputs,
    Result,
    Stage,
    Task,
    arrow_output,
    bytes_output,
    parquet_output,
)
from pipeline.runs import layout
from pipeline.runs.layout import KINDS
from pipeline.runs.views import CleanOutput, ClustersOutput, DecisionsOutput, FindingsOutput
from pipeline.screening.evidence import DECISION_SCHEMA
from pipeline.screening.policy.evaluation import evaluate_policy
from pipeline.screening.policy.propagation import number_decisions, propagate, select_worst
from pipeline.screening.policy.rules import Policy, reads_documents
from pipeline.stages.batches import Batches, Corpus
from pipeline.stages.clusters import CHOICE
from pipeline.stages.keep import kinds


@dataclass(frozen=True, kw_only=True)
class DecisionsJob:
    """All evidence on one documents shard of `count` documents, decisions that were made already,
    the policy as JSON and the registry's works, if there are any; the documents, where the policy
    asks for them."""

    index: int
    count: int
    evidence: tuple[Shard, ...]
    decisions: tuple[Shard, ...]
    policy: str
    works: Shard | None
    documents: Shard | None


def _decisions(job: DecisionsJob, inputs: Inputs) -> Result:
    evidence = pa.concat_tables([inputs.table(s) for s in job.evidence])
    evidence = evidence.take(pa.array(np.argsort(evidence["doc_id"].to_numpy(), kind="stable")))
    works = inputs.table(job.works) if job.works else None
    documents = inputs.table(job.documents, _RECORD) if job.documents else None
    policy = Policy.model_validate_json(job.policy)
    own = evaluate_policy(policy, evidence, works, documents)
    decisions = select_worst(own, *(inputs.table(s) for s in job.decisions))
    outputs = (
        arrow_output(layout.shard("decisions", job.index, layout.EVIDENCE_SHARD), evidence),
        arrow_output(layout.shard("decisions", job.index, layout.POLICY_SHARD), own),
        arrow_output(layout.shard("decisions", job.index, layout.DECISIONS_SHARD), decisions),
    )
    counters = {"documents": job.count, "evidence": len(evidence), "decisions": len(decisions)}
    return Result(outputs, counters)


_RECORD = ["doc_key", "source", "licence"]


def decisions_stage(
    clean: CleanOutput, policy: Policy, works: Shard | None, *findings: FindingsOutput
) -> Stage:
    """The stage that decides; every task of the stages of `findings` publishes evidence, and
    decisions where it makes its own; those of the first count their documents."""
    text = policy.model_dump_json()
    tasks, counts = [], findings[0].counts
    for index, shard in enumerate(clean.documents):
        shards = [s for output in findings for s in output.manifest.tasks[index].shards]
        evidence = tuple(s for s in shards if s.path.endswith(layout.EVIDENCE_SHARD))
        decisions = tuple(s for s in shards if s.path.endswith(layout.DECISIONS_SHARD))
        documents = shard if reads_documents(policy) else None
        job = DecisionsJob(
            index=index,
            count=counts[index],
            evidence=evidence,
            decisions=decisions,
            policy=text,
            works=works,
            documents=documents,
        )
        inputs = (*evidence, *decisions, *(s for s in (works, documents) if s))
        tasks.append(Task(f"decisions of shard {index}", job, inputs))
    settings = {"policy": fingerprint_of(policy.model_dump())}
    return Stage(
        name="decisions",
        version=2,
        function=_decisions,
        tasks=tuple(tasks),
        settings=settings,
        reads_texts=False,
    )


@dataclass(frozen=True)
class VerdictsJob:
    """`batches` ends with this run's documents and decisions, of which the policy made `by_policy`;
    the clusters, if there are any, and their channels; the policy as JSON."""

    batches: Batches
    by_policy: tuple[Shard, ...]
    clusters: tuple[Shard, ...]
    channels: tuple[str, ...]
    policy: str


def _verdicts(job: VerdictsJob, inputs: Inputs) -> Result:
    own = job.batches.all[-1]
    decisions = _tables(own.decisions, inputs)
    taken_over = _taken_over(job, inputs)
    decisions = select_worst(decisions, taken_over)
    published = parquet_output(layout.DECISIONS, decisions.drop_columns(["doc_id"]))
    policy = bytes_output(layout.POLICY, canonical_json(json.loads(job.policy)))
    task = (decisions["doc_id"].to_numpy() >> np.uint64(32)).astype(np.int64)
    bounds = np.searchsorted(task, np.arange(len(own.documents) + 1))
    parts = [decisions.slice(low, high - low) for low, high in itertools.pairwise(bounds)]
    quarantined = [np.any(pc.equal(part["decision"], "quarantine")) for part in parts]
    counters = {
        "decisions": len(decisions),
        "taken_over": len(taken_over),
        "quarantined": np.flatnonzero(quarantined).tolist(),
    }
    shards = [
        arrow_output(layout.shard("verdicts", index, layout.DECISIONS_SHARD), part)
        for index, part in enumerate(parts)
    ]
    return Result((*shards, published, policy), counters)


def _tables(shards: tuple[Shard, ...], inputs: Inputs) -> pa.Table:
    return pa.concat_tables([DECISION_SCHEMA.empty_table(), *(inputs.table(s) for s in shards)])


def _taken_over(job: VerdictsJob, inputs: Inputs) -> pa.Table:
    """The decisions that documents take over from others of their clusters."""
    by_policy = _tables(job.by_policy, inputs)
    if not len(by_policy):
        return by_policy
    policy = Policy.model_validate_json(job.policy)
    spread = propagate(by_policy, _clusters(job, inputs), policy)
    spread = spread.filter(pc.is_valid(spread["propagated_from"]))
    columns = ["doc_id", "doc_key"]
    documents = [inputs.table(shard, columns) for shard in job.batches.all[-1].documents]
    return number_decisions(spread, pa.concat_tables(documents))


def _clusters(job: VerdictsJob, inputs: Inputs) -> pa.Table:
    """What clusters.parquet will say of the documents that another represents: keys, kind, exact
    Jaccard similarity (null where it was not computed), and the batch of the kept one."""
    corpus = Corpus(job.batches, inputs)
    table = pa.concat_tables([CHOICE.empty_table(), *(inputs.table(s) for s in job.clusters)])
    channels, exact = table["channels"].to_numpy(), table["exact"].to_numpy()
    representative = table["representative"].to_numpy().astype(np.int64)
    names = [*(batch.name for batch in job.batches.all[:-1]), ""]
    bounds = np.cumsum([batch.total for batch in job.batches.all])
    batch = np.searchsorted(bounds, representative, side="right")
    return pa.table(
        {
            "kept": _keys(corpus, representative),
            "member": _keys(corpus, table["member"].to_numpy().astype(np.int64)),
            "kind": pa.array(KINDS).take(pa.array(kinds(channels, exact, job.channels))),
            "jaccard": pa.array(exact, from_pandas=True),
            "index": pa.array(names, pa.string()).take(pa.array(batch)),
        }
    )


def _keys(corpus: Corpus, documents: I64) -> pa.Array:
    distinct, place = np.unique(documents, return_inverse=True)
    keys = corpus.take("documents", ["doc_key"], distinct)["doc_key"].combine_chunks()
    return keys.take(pa.array(place))


def verdicts_stage(
    policy: Policy,
    decided: DecisionsOutput,
    batches: Batches,
    clusters: ClustersOutput | None = None,
    channels: tuple[str, ...] = (),
) -> Stage:
    """One fan-in task over small columns."""
    own = batches.all[-1]
    chosen, by_policy = clusters.choices if clusters else (), decided.by_policy
    job = VerdictsJob(batches, by_policy, chosen, channels, policy.model_dump_json())
    task = Task("verdicts", job, (*own.documents, *chosen, *own.decisions, *by_policy))
    settings = {"policy": fingerprint_of(policy.model_dump())}
    return Stage(
        name="verdicts",
        version=3,
        function=_verdicts,
        tasks=(task,),
        settings=settings,
        reads_texts=False,
    )
