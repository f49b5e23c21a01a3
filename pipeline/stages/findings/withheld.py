"""Documents that are kept apart: taken down earlier, or quarantined.

`clean` leaves out texts that were taken down whenever it reads a raw shard again; the content hash
stays that of what was read, so nothing after it counts as changed. Where the data set is written
again, `withheld` drops these documents, and copies of their texts, by the rule `takedown`.
`quarantine` copies the texts of quarantined documents; once the run is committed, they leave
documents/ (`pipeline.takedown.quarantine_store`). quarantine.json says how long they are kept.
"""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import Mask
from pipeline.core import ids
from pipeline.core.ids import table_hash
from pipeline.core.manifest import Shard
from pipeline.core.mirror.fetching import fetch
from pipeline.core.storage import canonical_json
from pipeline.engine.stage import (
    Inputs,
    Output,
    Result,
    Stage,
    Task,
    arrow_output,
    bytes_output,
    parquet_output,
)
from pipeline.runs import layout
from pipeline.runs.held_texts import SCHEMA, quarantine_path
from pipeline.runs.views.documents import CleanOutput, VerdictsOutput
from pipeline.screening.evidence import DECISION_SCHEMA

DIRECTORY = "withheld"
RULE = "takedown"
REASON = "taken down from this run"
_EMPTY_TEXT = ids.text_key(b"")


@dataclass(frozen=True)
class WithheldKeys:
    """Keys of documents, and of texts, that must not be stored: fixed_size_binary(16) each."""

    doc_keys: pa.Array
    text_keys: pa.Array

    def __len__(self) -> int:
        return len(self.doc_keys)


@functools.lru_cache(maxsize=4)
def load_withheld(root: Path, files: tuple[str, ...]) -> WithheldKeys:
    """The keys in the tables `files`, which have doc_key and text_key (null: no text); paths
    relative to `root`, those of earlier generations outside it. Raises IntegrityError or OSError
    where one cannot be read."""
    empty = pa.array([], pa.binary(ids.KEY_BYTES))
    columns = {"doc_key": [empty], "text_key": [empty]}
    for file in files:
        path = Path(os.path.normpath(root / file))
        table = pq.read_table(fetch(path), columns=list(columns))
        for name, parts in columns.items():
            parts += table[name].chunks
    doc_keys, text_keys = (pc.unique(pa.concat_arrays(p)).drop_null() for p in columns.values())
    is_empty = pc.equal(text_keys, pa.scalar(_EMPTY_TEXT, text_keys.type))
    return WithheldKeys(doc_keys, text_keys.filter(pc.invert(is_empty)))


def is_withheld(table: pa.Table, withheld: WithheldKeys) -> Mask:
    """Which rows of a table with doc_key and text_key are of such documents, (N,)."""
    by_key = pc.is_in(table["doc_key"], withheld.doc_keys)
    by_text = pc.is_in(table["text_key"], withheld.text_keys)
    return np.asarray(pc.or_(by_key, by_text).to_numpy())


def withhold_texts(output: Output, table: pa.Table, withheld: WithheldKeys) -> Output:
    """The output of a documents shard, without the texts that are withheld; its content hash is
    that of the shard as it was read."""
    gone = is_withheld(table, withheld) if len(withheld) else np.zeros(0, np.bool_)
    if not gone.any():
        return output
    return replace(
        arrow_output(output.path, _emptied(table, "text", gone)), content_hash=table_hash(table)
    )


def withhold_excerpts(output: Output, table: pa.Table, withheld: WithheldKeys) -> Output:
    """The same for a shard of drops/, whose records have excerpts and no hash of their text."""
    gone = pc.is_in(table["doc_key"], withheld.doc_keys).to_numpy()
    if not gone.any():
        return output
    return replace(
        parquet_output(output.path, _emptied(table, "excerpt", gone)),
        content_hash=table_hash(table),
    )


def _emptied(table: pa.Table, name: str, gone: Mask) -> pa.Table:
    texts = pc.if_else(pa.array(gone), pa.scalar("", table[name].type), table[name])
    return table.set_column(table.column_names.index(name), table.schema.field(name), texts)


