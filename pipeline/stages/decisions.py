"""Decisions: the policy over all evidence of a documents shard, joined with what filters and
decontamination decided themselves; of several decisions the most severe holds. What the policy
decided alone is published too, for nothing else spreads over clusters."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.provenance.policy import Policy, evaluate, reads_documents, worst_decisions
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output


@dataclass(frozen=True)
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
    own = evaluate(policy, evidence, works, documents)
    decisions = worst_decisions(own, *(inputs.table(s) for s in job.decisions))
    outputs = (
        arrow_output(f"decisions/{job.index:06d}.evidence.arrow", evidence),
        arrow_output(f"decisions/{job.index:06d}.policy.arrow", own),
        arrow_output(f"decisions/{job.index:06d}.decisions.arrow", decisions),
    )
    counters = {"documents": job.count, "evidence": len(evidence), "decisions": len(decisions)}
    return Result(outputs, counters)


_RECORD = ["doc_key", "source", "licence"]


def decisions_stage(
    clean: StageManifest, policy: Policy, works: Shard | None, *found: StageManifest
) -> Stage:
    """The stage that decides; every task of the stages `found` publishes evidence, and decisions
    where it makes its own; those of the first count their documents."""
    text = policy.model_dump_json()
    tasks = []
    for index, shard in enumerate(clean.below("documents")):
        shards = [s for manifest in found for s in manifest.tasks[index].shards]
        evidence = tuple(s for s in shards if s.path.endswith(".evidence.arrow"))
        decisions = tuple(s for s in shards if s.path.endswith(".decisions.arrow"))
        documents = shard if reads_documents(policy) else None
        count = found[0].tasks[index].counters["documents"]
        job = DecisionsJob(index, count, evidence, decisions, text, works, documents)
        inputs = (*evidence, *decisions, *(s for s in (works, documents) if s))
        tasks.append(Task(f"decisions of shard {index}", job, inputs))
    settings = {"policy": fingerprint_of(policy.model_dump())}
    return Stage("decisions", 2, _decisions, tuple(tasks), settings, reads_texts=False)
