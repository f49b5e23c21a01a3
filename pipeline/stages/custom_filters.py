"""Custom filters: what functions of the user's own say of every document, as evidence, and the
decision that follows.

They see the cleaned text, of every document, also of one that a rule of `pipeline.filters` drops.
The first in the config that says that a document goes is the rule of the decision; what it returned
is the reason there, so that reasons are counted by function, however many texts it returns.
"""

import json
import unicodedata
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from pipeline.core.manifest import Shard, StageManifest
from pipeline.filters.custom.calls import document_batches, judge
from pipeline.filters.custom.functions import CustomFilter
from pipeline.provenance.evidence import DECISION_SCHEMA, EVIDENCE_SCHEMA, table_of
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.stages.plan import Reading

Row = tuple[object, ...]

DETECTOR = "custom"
"""What evidence names as its detector."""


@dataclass(frozen=True)
class CustomFiltersJob:
    """One documents shard, the functions to ask in order, what happens to documents that go, and
    the names of the raw shards by `path_id`."""

    index: int
    documents: Shard
    functions: tuple[CustomFilter, ...]
    action: str
    files: tuple[tuple[int, str], ...]


def _custom_filters(job: CustomFiltersJob, inputs: Inputs) -> Result:
    table = inputs.table(job.documents)
    batches = list(document_batches(table, dict(job.files)))
    verdicts = [judge(own, batches) for own in job.functions]
    evidence: list[Row] = []
    decisions: list[Row] = []
    counts: Counter[str] = Counter()
    about = zip(table["doc_id"].to_pylist(), table["doc_key"].to_pylist(), strict=True)
    for row, (doc_id, key) in enumerate(about):
        failed = [(own, said) for own, of_all in zip(job.functions, verdicts, strict=True)
                  if (said := of_all[row]) is not None]  # fmt: skip
        ids = [f"{key.hex()}-c{number}" for number in range(len(failed))]
        for name, (own, said) in zip(ids, failed, strict=True):
            counts[own.rule] += 1
            found = (name, doc_id, key, DETECTOR, own.rule, "", said or own.name)
            evidence.append((*found, "", "", 0, 0, None, ""))
        if failed and job.action != "report":
            own, said = failed[0]
            why = said or f"The filter {own.name} refuses it."
            decisions.append((doc_id, key, job.action, own.rule, why, ids, None))
    stem = f"filters/{job.index:06d}.custom"
    outputs = (
        arrow_output(f"{stem}.evidence.arrow", table_of(evidence, EVIDENCE_SCHEMA)),
        arrow_output(f"{stem}.decisions.arrow", table_of(decisions, DECISION_SCHEMA)),
    )
    counters = {
        "documents": len(table),
        "evidence": len(evidence),
        "rules": dict(sorted(counts.items())),
    }
    return Result(outputs, counters)


def custom_filters_stage(
    clean: StageManifest, reading: Reading, functions: tuple[CustomFilter, ...], action: str
) -> Stage:
    """The stage that asks the user's functions about every document."""
    tasks = []
    for index, shard in enumerate(clean.below("documents")):
        parts = {part.path_id: part.file for part in reading.tasks[index]}
        files = tuple((number, f"{f.input}/{f.path}") for number, f in parts.items())
        job = CustomFiltersJob(index, shard, functions, action, files)
        tasks.append(Task(f"custom filters of {shard.path}", job, (shard,), shard.size))
    settings = {
        own.name: {"file_hash": own.file_hash, "settings": json.loads(own.settings),
                   "batch": own.batch}
        for own in functions
    }  # fmt: skip
    software = {"pyarrow": pa.__version__, "unicode": unicodedata.unidata_version}
    return Stage("custom_filters", 1, _custom_filters, tuple(tasks), settings, software)
