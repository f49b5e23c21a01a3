"""Quarantine: the quarantined documents of every documents shard with their texts, in quarantine/.

Once all stages of a run are committed, the same texts leave documents/
(`pipeline.quarantine.store`). How long somebody wants to keep them stands in quarantine.json.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import layout
from pipeline.core.manifest import Shard, StageManifest
from pipeline.core.storage import canonical_json
from pipeline.provenance.quarantined import SCHEMA, quarantine_path
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output, bytes_output

NAME = "quarantine"
_OF_DOCUMENT = ["doc_id", "doc_key", "text_key", "source", "path_id", "line", "byte_offset",
                "text_bytes", "text"]  # fmt: skip
_OF_DECISION = ["rule", "reason", "evidence"]


@dataclass(frozen=True)
class QuarantineJob:
    """One documents shard with quarantined documents, and the decisions that hold for it."""

    documents: Shard
    decisions: Shard


@dataclass(frozen=True)
class RetentionJob:
    """The days that texts are to stay in quarantine."""

    days: int


def _quarantine(job: QuarantineJob | RetentionJob, inputs: Inputs) -> Result:
    if isinstance(job, RetentionJob):
        retention = canonical_json({"days": job.days})
        return Result((bytes_output(layout.RETENTION, retention),))
    decisions = inputs.table(job.decisions)
    decisions = decisions.filter(pc.equal(decisions["decision"], "quarantine"))
    ids = decisions["doc_id"].combine_chunks()
    table = inputs.table(job.documents, _OF_DOCUMENT)
    table = table.filter(pc.is_in(table["doc_id"], ids))
    place = pc.index_in(table["doc_id"], value_set=ids).combine_chunks()
    for name in _OF_DECISION:
        table = table.append_column(name, decisions[name].combine_chunks().take(place))
    columns = [table[field.name].cast(field.type) for field in SCHEMA]
    output = arrow_output(
        quarantine_path(job.documents.path), pa.table(columns, SCHEMA).combine_chunks()
    )
    return Result((output,), {"documents": len(table)})


def quarantine_stage(clean: StageManifest, verdicts: StageManifest, days: int | None) -> Stage:
    """The stage that fills quarantine/; no task where nothing is quarantined."""
    documents = clean.below("documents")
    decisions = [s for s in verdicts.shards if s.path.endswith(".decisions.arrow")]
    held = [(documents[i], decisions[i]) for i in verdicts.tasks[0].counters["quarantined"]]
    tasks = [
        Task(f"quarantined texts of {shard.path}", QuarantineJob(shard, why), (shard, why),
             shard.size)
        for shard, why in held
    ]  # fmt: skip
    if held and days is not None:
        tasks.append(Task("retention", RetentionJob(days)))
    return Stage(NAME, 1, _quarantine, tuple(tasks))
