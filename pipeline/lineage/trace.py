"""Backwards: from a training step, a checkpoint, an HDF5 row or tokens to documents, lines and
decisions. What is listed for a step is exposure: that the step read it, not what it learned."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dedup.arrays import I64
from pipeline.core.errors import ConfigError, InputError
from pipeline.hdf5.format import CORPUS, SAMPLE
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.lineage.rearranged import RearrangedDocuments, SpanPart, cut_parts
from pipeline.lineage.shards import (
    RowSpans,
    read_masked_documents,
    spans_of_ranges,
    spans_of_rows,
    windows_of_corpus,
)
from pipeline.lineage.tables import (
    Inverse,
    describe_documents,
    row_positions,
    stream_rows_at,
)
from pipeline.lineage.training import TrainingRecord, read_training
from pipeline.runs.generations import find_whole, list_generations, name_split
from pipeline.runs.records import DocumentTable
from pipeline.runs.references import shorten_list, split_row

_COLUMNS = ["licence", "decision", "rule", "tokens"]

_READERS = 4
"""Files of lineage that are decoded at a time; decoding holds no lock of the interpreter."""


@dataclass(frozen=True, kw_only=True)
class TokenSpan:
    """Tokens of one document in an HDF5 row, and where the document comes from.

    [token_start, token_end) of `input_ids`, the first being token doc_token_start of the document;
    [label_start, label_end) of `labels`. In `sample` a label is the token behind its input, so a
    document that begins the next row of the stream has one label and no input here (token_start =
    token_end), and one of which only the last token begins the row has an input and no label. A
    corpus has no rows: tokens are places in the file, labels are None. `masked`: taken down from
    the data set that was asked about, so inputs are the EOS id and no label counts. `parts`: what
    these tokens are of a document that fill-in-the-middle rearranged, whose tokens are counted in
    the order that they were trained in; empty for any other document.
    """

    file: str
    row: int | None
    token_start: int
    token_end: int
    doc_token_start: int
    label_start: int | None
    label_end: int | None
    document: str
    source: str
    path: str
    line: int
    licence: str
    decision: str
    rule: str
    masked: bool
    parts: tuple[SpanPart, ...] = ()


def trace_step(directory: Path, model_dir: Path, step: int) -> list[TokenSpan]:
    """The documents behind 1-based training step `step` of the run in `model_dir`, in the order of
    the batch.

    Pure: the order follows from seed, rows and batch schedule in `model_dir`/run.json, no log is
    read. Raises IntegrityError when the step was trained on another data set, one that this one was
    masked from apart.
    """
    training = read_training(model_dir)
    datasets = _open_generations(training, directory, step)
    tracers = {
        part: _Tracer(_run_of(dataset), dataset, training.version_at(dataset, step))
        for part, dataset in datasets.items()
    }
    spans: list[TokenSpan] = []
    for part, rows in training.rows_by_part(datasets[min(datasets)], step):
        spans += tracers[part].rows(rows) if part in tracers else []
    return spans


def _open_generations(
    training: TrainingRecord, directory: Path, step: int
) -> dict[int, SampleDataset]:
    """The generations of a run that a step was trained on, by their part of the training run."""
    first, *later = (training.open(g.directory) for g in list_generations(directory))
    parts = {training.part_of(dataset): dataset for dataset in (first, *later)}
    known = {part: dataset for part, dataset in parts.items() if part is not None}
    if not known:
        training.version_at(first, step)  # raises what is wrong
    return known


def read_elsewhere(directory: Path, model_dir: Path, step: int) -> list[tuple[str, int]]:
    """Hash and rows of the other data sets that a step of a mixture read, of which nothing is known
    in `directory`. Raises as `trace_step`."""
    training = read_training(model_dir)
    datasets = _open_generations(training, directory, step)
    return training.read_elsewhere(datasets[min(datasets)], step, set(datasets))


def _run_of(dataset: SampleDataset) -> Path:
    return dataset.directory.parent.parent


def trace_row(directory: Path, file: Path, row: int) -> list[TokenSpan]:
    """The documents in one row of an HDF5 shard, given as a path inside the run directory."""
    path, dataset, index = _find_shard(directory, file)
    shard = dataset.shards[index]
    if dataset.layout is CORPUS:
        raise ConfigError(f"{path}: a corpus has no rows; give tokens of the file with --tokens")
    if not 0 <= row < shard.rows:
        raise InputError(f"{path}: row {row} is outside 0..{shard.rows - 1}")
    rows = dataset.starts[index : index + 1] + row
    return _Tracer(_run_of(dataset), dataset).rows(rows.astype(np.int64))


def trace_tokens(
    directory: Path, file: Path, first: int, stop: int, row: int | None = None
) -> list[TokenSpan]:
    """The documents in tokens [first, stop) of a row's `input_ids`, or of a corpus shard; spans are
    cut to these tokens."""
    path, dataset, index = _find_shard(directory, file)
    shard = dataset.shards[index]
    if (row is None) != (dataset.layout is CORPUS):
        advice = "has no rows; leave out" if dataset.layout is CORPUS else "has rows; give one with"
        raise ConfigError(f"{path}: {dataset.layout.name} {advice} --row")
    tokens = shard.rows if row is None else dataset.max_sequence_length
    if not 0 <= first < stop <= tokens:
        raise InputError(f"{path}: tokens {first}:{stop} are outside 0:{tokens}")
    if row is None:
        cut = spans_of_ranges(path, np.array([first]), np.array([stop]))[0]
        spans = _Tracer(_run_of(dataset), dataset).spans(np.full(len(cut), index), cut, None, None)
    else:
        spans = [s for s in trace_row(directory, file, row) if s.token_start < s.token_end]
    return [
        _cut_span(s, first, stop) for s in spans if s.token_start < stop and s.token_end > first
    ]


def _cut_span(span: TokenSpan, first: int, stop: int) -> TokenSpan:
    """The part of a span in tokens [first, stop), with the labels of these inputs."""
    begin, end = max(span.token_start, first), min(span.token_end, stop)
    labels: tuple[int | None, int | None] = (None, None)
    if span.label_start is not None and span.label_end is not None:
        low = max(span.label_start, first)
        labels = low, max(low, min(span.label_end, stop))
    return replace(
        span,
        token_start=begin,
        token_end=end,
        label_start=labels[0],
        label_end=labels[1],
        doc_token_start=span.doc_token_start + begin - span.token_start,
        parts=tuple(cut_parts(span.parts, begin, end)),
    )


def trace_reference(directory: Path, reference: str) -> list[TokenSpan] | None:
    """The documents in a row that is given as it is printed, SHARD[ROW]; None where it is not given
    so."""
    place = split_row(reference)
    return None if place is None else trace_row(directory, Path(place[0]), place[1])


def _find_shard(directory: Path, file: Path) -> tuple[Path, SampleDataset, int]:
    """A shard given as a path, or by a unique ending of its path in the run; or the one that has
    its rows since a takedown."""
    path = next((p for p in (file, directory / file) if p.is_file()), None)
    if path is None:
        path = _find_shard_ending(directory, file)
    run, here = path.resolve().parents[2], directory.resolve()
    if run != here and find_whole(run) == find_whole(here):
        raise InputError(f"{file}: no such shard in {directory}, but in another generation")
    dataset = open_dataset(path.parent)
    names = [shard.name for shard in dataset.shards]
    if path.name not in names:
        raise InputError(
            f"{path}: not a shard of this data set; expected one of {names[0]} … {names[-1]}"
        )
    return path, dataset, names.index(path.name)


def _find_shard_ending(directory: Path, file: Path) -> Path:
    endings = os.path.abspath(file), f"/{_first_version(file.as_posix())}"
    matches = []
    for params in sorted((directory / "hdf5").glob("*/data_params.json")):
        for shard in open_dataset(params.parent).shards:
            path = params.parent / shard.name
            first = _first_version(os.path.abspath(path))
            if first == _first_version(endings[0]) or first.endswith(endings[1]):
                matches.append(path)
    if not matches:
        raise InputError(f"{file}: no such shard in {directory}")
    if len(matches) > 1:
        names = shorten_list([path.relative_to(directory).as_posix() for path in matches])
        raise InputError(
            f"{file}: {len(matches)} shards end with it: {names}; give more of the path"
        )
    return matches[0]


def _first_version(path: str) -> str:
    """The name of a shard before any takedown.

    >>> _first_version("train/examples_000003-002.h5")
    'train/examples_000003.h5'
    """
    return re.sub(r"-[0-9]{3,}(?=\.h5$)", "", path)


class _Tracer:
    """Turns rows of one split into spans; `version` of the data set, the present one by default."""

    def __init__(self, directory: Path, dataset: SampleDataset, version: int | None = None) -> None:
        self._dataset = dataset
        self._documents = DocumentTable(directory)
        self._masked = read_masked_documents(directory, dataset)
        self._version = len(dataset.ancestors) if version is None else version
        self._about: dict[int, tuple[Any, ...]] = {}
        self._parts = RearrangedDocuments(directory, self._documents)

    def rows(self, rows_R: I64) -> list[TokenSpan]:
        """Spans of rows of the data set, in this order; of a corpus rows are windows."""
        if self._dataset.layout is CORPUS:
            w = windows_of_corpus(self._dataset, rows_R)
            return self.spans(w.shard, w.spans, w.label_start, w.label_end)
        starts = self._dataset.starts
        shard_R = np.searchsorted(starts, rows_R, side="right") - 1
        shards = np.unique(shard_R).tolist()
        where = [np.flatnonzero(shard_R == index) for index in shards]
        rows = [rows_R[w] - starts[index] for w, index in zip(where, shards, strict=True)]
        with ThreadPoolExecutor(min(_READERS, len(shards))) as pool:
            by_shard = list(pool.map(spans_of_rows, map(self._path, shards), rows))
        rank = np.concatenate([np.repeat(w, f[1]) for w, f in zip(where, by_shard, strict=True)])
        order = np.argsort(rank, kind="stable")
        rank, spans = rank[order], RowSpans.joined([spans for spans, _ in by_shard]).at(order)
        if self._dataset.layout is not SAMPLE:
            return self.spans(shard_R[rank], spans, spans.token_start, spans.token_end)
        return self._sample(rank, shard_R[rank], spans)

    def _sample(self, rank: I64, shard: I64, spans: RowSpans) -> list[TokenSpan]:
        """With the labels of every span, and the documents that have a row's last label only."""
        reached = spans.doc_token_start + spans.token_end - spans.token_start
        is_over = reached == self._tokens(spans.doc)
        is_last = np.append(rank[1:] != rank[:-1], True)[: len(rank)]
        ended = np.flatnonzero(is_last & is_over)
        behind = self._documents_behind(shard[ended], spans.at(ended))
        label_start = np.maximum(spans.token_start - 1, 0)
        label_end = np.maximum(label_start, spans.token_end - is_over)
        none, end = np.zeros(len(ended), np.int64), spans.token_end[ended]
        added = RowSpans(spans.row[ended], end, end, behind, none)
        order = np.argsort(np.append(np.arange(len(spans)), ended), kind="stable")
        return self.spans(
            np.append(shard, shard[ended])[order],
            RowSpans.joined([spans, added]).at(order),
            np.append(label_start, end - 1)[order],
            np.append(label_end, end)[order],
        )

    def _documents_behind(self, shard: I64, spans: RowSpans) -> I64:
        """The documents that begin right behind the last spans of rows: their first tokens are the
        last labels of these rows. Behind the last row of the stream one token may follow."""
        rows, params = self._dataset.rows, self._dataset.params
        order = rows, params["seed"], params["split"]
        stream_row = stream_rows_at(self._dataset.starts[shard] + spans.row, *order)
        documents = []
        for number, end in zip(stream_row.tolist(), spans.token_end.tolist(), strict=True):
            if number + 1 == rows:
                start = number * self._dataset.max_sequence_length + end
                documents.append(Inverse(self._dataset).document_at(start))
                continue
            place = row_positions(np.array([number + 1]), *order)
            index, row = self._dataset.files.file_and_row(int(place[0]))
            documents.append(int(spans_of_rows(self._path(index), np.array([row]))[0].doc[0]))
        return np.array(documents, np.int64)

    def spans(
        self, shard: I64, spans: RowSpans, label_start: I64 | None, label_end: I64 | None
    ) -> list[TokenSpan]:
        """Spans of lineage with the labels of each, None in files of a corpus."""
        self._learn(spans.doc)
        split, none = name_split(self._dataset.directory), [None] * len(spans)
        columns: tuple[list[Any], ...] = (
            [f"{split}/{self._path(index).name}" for index in shard.tolist()],
            none if self._dataset.layout is CORPUS else spans.row.tolist(),
            spans.token_start.tolist(),
            spans.token_end.tolist(),
            spans.doc_token_start.tolist(),
            none if label_start is None else label_start.tolist(),
            none if label_end is None else label_end.tolist(),
        )
        masked = self._masked.at(spans.doc, self._version).tolist()
        about = (self._about[doc] for doc in spans.doc.tolist())
        names = [field.name for field in fields(TokenSpan)]
        rows = zip(zip(*columns, strict=True), about, masked, self._parts.of(spans), strict=True)
        values = ((*place, *shown[:-1], gone, parts) for place, shown, gone, parts in rows)
        return [TokenSpan(**dict(zip(names, row, strict=True))) for row in values]

    def _learn(self, doc_N: I64) -> None:
        """Read what spans say of these documents, and their tokens: `_about`, by dense index."""
        rows = np.array(sorted(set(doc_N.tolist()) - self._about.keys()), np.int64)
        about = describe_documents(self._documents, rows, _COLUMNS)
        columns = (column.to_numpy().tolist() for column in about.columns)
        self._about.update(zip(rows.tolist(), zip(*columns, strict=True), strict=True))

    def _tokens(self, doc_N: I64) -> I64:
        self._learn(doc_N)
        return np.array([self._about[doc][-1] for doc in doc_N.tolist()], np.int64)

    def _path(self, index: int) -> Path:
        return self._dataset.directory / self._dataset.shards[index].name
