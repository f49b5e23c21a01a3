"""Filters: every rule that a document fails, as evidence, and the decision that follows.

The first failing rule in the order of `pipeline.filters.rules.RULES` is the rule of the decision,
and so the reason why a dropped document left; all of them stand in the evidence, with the value
measured and the limit.
"""

from dataclasses import dataclass

import pyarrow as pa

from pipeline.core.manifest import Shard, StageManifest
from pipeline.filters.rules import RULES, Failures, Filters, find_failures
from pipeline.filters.settings import FiltersConfig
from pipeline.provenance.detectors.contract import attributes_json
from pipeline.provenance.evidence import DECISION_SCHEMA, EVIDENCE_SCHEMA, table_of
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output

Row = tuple[object, ...]


@dataclass(frozen=True)
class FiltersJob:
    """One documents shard under the section `filters` (as JSON) and the bad words it names."""

    index: int
    documents: Shard
    config: str
    bad_words: tuple[str, ...]


def _filters(job: FiltersJob, inputs: Inputs) -> Result:
    config = FiltersConfig.model_validate_json(job.config)
    table = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    failures = find_failures(table["text"], Filters(config, job.bad_words))
    evidence, decisions = _findings(failures, table)
    decided = (
        [] if config.action == "report" else [(*d[:2], config.action, *d[2:]) for d in decisions]
    )
    stem = f"filters/{job.index:06d}"
    outputs = (
        arrow_output(f"{stem}.evidence.arrow", table_of(evidence, EVIDENCE_SCHEMA)),
        arrow_output(f"{stem}.decisions.arrow", table_of(decided, DECISION_SCHEMA)),
    )
    failed = {reason: failures.reason.count(reason) for reason in RULES}
    counters = {
        "documents": len(table), "evidence": len(evidence), "failing": len(decisions),
        "rules": {reason: count for reason, count in failed.items() if count},
    }  # fmt: skip
    return Result(outputs, counters)


def _findings(failures: Failures, table: pa.Table) -> tuple[list[Row], list[Row]]:
    """Rows of evidence, and rows of decisions without the decision, both by document."""
    evidence: list[Row] = []
    decisions: list[Row] = []
    about = table.select(["doc_id", "doc_key"]).take(pa.array(failures.row)).to_pylist()
    columns = (failures.reason, failures.target, failures.value.tolist(), failures.limit.tolist())
    for row, reason, target, value, limit in zip(about, *columns, strict=True):
        doc_id, key = row["doc_id"], row["doc_key"]
        if not decisions or decisions[-1][0] != doc_id:
            ids: list[str] = []
            decisions.append((doc_id, key, reason, RULES[reason], ids, None))
        ids.append(f"{key.hex()}-f{len(ids)}")
        family = reason.partition("_")[0]
        evidence.append(
            (ids[-1], doc_id, key, family, reason, "", target, "", "", 0, 0, None,
             _measured(value, limit))
        )  # fmt: skip
    return evidence, decisions


def _measured(value: float, limit: float) -> str:
    """What was measured and what was allowed; empty for a rule that measures nothing."""
    known = {"value": value, "limit": limit}
    return attributes_json(known) if value == value else ""


def filters_stage(clean: StageManifest, filters: Filters) -> Stage:
    """The stage that measures every document; with no rules it counts them only."""
    config = filters.config.model_dump_json(exclude={"c4": {"bad_words"}, "custom": True})
    tasks = tuple(
        Task(f"filters of {s.path}", FiltersJob(i, s, config, filters.bad_words), (s,), s.size)
        for i, s in enumerate(clean.below("documents"))
    )
    return Stage("filters", 3, _filters, tasks, {}, filters.software())
