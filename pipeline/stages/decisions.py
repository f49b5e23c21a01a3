"""Decisions, and verdicts: decisions after they spread over clusters.

`decisions` applies the policy to all evidence on a documents shard and joins what filters and
decontamination decided; the most severe holds. What the policy decided alone is published too, for
only that spreads: `spread` looks at whole clusters. `verdicts` publishes decisions.parquet and the
policy.
"""

import itertools
import json
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.manifest import Shard, fingerprint_of
from pipeline.core.storage import canonical_json
from pipeline.engine.ranges import Ranges, Shards, merge_ranges, slice_range
from pipeline.engine.shared import Shared
from pipeline.engine.stage import (
    Inputs,
    Result,
    RunStage,
    Stage,
    Task,
    arrow_output,
    bytes_output,
    parquet_output,
)
from pipeline.runs import layout, parts
from pipeline.runs.layout import KINDS
from pipeline.runs.views import (
    CleanOutput,
    ClustersOutput,
    DecisionsOutput,
    FindingsOutput,
    SpreadOutput,
)
from pipeline.screening.evidence import DECISION_SCHEMA
from pipeline.screening.policy.evaluation import evaluate_policy
from pipeline.screening.policy.propagation import number_decisions, propagate, select_worst
from pipeline.screening.policy.rules import Policy, reads_documents
from pipeline.stages.batches import Batches, Corpus
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
    reads_them = reads_documents(policy)
    for index, shard in enumerate(clean.documents):
        shards = [s for output in findings for s in output.manifest.tasks[index].shards]
        evidence = tuple(s for s in shards if s.path.endswith(layout.EVIDENCE_SHARD))
        decisions = tuple(s for s in shards if s.path.endswith(layout.DECISIONS_SHARD))
        documents = shard if reads_them else None
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


@dataclass(frozen=True, kw_only=True)
class SpreadJob:
    """Choices among the documents of whole clusters, and the batches, which end with this run's,
    with the decisions that the policy alone made; the channels; the policy as JSON."""

    index: int
    choices: Shard
    batches: Shared[Batches]
    channels: tuple[str, ...]
    policy: str


def _spread(job: SpreadJob, inputs: Inputs) -> Result:
    """The decisions that documents take over from others of their clusters, by doc_id."""
    corpus = Corpus(job.batches.value, inputs)
    choices = inputs.table(job.choices)
    member, kept = (choices[n].to_numpy().astype(np.int64) for n in ("member", "representative"))
    first_new = job.batches.value.first_new
    index = np.unique(np.concatenate([member, kept[kept >= first_new]]))
    documents = corpus.take("documents", ["doc_id", "doc_key"], index)
    decisions = _decided(corpus, index, documents["doc_id"])
    if len(decisions):
        clusters = _clusters(
            job, choices, documents["doc_key"].take(np.searchsorted(index, member))
        )
        decisions = propagate(decisions, clusters, Policy.model_validate_json(job.policy))
        decisions = decisions.filter(pc.is_valid(decisions["propagated_from"]))
        decisions = number_decisions(decisions, documents)
    output = arrow_output(layout.shard("spread", job.index, layout.DECISIONS_SHARD), decisions)
    return Result((output,), {"decisions": len(decisions)})


def _decided(corpus: Corpus, index: I64, doc_id: pa.ChunkedArray) -> pa.Table:
    """What the policy decided of the documents with these ascending dense indices."""
    found = [DECISION_SCHEMA.empty_table()]
    for shard, place, _ in corpus.split_by_shard(index):
        decisions = corpus.table("by_policy", shard)
        ids_here = doc_id.slice(place.start, place.stop - place.start).combine_chunks()
        found.append(decisions.filter(pc.is_in(decisions["doc_id"], ids_here)))
    return pa.concat_tables(found)


def _clusters(job: SpreadJob, choices: pa.Table, member_key: pa.ChunkedArray) -> pa.Table:
    """What clusters.parquet will say of these documents: keys, kind, exact Jaccard similarity (null
    where it was not computed), and the batch of the kept one."""
    channels, exact = choices["channels"].to_numpy(), choices["exact"].to_numpy()
    batches = job.batches.value.all
    names = [*(batch.name for batch in batches[:-1]), ""]
    bounds = np.cumsum([batch.total for batch in batches])
    batch = np.searchsorted(bounds, choices["representative"].to_numpy(), side="right")
    return pa.table(
        {
            "kept": choices["kept_key"],
            "member": member_key,
            "kind": pa.array(KINDS).take(pa.array(kinds(channels, exact, job.channels))),
            "jaccard": pa.array(exact, from_pandas=True),
            "index": pa.array(names, pa.string()).take(pa.array(batch)),
        }
    )


