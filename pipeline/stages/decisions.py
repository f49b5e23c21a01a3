"""Decisions: what several detectors found in every documents shard, joined in the form of the
screen stage, the most severe decision first."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.manifest import Shard, StageManifest
from pipeline.provenance.policy import DECISIONS
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.stages.screen import DECISION_SCHEMA


@dataclass(frozen=True)
class DecisionsJob:
    """What the detectors found in one documents shard of so many documents."""

    index: int
    documents: int
    evidence: tuple[Shard, ...]
    decisions: tuple[Shard, ...]


def _decisions(job: DecisionsJob, inputs: Inputs) -> Result:
    evidence = pa.concat_tables([inputs.table(s) for s in job.evidence], promote_options="default")
    order = np.argsort(evidence["doc_id"].to_numpy(), kind="stable")
    decisions = worst_decisions(*(inputs.table(s) for s in job.decisions))
    outputs = (
        arrow_output(f"decisions/{job.index:06d}.evidence.arrow", evidence.take(pa.array(order))),
        arrow_output(f"decisions/{job.index:06d}.decisions.arrow", decisions),
    )
    return Result(outputs, {"documents": job.documents, "evidence": len(evidence)})


def worst_decisions(*tables: pa.Table) -> pa.Table:
    """Tables of DECISION_SCHEMA as one, a row per document by doc_id: of several decisions the most
    severe, the first of equal ones, with the evidence of all."""
    worst: dict[int, dict[str, Any]] = {}
    for row in [row for table in tables for row in table.to_pylist()]:
        other = worst.setdefault(row["doc_id"], row)
        if other is row:
            continue
        evidence = [*other["evidence"], *row["evidence"]]
        severe = max(other, row, key=lambda d: DECISIONS.index(d["decision"]))
        worst[row["doc_id"]] = {**severe, "evidence": evidence}
    rows = [worst[doc_id] for doc_id in sorted(worst)]
    return pa.Table.from_pylist(rows, schema=DECISION_SCHEMA)


def decisions_stage(first: StageManifest, *others: StageManifest) -> Stage:
    """The stage whose manifest takes the place of the screen stage's for all that read it; every
    task of the detectors publishes evidence, then decisions, and counts its documents."""
    tasks = []
    for index, found in enumerate(zip(first.tasks, *(m.tasks for m in others), strict=True)):
        evidence, decisions = zip(*(task.shards for task in found), strict=True)
        job = DecisionsJob(index, found[-1].counters["documents"], evidence, decisions)
        tasks.append(Task(f"decisions of shard {index}", job, (*evidence, *decisions)))
    return Stage("decisions", 1, _decisions, tuple(tasks))
