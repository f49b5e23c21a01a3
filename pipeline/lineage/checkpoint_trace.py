"""Backwards from a checkpoint: the documents that the steps before it read.

Counted over all documents, one row group of the inverse at a time: how often each row was read
follows from the training order, which labels of it belong to whom from `forward`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.order import samples_before_step
from pipeline.hdf5.read import SampleDataset
from pipeline.lineage.forward import windows_of
from pipeline.lineage.shards import read_masked_documents
from pipeline.lineage.tables import Inverse
from pipeline.lineage.training import (
    Period,
    TrainingCheckpoint,
    TrainingRecord,
    checkpoint_at,
    read_training,
)
from pipeline.runs.records import DocumentTable

READ_DOCUMENTS = pa.schema([
    ("doc", pa.uint32()), ("document", pa.string()), ("source", pa.string()),
    ("path", pa.string()), ("line", pa.uint64()), ("licence", pa.string()),
    ("labels_read", pa.int64()),
])  # fmt: skip
"""Documents of which a label was read, by dense index; labels of all readings."""

READ_SOURCES = pa.schema(
    [("source", pa.string()), ("documents", pa.int64()), ("labels_read", pa.int64())]
)


@dataclass(frozen=True, kw_only=True)
class CheckpointTrace:
    """What steps 1 to `checkpoint.step` read: rows read at least once, labels over all readings,
    `sources` (READ_SOURCES) and `documents` (READ_DOCUMENTS). `context_only`: documents of which
    they read tokens as context but no label. `elsewhere`: steps that read a data set which is not
    this one, of which nothing is known here."""

    model_dir: Path
    checkpoint: TrainingCheckpoint
    rows: int
    rows_of_data_set: int
    labels_read: int
    context_only: int
    sources: pa.Table
    documents: pa.Table
    elsewhere: tuple[Period, ...]


def trace_checkpoint(directory: Path, model_dir: Path, checkpoint: Path) -> CheckpointTrace:
    """The documents and sources behind a checkpoint of the run in `model_dir`, its directory or
    that directory's name. Raises InputError for one that is not there."""
    training = read_training(model_dir)
    found = checkpoint_at(training, checkpoint)
    dataset = training.open(directory)
    table = DocumentTable(directory)
    times = _times_read(training, dataset, found.step)
    read = sum(times.values(), np.zeros(dataset.rows, np.int64)) > 0
    labels, touched = _labels_read(directory, dataset, table, times)
    documents = _named(table, np.flatnonzero(labels), labels)
    elsewhere = (p for p in training.periods(dataset) if p.version is None)
    return CheckpointTrace(
        model_dir=model_dir,
        checkpoint=found,
        rows=int(read.sum()),
        rows_of_data_set=dataset.rows,
        labels_read=int(labels.sum()),
        context_only=int((touched & (labels == 0)).sum()),
        sources=_by_source(documents),
        documents=documents,
        elsewhere=tuple(p for p in elsewhere if p.first <= found.step),
    )


def _times_read(training: TrainingRecord, dataset: SampleDataset, last_step: int) -> dict[int, I64]:
    """Version of the data set -> how often each of its rows was read, (R,)."""
    times: dict[int, I64] = {}
    index, order = training.part_of(dataset), training.order(dataset)
    for period in training.periods(dataset):
        stop = min(period.stop, last_step + 1)
        if index is None or period.version is None or stop <= period.first:
            continue
        first, end = (samples_before_step(s, training.schedule) for s in (period.first, stop))
        read = times.setdefault(period.version, np.zeros(dataset.rows, np.int64))
        read += order.times_read(index, end) - order.times_read(index, first)
    return times


def _labels_read(
    directory: Path, dataset: SampleDataset, table: DocumentTable, times: dict[int, I64]
) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Per document the labels that were read, and whether anything of it was, (documents,) each."""
    tokens = np.concatenate([part["tokens"].to_numpy() for _, part in table.parts(["tokens"])])
    masked = read_masked_documents(directory, dataset)
    labels, touched = np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.bool_)
    for part in Inverse(dataset).parts():
        docs = np.unique(part["doc"].to_numpy()).astype(np.int64)
        windows = windows_of(part, tokens[docs].astype(np.int64), docs, dataset)
        doc = docs[windows.index]
        since = masked.since_of(docs)[windows.index]
        for version, read in times.items():
            count = read[windows.position] * (since > version)
            np.add.at(labels, doc, windows.labels * count)
            touched[doc[count > 0]] = True
    return labels, touched


def _named(table: DocumentTable, rows: I64, labels: I64) -> pa.Table:
    columns = ["doc_key", "source", "path_id", "line", "byte_offset", "licence"]
    found = table.take(rows, columns)
    keys = [key.hex() for key in found["doc_key"].to_pylist()]
    lines = pc.if_else(pc.greater(found["line"], 0), found["line"], found["byte_offset"])
    path = pa.array(table.files, pa.string()).take(found["path_id"].combine_chunks())
    return pa.table(
        [
            pa.array(rows.astype(np.uint32)),
            pa.array(keys, pa.string()),
            found["source"].cast(pa.string()),
            path,
            lines,
            found["licence"].cast(pa.string()),
            pa.array(labels[rows]),
        ],
        schema=READ_DOCUMENTS,
    )


def _by_source(documents: pa.Table) -> pa.Table:
    grouped = documents.group_by("source", use_threads=False)
    counted = grouped.aggregate([("labels_read", "sum"), ([], "count_all")])
    columns = [counted["source"], counted["count_all"], counted["labels_read_sum"]]
    return pa.table(columns, schema=READ_SOURCES).sort_by(
        [("labels_read", "descending"), ("source", "ascending")]
    )