def spread_stage(
    policy: Policy,
    decided: DecisionsOutput,
    batches: Batches,
    clusters: ClustersOutput,
    channels: tuple[str, ...],
) -> Stage:
    """One task per shard of clusters, which are whole."""
    own = replace(batches.all[-1], by_policy=decided.by_policy)
    every = Shared(Batches((*batches.all[:-1], own)))
    read = (Shared(own.documents), Shared(decided.by_policy))
    tasks = []
    for index, shard in enumerate(clusters.choices):
        job = SpreadJob(
            index=index,
            choices=shard,
            batches=every,
            channels=channels,
            policy=policy.model_dump_json(),
        )
        tasks.append(Task(f"spread of {shard.path}", job, (shard, *read)))
    return Stage(name="spread", version=1, function=_spread, tasks=tuple(tasks), reads_texts=False)


@dataclass(frozen=True, kw_only=True)
class VerdictsJob:
    """Decisions on the documents of some clean tasks, from number `task` on; decisions that spread
    over clusters; the policy as JSON, which part 0 publishes."""

    part: int
    task: int
    decisions: tuple[Shard, ...]
    spread: Shards
    policy: str


def _verdicts(job: VerdictsJob, inputs: Inputs) -> Result:
    own = [DECISION_SCHEMA.empty_table(), *(inputs.table(s) for s in job.decisions)]
    tasks = np.arange(job.task, job.task + len(job.decisions) + 1)
    ids = int(tasks[0]) << 32, int(tasks[-1]) << 32
    rows = slice_range(job.spread, "doc_id", ids, DECISION_SCHEMA.empty_table(), inputs)
    taken_over = rows.sort_by("doc_id")
    decisions = select_worst(pa.concat_tables(own), taken_over)
    published = [
        parquet_output(parts.part(layout.DECISIONS, job.part), decisions.drop_columns(["doc_id"]))
    ]
    if job.part == 0:
        published.append(bytes_output(layout.POLICY, canonical_json(json.loads(job.policy))))
    task = (decisions["doc_id"].to_numpy() >> np.uint64(32)).astype(np.int64)
    bounds = np.searchsorted(task, tasks)
    by_task = [decisions.slice(low, high - low) for low, high in itertools.pairwise(bounds)]
    quarantined = [np.any(pc.equal(rows["decision"], "quarantine")) for rows in by_task]
    counters = {
        "decisions": len(decisions),
        "taken_over": len(taken_over),
        "quarantined": (job.task + np.flatnonzero(quarantined)).tolist(),
    }
    shards = [
        arrow_output(layout.shard("verdicts", index, layout.DECISIONS_SHARD), rows)
        for index, rows in enumerate(by_task, job.task)
    ]
    return Result((*shards, *published), counters)


def verdicts_stage(
    policy: Policy, decided: DecisionsOutput, run: RunStage, spread: SpreadOutput | None = None
) -> Stage:
    """One task per part of the run; what merges `spread/` for them runs at once."""
    text = policy.model_dump_json()
    shards = zip(spread.decisions, spread.counts, strict=True) if spread else ()
    taken_over = tuple(shard for shard, count in shards if count)
    groups = parts.group_tasks(decided.counts)
    bounds = 0, *(group.stop << 32 for group in groups)
    (merged,) = merge_ranges("merge_spread", "doc_id", [Ranges(taken_over, bounds)], run)
    tasks = []
    for part, (group, rows) in enumerate(zip(groups, merged, strict=True)):
        own = decided.decisions[group.start : group.stop]
        job = VerdictsJob(part=part, task=group.start, decisions=own, spread=rows, policy=text)
        work = sum(shard.size for shard in own)
        tasks.append(Task(f"verdicts of part {part}", job, (*own, rows), work))
    settings = {"policy": fingerprint_of(policy.model_dump())}
    return Stage(
        name="verdicts",
        version=4,
        function=_verdicts,
        tasks=tuple(tasks),
        settings=settings,
        reads_texts=False,
    )
