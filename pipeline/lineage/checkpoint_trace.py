"""Backwards from a checkpoint: the documents that the steps before it read.

Counted over all documents, one row group of the inverse at a time: how often each row was read
follows from the training order, which labels of it belong to whom from `forward`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64
from pipeline.hdf5.read import SampleDataset
from pipeline.lineage.forward import locate_windows
from pipeline.lineage.shards import read_masked_documents
from pipeline.lineage.tables import Inverse, describe_documents
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
    reached = checkpoint_at(training, checkpoint)
    dataset = training.open(directory)
    table = DocumentTable(directory)
    times = _count_readings(training, dataset, reached.step)
    is_read = sum(times.values(), np.zeros(dataset.rows, np.int64)) > 0
    labels, touched = _count_labels(directory, dataset, table, times)
    documents = _describe_read(table, labels)
    elsewhere = (p for p in training.periods(dataset) if p.version is None)
    return CheckpointTrace(
        model_dir=model_dir,
        checkpoint=reached,
        rows=int(is_read.sum()),
        rows_of_data_set=dataset.rows,
        labels_read=int(labels.sum()),
        context_only=int((touched & (labels == 0)).sum()),
        sources=sum_by_source(documents),
        documents=documents,
        elsewhere=tuple(p for p in elsewhere if p.first <= reached.step),
    )


def _count_readings(
    training: TrainingRecord, dataset: SampleDataset, last_step: int
) -> dict[int, I64]:
    """Version of the data set -> how often each of its rows was read, (R,)."""
    times: dict[int, I64] = {}
    order = training.order(dataset)
    for index, version, low, high in training.sample_ranges(dataset, last_step):
        counts = times.setdefault(version, np.zeros(dataset.rows, np.int64))
        counts += order.times_read(index, high) - order.times_read(index, low)
    return times


def _count_labels(
    directory: Path, dataset: SampleDataset, table: DocumentTable, times: dict[int, I64]
) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Per document the labels that were read, and whether anything of it was, (documents,) each."""
    tokens = np.concatenate([part["tokens"].to_numpy() for _, part in table.parts(["tokens"])])
    masked = read_masked_documents(directory, dataset)
    labels, touched = np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.bool_)
    for part in Inverse(dataset).parts():
        docs = np.unique(part["doc"].to_numpy()).astype(np.int64)
        windows = locate_windows(part, tokens[docs].astype(np.int64), docs, dataset)
        doc = docs[windows.index]
        since = masked.find_since(docs)[windows.index]
        for version, readings in times.items():
            count = readings[windows.position] * (since > version)
            np.add.at(labels, doc, windows.labels * count)
            touched[doc[count > 0]] = True
    return labels, touched


def _describe_read(table: DocumentTable, labels: I64) -> pa.Table:
    rows = np.flatnonzero(labels)
    about = describe_documents(table, rows, ["licence"])
    columns = [pa.array(rows.astype(np.uint32)), *about.columns, pa.array(labels[rows])]
    return pa.table(columns, schema=READ_DOCUMENTS)


def sum_by_source(documents: pa.Table) -> pa.Table:
    """READ_SOURCES of READ_DOCUMENTS, most labels first."""
    grouped = documents.group_by("source", use_threads=False)
    counted = grouped.aggregate([("labels_read", "sum"), ([], "count_all")])
    columns = [counted["source"], counted["count_all"], counted["labels_read_sum"]]
    return pa.table(columns, schema=READ_SOURCES).sort_by(
        [("labels_read", "descending"), ("source", "ascending")]
    )
