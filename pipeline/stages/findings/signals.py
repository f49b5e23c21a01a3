"""Signals: what is measured of every document, in signals/; and the documents for which
`filters.keep` is not true, as evidence with the decision that follows. Another expression reads
signals/ again and measures nothing.
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.manifest import Shard
from pipeline.engine.stage import (
    MEMORY_PER_WORK,
    Inputs,
    Result,
    Stage,
    Task,
    parquet_output,
)
from pipeline.filters.custom_calls import document_batches
from pipeline.filters.expression import (
    KEY,
    describe_used,
    evaluate_expression,
    expression_software,
)
from pipeline.filters.signals import ABOUT, Signals, measure_signals
from pipeline.runs import layout
from pipeline.runs.views.documents import CleanOutput, SignalsOutput
from pipeline.screening.evidence import encode_attributes
from pipeline.stages.findings.filters import Row, finding_outputs
from pipeline.stages.plan import Reading

DETECTOR = "signals"
"""What evidence names as its detector."""
REASON = "signals_keep"


@dataclass(frozen=True)
class SignalsJob:
    """One documents shard, what to measure, and the names of the raw shards by `path_id`."""

    index: int
    documents: Shard
    signals: Signals
    files: tuple[tuple[int, str], ...]


def _signals(job: SignalsJob, inputs: Inputs) -> Result:
    table = inputs.table(job.documents)
    batches = list(document_batches(table, dict(job.files))) if job.signals.functions else []
    measured = measure_signals(table["text"], batches, job.signals)
    keyed = measured.add_column(0, "doc_key", table["doc_key"])
    path = layout.shard("signals", job.index, "parquet")
    return Result((parquet_output(path, keyed),), {"documents": len(table)})


def signals_stage(clean: CleanOutput, reading: Reading, signals: Signals) -> Stage:
    """The stage that measures; the expression is no setting of it."""
    measured = replace(signals, keep="", used=())
    models = sum(own.size for own in signals.classifiers)
    models += sum(own.size for own in signals.perplexity)
    tasks = []
    for index, shard in enumerate(clean.documents):
        parts = {part.path_id: part.file for part in reading.tasks[index]}
        files = tuple((number, f"{f.input}/{f.path}") for number, f in parts.items())
        job = SignalsJob(index, shard, measured, files)
        memory = models + MEMORY_PER_WORK * shard.size
        tasks.append(Task(f"signals of {shard.path}", job, (shard,), shard.size, memory))
    settings: dict[str, object] = {
        "families": signals.families,
        "classifiers": {own.name: own.file_hash for own in signals.classifiers},
        "functions": {own.name: own.file_hash for own in signals.functions},
    }
    if signals.perplexity:
        settings["perplexity"] = {own.name: own.file_hash for own in signals.perplexity}
    if signals.stop_words:
        settings["stop_words"] = dict(signals.stop_words)
    return Stage(
        name="signals",
        version=1,
        function=_signals,
        tasks=tuple(tasks),
        settings=settings,
        software=signals.software(),
    )


@dataclass(frozen=True, kw_only=True)
class ExpressionJob:
    """One documents shard with its signals, the expression, the columns it uses, and what happens
    to documents that go."""

    index: int
    documents: Shard
    signals: Shard
    keep: str
    used: tuple[str, ...]
    action: str


def _expression(job: ExpressionJob, inputs: Inputs) -> Result:
    about = [field.name for field in ABOUT]
    documents = inputs.table(job.documents, ["doc_id", "doc_key", *about])
    columns = documents.select(about)
    signals = pq.read_table(inputs.path(job.signals))
    for name in signals.column_names[1:]:
        columns = columns.append_column(name, signals[name])
    rows = pa.array(np.flatnonzero(~evaluate_expression(job.keep, columns)))
    going = documents.select(["doc_id", "doc_key"]).take(rows).to_pylist()
    values = columns.select(list(job.used)).take(rows).to_pylist()
    evidence: list[Row] = []
    decisions: list[Row] = []
    for row, used in zip(going, values, strict=True):
        doc_id, key = row["doc_id"], row["doc_key"]
        name, target = f"{key.hex()}-s0", describe_used(used, job.used)
        head = (name, doc_id, key, DETECTOR, REASON, "", target)
        evidence.append((*head, "", "", 0, 0, None, encode_attributes(used)))
        if job.action != "report":
            why = f"{KEY} does not hold of it: {target}."
            decisions.append((doc_id, key, job.action, REASON, why, [name], None))
    outputs = finding_outputs("filters", job.index, evidence, decisions, prefix="signals.")
    rules = {REASON: len(evidence)} if evidence else {}
    counters = {"documents": len(documents), "evidence": len(evidence), "rules": rules}
    return Result(outputs, counters)


def expression_stage(
    clean: CleanOutput, measured: SignalsOutput, signals: Signals, action: str
) -> Stage:
    """The stage that decides by the expression."""
    tasks = []
    for index, (shard, of_shard) in enumerate(zip(clean.documents, measured.signals, strict=True)):
        job = ExpressionJob(
            index=index,
            documents=shard,
            signals=of_shard,
            keep=signals.keep,
            used=signals.used,
            action=action,
        )
        tasks.append(Task(f"{KEY} of {shard.path}", job, (shard, of_shard), of_shard.size))
    return Stage(
        name="expression",
        version=1,
        function=_expression,
        tasks=tuple(tasks),
        settings={"keep": signals.keep},
        software=expression_software(),
        reads_texts=False,
    )
