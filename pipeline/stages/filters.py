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
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.stages.screen import DECISION_SCHEMA, EVIDENCE_SCHEMA

FILTER_SCHEMA = pa.schema([*EVIDENCE_SCHEMA, ("value", pa.float64()), ("limit", pa.float64())])
"""EVIDENCE_SCHEMA, and: what was measured and what was allowed (both null for a rule that measures
nothing, and in evidence of other stages)."""

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
    table = inputs.table(job.documents, ["doc_id", "doc_key", "licence", "text"])
    failures = find_failures(table["text"], Filters(config, job.bad_words))
    evidence, decisions = _findings(failures, table)
    decided = (
        [] if config.action == "report" else [(*d[:2], config.action, *d[2:]) for d in decisions]
    )
    outputs = (
        arrow_output(f"filters/{job.index:06d}.evidence.arrow", _table(evidence, FILTER_SCHEMA)),
        arrow_output(f"filters/{job.index:06d}.decisions.arrow", _table(decided, DECISION_SCHEMA)),
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
    about = table.select(["doc_id", "doc_key", "licence"]).take(pa.array(failures.row)).to_pylist()
    columns = (failures.reason, failures.target, failures.value.tolist(), failures.limit.tolist())
    for row, reason, target, value, limit in zip(about, *columns, strict=True):
        doc_id, key, licence = row["doc_id"], row["doc_key"], row["licence"]
        if not decisions or decisions[-1][0] != doc_id:
            ids: list[str] = []
            decisions.append((doc_id, key, reason, RULES[reason], ids))
        ids.append(f"{key.hex()}-f{len(ids)}")
        family = reason.partition("_")[0]
        evidence.append((ids[-1], doc_id, key, family, reason, target, 0, 0, licence, value, limit))
    return evidence, decisions


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(c, f.type, from_pandas=True) for c, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def filters_stage(clean: StageManifest, filters: Filters) -> Stage:
    """The stage that measures every document; with no rules it counts them only."""
    config = filters.config.model_dump_json(exclude={"c4": {"bad_words"}})
    tasks = tuple(
        Task(f"filters of {s.path}", FiltersJob(i, s, config, filters.bad_words), (s,), s.size)
        for i, s in enumerate(clean.below("documents"))
    )
    return Stage("filters", 1, _filters, tasks, {}, filters.software())
