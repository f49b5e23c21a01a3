"""From documents to the rows of a split that hold them, by the inverse of its lineage.

In `sample` and `corpus` a copy of a document fills stream tokens [start, start + tokens); row k of
the stream has inputs [k S, k S + S) and labels one token on, so which row holds which of its
tokens, as input and as label, is arithmetic; the row's place in the data set is the keyed
permutation. In `vsl` the inverse says it. What rests on this: where documents are, which source
every label of a split belongs to (for losses by source; some 30 bytes of memory for every document
in a row), and a check of the inverse against the lineage of the shards.

Shapes: B rows, S tokens (MSL), W windows, D documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I16, I64, U64
from pipeline.core.errors import IntegrityError
from pipeline.core.rng import mix64
from pipeline.hdf5.format import CORPUS, SAMPLE, VSL
from pipeline.hdf5.read import SampleDataset
from pipeline.lineage.shards import all_spans, stream_rows
from pipeline.lineage.tables import (
    Inverse,
    expand_ranges,
    inverse_path,
    row_positions,
    stream_rows_at,
)
from pipeline.runs import layout
from pipeline.runs.generations import name_split
from pipeline.runs.records import DocumentTable

PLACES = pa.schema([
    ("doc", pa.uint32()), ("split", pa.string()), ("file", pa.string()), ("row", pa.int64()),
    ("token_start", pa.int64()), ("token_end", pa.int64()), ("doc_token_start", pa.int64()),
    ("label_start", pa.int64()), ("label_end", pa.int64()),
])  # fmt: skip
"""One row per document, copy and HDF5 row, as `pipeline.lineage.trace.TokenSpan` has them:
inputs [token_start, token_end), labels [label_start, label_end). Of a corpus `row` and labels are
null and tokens are places in the file."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Documents in rows of a data set, (W,) each: `index` into the documents asked about, the row
    of the data set, [token_start, token_end) of its inputs, [label_start, label_end) of its labels,
    and the document's own token at token_start. Either range can be empty, never both."""

    index: I64
    position: I64
    token_start: I64
    token_end: I64
    doc_token_start: I64
    label_start: I64
    label_end: I64

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> I64:
        """How many labels belong to the document, (W,)."""
        return self.label_end - self.label_start

    def at(self, which_M: npt.NDArray[np.generic]) -> "Windows":
        """Some of them."""
        return Windows(**{name: column[which_M] for name, column in vars(self).items()})


@dataclass(frozen=True)
class StreamShape:
    """S tokens in a row, T tokens and R rows of a stream."""

    length: int
    tokens: int
    rows: int


def locate_windows(
    inverse: pa.Table, tokens_D: I64, docs_D: I64, dataset: SampleDataset
) -> Windows:
    """Where the documents `docs_D` (ascending) of so many tokens are in the rows of a data set;
    `inverse` holds their rows of the split's inverse."""
    index = np.searchsorted(docs_D, inverse["doc"].to_numpy().astype(np.int64))
    if dataset.layout is VSL:
        begin = inverse["doc_token_start"].to_numpy()
        slot = inverse["token_start"].to_numpy().astype(np.int64)
        end = slot + np.minimum(dataset.max_sequence_length, tokens_D[index] - 1 - begin)
        return Windows(
            index=index,
            position=inverse["row"].to_numpy(),
            token_start=slot,
            token_end=end,
            doc_token_start=begin,
            label_start=slot,
            label_end=end,
        )
    shape = StreamShape(dataset.max_sequence_length, stream_tokens(dataset), dataset.rows)
    start = inverse["stream_start"].to_numpy()
    windows, stream_row = stream_windows(start, tokens_D[index], shape)
    position = stream_row
    if dataset.layout is not CORPUS:
        seed, split = dataset.params["seed"], dataset.params["split"]
        position = row_positions(stream_row, shape.rows, seed, split)
    return replace(windows, index=index[windows.index], position=position)


def stream_tokens(dataset: SampleDataset) -> int:
    """T: tokens of all copies of all documents of the split, EOS included."""
    return int(dataset.params["h5_dataset_stats"]["stream_tokens"])


