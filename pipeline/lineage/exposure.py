"""From documents to the rows that hold them and the steps and checkpoints that read those.

A step is listed when it read a row in which a label belongs to one of the documents: the loss of
that step asked for one of their tokens. A row can hold a document as context only (its last token
begins the row, and is the label of the row before in the stream); steps that read nothing else are
listed apart. This is exposure: what was read, not what was learned, kept or can be recited.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.hdf5.format import DATA_PARAMS
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.lineage.forward import PLACES, SplitPlaces, locate_documents, stream_tokens
from pipeline.lineage.shards import NEVER, read_masked_documents
from pipeline.lineage.tables import describe_documents, expand_ranges
from pipeline.lineage.training import Period, TrainingCheckpoint, TrainingRecord, read_training
from pipeline.runs.records import DocumentTable
from pipeline.runs.splits import TRAIN

_COLUMNS = ["licence", "state", "reason", "decision", "rule", "split", "tokens"]


@dataclass(frozen=True, kw_only=True)
class TracedDocument:
    """One document and where it went.

    tokens: of one copy, EOS included. copies: in the stream of its split. rows: of the data set in
    which a label belongs to it; context_rows: in which it is only context. taken_down: the takedown
    that masked it. first_step, steps: the first step that read a label of it, and how many did;
    None and 0 without a training run. because: why it is among the answers.
    """

    doc: int
    document: str
    source: str
    path: str
    line: int
    licence: str
    state: str
    reason: str
    decision: str
    rule: str
    split: str
    tokens: int
    copies: int
    rows: int
    context_rows: int
    taken_down: str
    first_step: int | None
    steps: int
    because: str


@dataclass(frozen=True, kw_only=True)
class SplitShare:
    """What the documents are of a split: tokens of all their copies, and of the whole stream."""

    split: str
    documents: int
    copies: int
    tokens: int
    stream_tokens: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """What a training run read of the documents, up to `last_step`.

    steps: that read a label of them, ascending; context_steps: that read them as context only.
    labels_read: their labels in all these readings. first_exposed: the first checkpoint there is
    that has learned from one of the steps; last_unexposed: the last before them. next_step: when
    the run would read a label of them next, in the data set as it is now. elsewhere: steps that
    read a data set which is not this one, of which nothing is known here.
    """

    model_dir: Path
    last_step: int
    steps: tuple[int, ...]
    context_steps: tuple[int, ...]
    labels_read: int
    first_exposed: TrainingCheckpoint | None
    last_unexposed: TrainingCheckpoint | None
    next_step: int | None
    elsewhere: tuple[Period, ...]


@dataclass(frozen=True)
class ForwardTrace:
    """The answer to a forward question. `places` has the columns `forward.PLACES`. `notes`: what
    was looked for, and what was not."""

    documents: tuple[TracedDocument, ...]
    splits: tuple[SplitShare, ...]
    places: pa.Table
    exposure: Exposure | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Split:
    """Some of the documents asked about, `which` of them, in one split."""

    dataset: SampleDataset
    which: I64
    located: SplitPlaces
    masked_from: I64


@dataclass(frozen=True)
class _Readings:
    """Every time that a step read a document, (N,) each: its place in `which`, the step, and how
    many labels of it."""

    index: I64
    step: I64
    labels: I64


def trace_documents(
    directory: Path,
    docs: Sequence[int] | I64,
    model_dir: Path | None = None,
    because: Sequence[str] | None = None,
) -> ForwardTrace:
    """Where documents (rows of documents.parquet, each once) stand, and what the training run in
    `model_dir` read of them.

    Answers are in the order of `docs`; `because` is handed through. Raises InputError for a run or
    a model_dir that is none, and for a run without an inverse of its lineage.
    """
    docs_N = np.asarray(docs, np.int64)
    table = DocumentTable(directory)
    about = describe_documents(table, docs_N, _COLUMNS)
    training = read_training(model_dir) if model_dir is not None else None
    splits_of_kept = about.filter(pc.equal(about["state"], "kept"))["split"].unique().to_pylist()
    splits = [
        _locate_in_split(directory, name, training, docs_N, about)
        for name in sorted(splits_of_kept)
        if (directory / "hdf5" / name / DATA_PARAMS).is_file()
    ]
    trained = next((s for s in splits if s.dataset.directory.name == TRAIN), None)
    readings = _find_readings(training, trained) if training and trained else None
    rows = [split.located.places for split in splits]
    return ForwardTrace(
        _trace_each(docs_N, about, because, splits, readings),
        tuple(_sum_share(split, about) for split in splits),
        pa.concat_tables([PLACES.empty_table(), *rows]).combine_chunks(),
        _sum_exposure(training, directory, trained, readings) if training else None,
    )


def _locate_in_split(
    directory: Path, name: str, training: TrainingRecord | None, docs_N: I64, about: pa.Table
) -> _Split:
    if training is not None and name == TRAIN:
        dataset = training.open(directory)  # its rows as the training run reads them
    else:
        dataset = open_dataset(directory / "hdf5" / name)
    is_here = pc.and_(pc.equal(about["split"], name), pc.equal(about["state"], "kept"))
    which = np.flatnonzero(is_here.to_numpy())
    which = which[np.argsort(docs_N[which])]
    tokens = about["tokens"].to_numpy().astype(np.int64)[which]
    located = locate_documents(dataset, docs_N[which], tokens)
    since = read_masked_documents(directory, dataset).find_since(docs_N[which])
    return _Split(dataset, which, located, since)


def _find_readings(training: TrainingRecord, split: _Split) -> _Readings:
    windows = split.located.windows
    order = np.argsort(windows.position, kind="stable")
    position = windows.position[order]
    rows = np.unique(position)
    readings = training.readings(split.dataset, rows, training.last_step)
    first = np.searchsorted(position, rows)[readings.index]
    count = np.searchsorted(position, rows, side="right")[readings.index] - first
    at = order[expand_ranges(first, count)]
    version, step = (np.repeat(c, count) for c in (readings.version, readings.step))
    index = windows.index[at]
    live = split.masked_from[index] > version
    return _Readings(index[live], step[live], windows.labels[at][live])


def _trace_each(
    docs_N: I64,
    about: pa.Table,
    because: Sequence[str] | None,
    splits: Sequence[_Split],
    readings: _Readings | None,
) -> tuple[TracedDocument, ...]:
    counts = np.zeros((len(docs_N), len(_COUNTS)), np.int64)
    takedown = [""] * len(docs_N)
    for split in splits:
        counts[split.which] = _count_each(split, readings)
        for which, since in zip(split.which.tolist(), split.masked_from.tolist(), strict=True):
            takedown[which] = "" if since == NEVER else split.dataset.takedowns[since - 1]
    reasons = because if because is not None else [""] * len(docs_N)
    return tuple(
        TracedDocument(
            doc=doc,
            **row,
            copies=copies,
            rows=rows,
            context_rows=context,
            taken_down=gone,
            first_step=first or None,
            steps=steps,
            because=why,
        )
        for doc, row, (copies, rows, context, first, steps), gone, why in zip(
            docs_N.tolist(), about.to_pylist(), counts.tolist(), takedown, reasons, strict=True
        )
    )


_COUNTS = ("copies", "rows", "context_rows", "first_step", "steps")


def _count_each(split: _Split, readings: _Readings | None) -> I64:
    """`_COUNTS` of every document of a split, (D, 5); first_step is 0 where there is none."""
    windows, documents = split.located.windows, len(split.which)
    with_label = windows.labels > 0
    rows = _count_distinct(windows.index[with_label], windows.position[with_label], documents)
    all_rows = _count_distinct(windows.index, windows.position, documents)
    first, steps = np.zeros((2, documents), np.int64)
    if readings is not None and split.dataset.directory.name == TRAIN:
        index, step = readings.index[readings.labels > 0], readings.step[readings.labels > 0]
        steps = _count_distinct(index, step, documents)
        order = np.lexsort((step, index))
        index, at = np.unique(index[order], return_index=True)
        first[index] = step[order][at]
    return np.stack([split.located.copies, rows, all_rows - rows, first, steps], axis=1)


def _count_distinct(index_N: I64, value_N: I64, count: int) -> I64:
    """How many different values each index has, (count,)."""
    order = np.lexsort((value_N, index_N))
    index, value = index_N[order], value_N[order]
    new = np.ones(len(index), np.bool_)
    new[1:] = (index[1:] != index[:-1]) | (value[1:] != value[:-1])
    return np.bincount(index[new], minlength=count)


def _sum_share(split: _Split, about: pa.Table) -> SplitShare:
    dataset, copies = split.dataset, split.located.copies
    tokens = about["tokens"].to_numpy().astype(np.int64)[split.which]
    rows = np.unique(split.located.windows.position[split.located.windows.labels > 0])
    return SplitShare(
        split=dataset.directory.name,
        documents=len(copies),
        copies=int(copies.sum()),
        tokens=int((copies * tokens).sum()),
        stream_tokens=stream_tokens(dataset),
        rows=len(rows),
    )


def _sum_exposure(
    training: TrainingRecord, directory: Path, split: _Split | None, readings: _Readings | None
) -> Exposure:
    steps = context = np.zeros(0, np.int64)
    labels, next_step = 0, None
    dataset = split.dataset if split else training.open(directory)
    if split is not None and readings is not None:
        steps = np.unique(readings.step[readings.labels > 0])
        context = np.setdiff1d(readings.step[readings.labels == 0], steps)
        labels = int(readings.labels.sum())
        windows = split.located.windows
        live = (windows.labels > 0) & (split.masked_from[windows.index] == NEVER)
        next_step = training.next_step(dataset, np.unique(windows.position[live]))
    first = int(steps[0]) if len(steps) else None
    return Exposure(
        model_dir=training.model_dir,
        last_step=training.last_step,
        steps=tuple(steps.tolist()),
        context_steps=tuple(context.tolist()),
        labels_read=labels,
        first_exposed=training.first_exposed(first) if first else None,
        last_unexposed=training.last_unexposed(first if first else training.last_step + 1),
        next_step=next_step,
        elsewhere=tuple(p for p in training.periods(dataset) if p.version is None),
    )