def takedown_decisions(table: pa.Table, withheld: WithheldKeys) -> pa.Table:
    """One row of `DECISION_SCHEMA`, drop by the rule `takedown`, for every document of a shard
    (doc_id, doc_key, text_key) that is withheld, in order."""
    rows = table.select(["doc_id", "doc_key"]).filter(pa.array(is_withheld(table, withheld)))
    count = len(rows)
    columns = {
        "doc_id": rows["doc_id"],
        "doc_key": rows["doc_key"],
        "decision": pa.array(["drop"] * count, pa.string()),
        "rule": pa.array([RULE] * count, pa.string()),
        "reason": pa.array([REASON] * count, pa.string()),
        "evidence": pa.array([[]] * count, pa.list_(pa.string())),
        "propagated_from": pa.nulls(count, pa.binary(ids.KEY_BYTES)),
    }
    arrays = [columns[field.name].cast(field.type) for field in DECISION_SCHEMA]
    return pa.table(arrays, schema=DECISION_SCHEMA)


@dataclass(frozen=True)
class WithheldJob:
    """One documents shard, and the tables with the keys."""

    index: int
    documents: Shard
    files: tuple[str, ...]


def _withheld(job: WithheldJob, inputs: Inputs) -> Result:
    table = inputs.table(job.documents, ["doc_id", "doc_key", "text_key"])
    decisions = takedown_decisions(table, load_withheld(inputs.root, job.files))
    output = arrow_output(layout.shard(DIRECTORY, job.index, layout.DECISIONS_SHARD), decisions)
    return Result((output,), {"documents": len(table), "dropped": len(decisions)})


def withheld_stage(clean: CleanOutput, takedowns: Sequence[tuple[str, str]]) -> Stage:
    """The stage that decides for the documents of these takedowns (file of keys, its hash); its
    decisions are joined with those of filters and decontamination."""
    files = tuple(file for file, _ in takedowns)
    tasks = tuple(
        Task(f"takedowns in {s.path}", WithheldJob(i, s, files), (s,), s.size)
        for i, s in enumerate(clean.documents)
    )
    settings = {"takedowns": [list(t) for t in takedowns]}
    return Stage(
        name="withheld",
        version=2,
        function=_withheld,
        tasks=tasks,
        settings=settings,
        reads_texts=False,
    )


NAME = "quarantine"
_OF_DOCUMENT = [
    "doc_id",
    "doc_key",
    "text_key",
    "source",
    "path_id",
    "line",
    "byte_offset",
    "text_bytes",
    "text",
]
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
    documents = inputs.open(job.documents)
    is_held = pc.is_in(documents.read(["doc_id"])["doc_id"], ids).to_numpy()
    table = documents.take(_OF_DOCUMENT, np.flatnonzero(is_held))
    place = pc.index_in(table["doc_id"], value_set=ids).combine_chunks()
    for name in _OF_DECISION:
        table = table.append_column(name, decisions[name].combine_chunks().take(place))
    columns = [table[field.name].cast(field.type) for field in SCHEMA]
    output = arrow_output(
        quarantine_path(job.documents.path), pa.table(columns, SCHEMA).combine_chunks()
    )
    return Result((output,), {"documents": len(table)})


def quarantine_stage(clean: CleanOutput, verdicts: VerdictsOutput, days: int | None) -> Stage:
    """The stage that fills quarantine/; no task where nothing is quarantined."""
    documents, decisions = clean.documents, verdicts.decisions
    pairs = [(documents[i], decisions[i]) for i in verdicts.quarantined]
    tasks = [
        Task(
            f"quarantined texts of {shard.path}",
            QuarantineJob(shard, why),
            (shard, why),
            shard.size,
        )
        for shard, why in pairs
    ]
    if pairs and days is not None:
        tasks.append(Task("retention", RetentionJob(days)))
    return Stage(name=NAME, version=1, function=_quarantine, tasks=tuple(tasks))
