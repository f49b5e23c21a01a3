"""Decisions, and verdicts: decisions after they spread over clusters.

`decisions` applies the policy to all evidence on a documents shard and joins what filters and
decontamination decided; the most severe holds. What the policy decided alone is published too, for
only that spreads: `spread` looks at whole clusters. `verdicts` publishes decisions.parquet and the
policy.
"""

import itertools
import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from pipeline.runs.views.documents import CleanOutput, DecisionsOutput, FindingsOutput
from pipeline.runs.views.duplicates import (
    ClustersOutput,
    ComponentsOutput,
    GiversOutput,
    SpreadOutput,
)
from pipeline.screening.evidence import DECISION_SCHEMA
from pipeline.screening.policy.evaluation import evaluate_policy
from pipeline.screening.policy.propagation import number_decisions, propagate, select_worst
from pipeline.screening.policy.rules import Policy, reads_documents
from pipeline.stages.batches import Batches, Corpus
from pipeline.stages.components import slice_components
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


_TASK = [pa.field("task", pa.uint32()), pa.field("member", pa.uint32())]
_GIVERS = pa.schema([*_TASK, *DECISION_SCHEMA])


@dataclass(frozen=True, kw_only=True)
class GiversJob:
    """The documents of some clean tasks, from dense index `first` on, what the policy decided of
    them, and the shards that say which task of `clusters` had them."""

    part: int
    first: int
    counts: tuple[int, ...]
    documents: tuple[Shard, ...]
    by_policy: tuple[Shard, ...]
    components: Shared[tuple[Shard, ...]]


def _givers(job: GiversJob, inputs: Inputs) -> Result:
    """What the policy alone decided of documents with candidates, by task of `clusters`: these may
    give it to others of their clusters. The columns are task, member (dense index), and those of
    decisions."""
    found, firsts = [_GIVERS.empty_table()], itertools.accumulate(job.counts, initial=job.first)
    shards = zip(firsts, job.counts, job.documents, job.by_policy, strict=False)
    for first, count, documents, by_policy in shards:
        decisions = inputs.table(by_policy)
        if len(decisions):
            doc_id = inputs.table(documents, ["doc_id"])["doc_id"].to_numpy()
            row = np.searchsorted(doc_id, decisions["doc_id"].to_numpy())
            part = slice_components(job.components, first, first + count, inputs)
            task = part["task"].to_numpy()[row]
            routed = task - np.minimum(task, 1), (first + row).astype(np.uint32)
            table = pa.table([*map(pa.array, routed), *decisions.columns], _GIVERS)
            found.append(table.filter(pa.array(task > 0)))
    table = pa.concat_tables(found)
    order = pa.array(np.argsort(table["task"].to_numpy(), kind="stable"))
    output = arrow_output(
        layout.shard("givers", job.part, "arrow"), table.take(order).combine_chunks()
    )
    return Result((output,), {"decisions": len(table)})


def givers_stage(decided: DecisionsOutput, batches: Batches, components: ComponentsOutput) -> Stage:
    """One task per part of the run."""
    own, shared, tasks = batches.all[-1], Shared(components.components), []
    firsts = list(itertools.accumulate(own.counts, initial=batches.first_new))
    for part, group in enumerate(parts.group_tasks(own.counts)):
        at = slice(group.start, group.stop)
        job = GiversJob(
            part=part,
            first=firsts[group.start],
            counts=own.counts[at],
            documents=own.documents[at],
            by_policy=decided.by_policy[at],
            components=shared,
        )
        read = (*job.documents, *job.by_policy)
        memory = parts.RECORD_MEMORY * sum(job.counts)
        tasks.append(Task(f"givers of part {part}", job, (*read, shared), memory=memory))
    return Stage(name="givers", version=1, function=_givers, tasks=tuple(tasks), reads_texts=False)


@dataclass(frozen=True, kw_only=True)
class SpreadJob:
    """Choices among the documents of whole clusters, and shards of what the policy decided of some
    of them; the batches, which end with this run's; the channels; the policy as JSON."""

    index: int
    choices: Shard
    givers: Shards
    batches: Shared[Batches]
    channels: tuple[str, ...]
    policy: str


def _spread(job: SpreadJob, inputs: Inputs) -> Result:
    """The decisions that documents take over from others of their clusters, by doc_id."""
    bounds = job.index, job.index + 1
    givers = slice_range(job.givers, "task", bounds, _GIVERS.empty_table(), inputs)
    decisions = _take_over(job, givers, inputs) if len(givers) else DECISION_SCHEMA.empty_table()
    output = arrow_output(layout.shard("spread", job.index, layout.DECISIONS_SHARD), decisions)
    return Result((output,), {"decisions": len(decisions)})


def _take_over(job: SpreadJob, givers: pa.Table, inputs: Inputs) -> pa.Table:
    """Documents are read of those clusters alone of which the policy decided something."""
    choices, given = inputs.table(job.choices), givers["member"].to_numpy()
    ends = [choices[name].to_numpy() for name in ("member", "representative")]
    stars = np.unique(ends[1][np.isin(ends[0], given) | np.isin(ends[1], given)])
    choices = choices.filter(pa.array(np.isin(ends[1], stars)))
    member, kept = (choices[n].to_numpy().astype(np.int64) for n in ("member", "representative"))
    first_new = job.batches.value.first_new
    index = np.unique(np.concatenate([member, kept[kept >= first_new]]))
    decisions = givers.filter(pa.array(np.isin(given, index))).select(DECISION_SCHEMA.names)
    if not len(decisions):
        return decisions
    documents = Corpus(job.batches.value, inputs).take("documents", ["doc_id", "doc_key"], index)
    clusters = _clusters(job, choices, documents["doc_key"].take(np.searchsorted(index, member)))
    decisions = propagate(decisions, clusters, Policy.model_validate_json(job.policy))
    decisions = decisions.filter(pc.is_valid(decisions["propagated_from"]))
    return number_decisions(decisions, documents)


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
    givers: GiversOutput,
    batches: Batches,
    clusters: ClustersOutput,
    channels: tuple[str, ...],
    run: RunStage,
) -> Stage:
    """One task per shard of clusters, which are whole; what merges `givers/` for them runs at
    once."""
    every, documents = Shared(batches), Shared(batches.all[-1].documents)
    numbers = tuple(range(len(clusters.choices) + 1))
    (routed,) = merge_ranges("merge_givers", "task", [Ranges(givers.decided, numbers)], run)
    tasks = []
    for index, (shard, given) in enumerate(zip(clusters.choices, routed, strict=True)):
        job = SpreadJob(
            index=index,
            choices=shard,
            givers=given,
            batches=every,
            channels=channels,
            policy=policy.model_dump_json(),
        )
        tasks.append(Task(f"spread of {shard.path}", job, (shard, given, documents)))
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
    taken_over = spread.decided if spread else ()
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