def stream_windows(start_N: I64, tokens_N: I64, shape: StreamShape) -> tuple[Windows, I64]:
    """Windows of N copies by row of the stream, `position` being that row; and the row itself.

    >>> found, row = stream_windows(np.array([4]), np.array([5]), StreamShape(4, 11, 3))
    >>> row.tolist(), found.token_start.tolist(), found.token_end.tolist()
    ([0, 1, 2], [4, 0, 0], [4, 4, 1])
    >>> found.label_start.tolist(), found.label_end.tolist(), found.doc_token_start.tolist()
    ([3, 0, 0], [4, 4, 0], [0, 0, 4])
    """
    length, end_N = shape.length, start_N + tokens_N
    input_end_N = np.minimum(end_N, shape.tokens - 1)
    first = np.maximum(start_N - 1, 0) // length
    last = np.minimum((np.maximum(input_end_N, end_N - 1) - 1) // length, shape.rows - 1)
    count = np.maximum(last - first + 1, 0)
    index = np.repeat(np.arange(len(start_N)), count)
    row = expand_ranges(first, count)
    base = row * length

    def inside(token_N: I64) -> I64:
        return np.asarray(np.clip(token_N[index] - base, 0, length))

    token_start, token_end = inside(start_N), inside(input_end_N)
    label_start, label_end = inside(start_N - 1), inside(end_N - 1)
    windows = Windows(
        index=index,
        position=row,
        token_start=token_start,
        token_end=np.maximum(token_start, token_end),
        doc_token_start=base + token_start - start_N[index],
        label_start=label_start,
        label_end=np.maximum(label_start, label_end),
    )
    has_tokens = (windows.token_end > windows.token_start) | (windows.labels > 0)
    return windows.at(has_tokens), row[has_tokens]


@dataclass(frozen=True)
class SplitPlaces:
    """Where D documents are in a split: `PLACES`; the windows of training rows, whose `index` is
    the document; and how many copies of each there are, (D,)."""

    places: pa.Table
    windows: Windows
    copies: I64


def locate_documents(dataset: SampleDataset, docs_D: I64, tokens_D: I64) -> SplitPlaces:
    """Where documents (dense indices, ascending) of so many tokens are in a split."""
    inverse = Inverse(dataset).of(docs_D)
    windows = locate_windows(inverse, tokens_D, docs_D, dataset)
    doc = inverse["doc"].to_numpy().astype(np.int64)
    if dataset.layout is VSL:
        doc = doc[inverse["doc_token_start"].to_numpy() == 0]
    copies = np.bincount(np.searchsorted(docs_D, doc), minlength=len(docs_D))
    if dataset.layout is CORPUS:
        places = _locate_in_corpus(dataset, inverse, docs_D, tokens_D)
    else:
        shard = np.searchsorted(dataset.starts, windows.position, side="right") - 1
        row = windows.position - dataset.starts[shard]
        spans = (windows.token_start, windows.token_end, windows.doc_token_start)
        labels = (pa.array(windows.label_start), pa.array(windows.label_end))
        places = _make_places(dataset, docs_D[windows.index], shard, pa.array(row), spans, labels)
    return SplitPlaces(places, windows, copies)


def _locate_in_corpus(
    dataset: SampleDataset, inverse: pa.Table, docs_D: I64, tokens_D: I64
) -> pa.Table:
    doc, shard, *spans = _find_corpus_spans(dataset, inverse, docs_D, tokens_D)
    none = pa.nulls(len(doc), pa.int64())
    return _make_places(dataset, doc, shard, none, tuple(spans), (none, none))


def _find_corpus_spans(
    dataset: SampleDataset, inverse: pa.Table, docs_D: I64, tokens_D: I64
) -> tuple[I64, ...]:
    """Document, file, [start, stop) of tokens in it, and the document's own token at start, of
    every file that holds some of a copy, (N,) each."""
    start = inverse["stream_start"].to_numpy()
    doc = inverse["doc"].to_numpy().astype(np.int64)
    end = start + tokens_D[np.searchsorted(docs_D, doc)]
    first = np.searchsorted(dataset.starts, start, side="right") - 1
    count = np.searchsorted(dataset.starts, end, side="left") - first
    copy = np.repeat(np.arange(len(start)), count)
    shard = expand_ranges(first, count)
    begin = np.maximum(start[copy], dataset.starts[shard])
    stop = np.minimum(end[copy], dataset.starts[shard + 1])
    base = dataset.starts[shard]
    return doc[copy], shard, begin - base, stop - base, begin - start[copy]


def _make_places(
    dataset: SampleDataset,
    doc: I64,
    shard: I64,
    row: pa.Array,
    spans: tuple[I64, ...],
    labels: tuple[pa.Array, pa.Array],
) -> pa.Table:
    split, place = dataset.directory.name, name_split(dataset.directory)
    names = pa.array([f"{place}/{info.name}" for info in dataset.shards], pa.string())
    columns = [
        pa.array(doc.astype(np.uint32)),
        pa.array([split]).take(pa.array(np.zeros(len(doc), int))),
        names.take(pa.array(shard)),
        row,
        *(pa.array(column) for column in spans),
        *labels,
    ]
    return pa.table(columns, schema=PLACES)


def check_inverse(dataset: SampleDataset) -> int | None:
    """How many entries the inverse has, None when the run was made before there was one.

    Raises IntegrityError unless its documents are kept ones of this split, the spans of the lineage
    are just those that follow from its entries and the tokens of these documents, and the rows of
    `sample` stand where their keyed permutation says. Spans are not compared one by one, which
    would take memory for all, but by a 64-bit sum over those of a shard.
    """
    path = inverse_path(dataset.directory)
    if not path.exists():
        return None
    table, split = DocumentTable(dataset.directory.parent.parent), dataset.directory.name
    expected = np.zeros(len(dataset.shards), np.uint64)
    entries, last = 0, 0
    for part in Inverse(dataset).parts():
        doc = part["doc"].to_numpy().astype(np.int64)
        docs, entries = np.unique(doc), entries + len(doc)
        if (np.diff(doc, prepend=last) < 0).any() or docs[-1:].max(initial=-1) >= len(table):
            raise IntegrityError(f"{path}: differs from the lineage: documents do not ascend")
        last = doc.max(initial=last)
        about = table.take(docs, ["state", "split", "tokens"])
        is_kept = pc.and_(pc.equal(about["state"], "kept"), pc.equal(about["split"], split))
        if not pc.all(is_kept, min_count=0).as_py():
            raise IntegrityError(f"{path}: names documents that were not kept in this split")
        tokens = about["tokens"].to_numpy().astype(np.int64)
        for first in range(0, len(doc), _ENTRIES):
            shard, spans = _derive_spans(dataset, part.slice(first, _ENTRIES), docs, tokens)
            np.add.at(expected, shard, _hash_spans(spans))
    for index, info in enumerate(dataset.shards):
        recorded = _hash_spans(_read_spans(dataset, index)).sum(dtype=np.uint64)
        if recorded != expected[index]:
            raise IntegrityError(f"{path}: differs from the lineage of {info.name}")
    return entries


_ENTRIES = 1 << 12
"""Entries of the inverse whose spans are derived at a time: a long document has many."""


def _derive_spans(
    dataset: SampleDataset, inverse: pa.Table, docs_D: I64, tokens_D: I64
) -> tuple[I64, tuple[I64, ...]]:
    """The spans of these entries, (N,) each: the shard; and row of the data set (0 in a corpus),
    token_start, token_end, doc and doc_token_start."""
    is_vsl = dataset.layout is VSL
    first = inverse["row" if is_vsl else "stream_start"].to_numpy()
    index = np.searchsorted(docs_D, inverse["doc"].to_numpy().astype(np.int64))
    stop = first + (1 if is_vsl else tokens_D[index])
    if (first < 0).any() or (stop > (dataset.rows if is_vsl else stream_tokens(dataset))).any():
        path = inverse_path(dataset.directory)
        raise IntegrityError(f"{path}: differs from the lineage: there are no such places")
    if dataset.layout is CORPUS:
        doc, shard, *spans = _find_corpus_spans(dataset, inverse, docs_D, tokens_D)
        return shard, (np.zeros_like(doc), spans[0], spans[1], doc, spans[2])
    found = locate_windows(inverse, tokens_D, docs_D, dataset)
    found = found.at(found.token_end > found.token_start)
    shard = np.searchsorted(dataset.starts, found.position, side="right") - 1
    doc, begin = docs_D[found.index], found.doc_token_start
    return shard, (found.position, found.token_start, found.token_end, doc, begin)


def _read_spans(dataset: SampleDataset, index: int) -> tuple[I64, ...]:
    """The same of what the lineage of one shard says."""
    spans = all_spans(dataset, index)
    row = spans.row
    if dataset.layout is not CORPUS:
        row = row + int(dataset.starts[index])
    if dataset.layout is SAMPLE:
        shard = dataset.directory / dataset.shards[index].name
        seed, split = dataset.params["seed"], dataset.params["split"]
        if not np.array_equal(stream_rows_at(row, dataset.rows, seed, split), stream_rows(shard)):
            raise IntegrityError(f"{shard}: lineage: its rows are not where the seed puts them")
    return row, spans.token_start, spans.token_end, spans.doc, spans.doc_token_start


def _hash_spans(columns: Sequence[I64]) -> U64:
    """A hash of every span, (N,)."""
    hashes = np.ones(len(columns[0]), np.uint64)
    for column in columns:
        hashes = mix64(hashes ^ column.astype(np.uint64))
    return hashes


NO_SOURCE = -1
"""What labels have that belong to no document: padding."""


def has_lineage(dataset: SampleDataset) -> bool:
    """Whether a data set is in a run directory with a table of its documents."""
    return (dataset.directory.parent.parent / layout.DOCUMENTS).exists()


class LabelSources:
    """The sources of a split of a run directory, by label. `names`: the sources, sorted.

    Raises InputError when the data set is not in the directory of a finished run or the run is too
    old to have the inverse of its lineage, IntegrityError for damage.
    """

    def __init__(self, dataset: SampleDataset) -> None:
        self._length = dataset.max_sequence_length
        table, inverse = DocumentTable(dataset.directory.parent.parent), Inverse(dataset)
        docs = [np.unique(part["doc"].to_numpy()).astype(np.int64) for part in inverse.parts()]
        docs_D = np.unique(np.concatenate([np.zeros(0, np.int64), *docs]))
        tokens_D, self.names, source_D = _read_about(table, docs_D)
        columns = [[np.zeros(0, np.int64)] * 4]
        for part in inverse.parts():
            w = locate_windows(part, tokens_D, docs_D, dataset)
            columns.append([w.position, w.label_start, w.label_end, source_D[w.index]])
        position, start, end, source = map(np.concatenate, zip(*columns, strict=True))
        order = np.lexsort((start, position))
        self._position, self._start, self._end = position[order], start[order], end[order]
        self._source = source[order].astype(np.int16)

    def of(self, rows_B: I64) -> I16:
        """For every label of these rows the index of its source in `names`, (B, S); NO_SOURCE for
        padding."""
        out = np.full((len(rows_B), self._length), NO_SOURCE, np.int16)
        first = np.searchsorted(self._position, rows_B)
        count = np.searchsorted(self._position, rows_B, side="right") - first
        row = np.repeat(np.arange(len(rows_B)), count)
        window = expand_ranges(first, count)
        for place, which in zip(row.tolist(), window.tolist(), strict=True):
            out[place, self._start[which] : self._end[which]] = self._source[which]
        return out


def _read_about(table: DocumentTable, docs_D: I64) -> tuple[I64, tuple[str, ...], I64]:
    """Tokens of documents (ascending), the names of all their sources, and which one each has."""
    tokens, sources = [np.zeros(0, np.int64)], []
    for first, part in table.parts(["source", "tokens"]):
        low, high = np.searchsorted(docs_D, [first, first + len(part)])
        mine = part.take(docs_D[low:high] - first)
        tokens.append(mine["tokens"].to_numpy().astype(np.int64))
        sources += mine["source"].to_pylist()
    names = tuple(sorted(set(sources)))
    index = {name: place for place, name in enumerate(names)}
    return np.concatenate(tokens), names, np.array([index[name] for name in sources], np.int64)
