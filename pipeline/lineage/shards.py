"""Lineage next to the shards, by row: reading and checking it, and what takedowns masked.

The spans of a row (of a corpus: of a shard) follow one another from 0 without a gap, which `prep
verify` proves; so a span begins where the one before it ends, and that is not read. Row k of a
corpus has inputs [k S, k S + S) of the stream and labels one token on, over the borders of files.

A data set that takedowns were applied to names its ancestors; version v of it is the one before the
v-th takedown, the present one is the last. DIR/takedowns/NAME.parquet lists the documents of one.

Shapes: R rows, P pieces of rows in one file each, N spans.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError, escape_text
from pipeline.core.mirror.fetching import fetch
from pipeline.hdf5.format import CORPUS, LINEAGE_SUFFIX, SHARD_SUFFIX, VSL
from pipeline.hdf5.read import SampleDataset
from pipeline.lineage.tables import expand_ranges
from pipeline.runs import layout
from pipeline.runs.parts import wrap_read_errors

_BLOCK_TOKENS = 1 << 19


@dataclass(frozen=True)
class MaskedSpans:
    """Columns [start, stop) of rows of one shard, and the document (row of documents.parquet) they
    belong to, (N,) each; sorted by row and start. In a corpus `row` is 0 and columns are tokens."""

    row: I64
    start: I64
    stop: I64
    doc: I64

    def __len__(self) -> int:
        return len(self.row)

    @property
    def columns(self) -> int:
        """How many columns they hold."""
        return int((self.stop - self.start).sum())

    def flat(self) -> tuple[I64, I64]:
        """Row and column of every place."""
        lengths = self.stop - self.start
        return np.repeat(self.row, lengths), expand_ranges(self.start, lengths)


_NONE: Mapping[int, MaskedSpans] = {}


def lineage_path(shard: Path) -> Path:
    """The lineage next to an HDF5 shard."""
    return shard.with_name(shard.name.removesuffix(SHARD_SUFFIX) + LINEAGE_SUFFIX)


def read_lineage(dataset: SampleDataset, index: int) -> pa.Table:
    """The lineage of shard `index`."""
    path = fetch(lineage_path(dataset.directory / dataset.shards[index].name))
    with pq.ParquetFile(path) as file:  # `read_table` lets a thread close it some time later
        return file.read()


def check_lineage(
    dataset: SampleDataset,
    masked: Mapping[int, MaskedSpans] = _NONE,
    documents: pa.Table | None = None,
) -> tuple[int, int]:
    """Spans of the split, and those that begin with the first token of a document.

    `masked` names labels that a takedown masked, by shard; `documents`, for a run without an
    inverse, which else says the same, has the columns state, split and tokens. Raises
    IntegrityError naming the shard unless its spans cover every token that is not padding exactly
    once, of `vsl` one span per segment, and name kept documents of this split and tokens that they
    have.
    """
    spans = begins = 0
    for index, shard in enumerate(dataset.shards):
        table = read_lineage(dataset, index)
        right = documents is None or _are_of(dataset, table, documents)
        if not right or not _covers(dataset, index, table, masked.get(index)):
            raise IntegrityError(
                f"{dataset.directory / shard.name}: lineage does not cover its tokens exactly"
            )
        spans += len(table)
        begins += int((table["doc_token_start"].to_numpy() == 0).sum())
    return spans, begins


def _are_of(dataset: SampleDataset, table: pa.Table, documents: pa.Table) -> bool:
    """Whether spans are of kept documents of the split that have so many tokens."""
    rows = documents.take(table["doc"])
    last = pc.add(table["doc_token_start"], pc.subtract(table["token_end"], table["token_start"]))
    labelled = rows["tokens"].to_numpy().astype(np.int64) - (dataset.layout is VSL)
    split = dataset.directory.name
    is_kept = pc.and_(pc.equal(rows["state"], "kept"), pc.equal(rows["split"], split))
    return bool(pc.all(is_kept, min_count=0).as_py() and (last.to_numpy() <= labelled).all())


def _covers(
    dataset: SampleDataset, index: int, table: pa.Table, masked: MaskedSpans | None
) -> bool:
    start, end = (table[name].to_numpy().astype(np.int64) for name in ("token_start", "token_end"))
    if dataset.layout is CORPUS:
        ends = np.array([dataset.shards[index].rows])
        return _tiles(np.zeros(len(start), np.int64), start, end, ends)
    row = table["row"].to_numpy().astype(np.int64)
    labels, segments = _read_labels(dataset, index)
    if masked is not None:
        np.add.at(labels, masked.row, masked.stop - masked.start)
        segments = np.concatenate([segments, np.stack([masked.row, masked.start], axis=1)])
        segments = segments[np.lexsort((segments[:, 1], segments[:, 0]))]
    if not _tiles(row, start, end, labels):
        return False
    return dataset.layout is not VSL or np.array_equal(np.stack([row, start], axis=1), segments)


def _tiles(row: I64, start: I64, end: I64, ends_R: I64) -> bool:
    """Whether the spans of every row, in order, go from 0 to its end without gap or overlap."""
    first = np.r_[True, row[1:] != row[:-1]][: len(row)]
    follows = np.where(first, start == 0, start == np.r_[0, end[:-1]][: len(row)])
    reached = np.zeros(len(ends_R), np.int64)
    last = np.r_[first[1:], True][: len(row)]
    reached[row[last]] = end[last]
    in_order = bool((np.diff(row) >= 0).all())
    return in_order and bool((follows & (end > start)).all()) and np.array_equal(reached, ends_R)


def _read_labels(dataset: SampleDataset, index: int) -> tuple[I64, I64]:
    """What the rows of a shard say: labels of each, (R,), and row and first column of the segments
    of `vsl`, (N, 2)."""
    labels: list[I64] = []
    segments: list[I64] = [np.zeros((0, 2), np.int64)]
    least = max(1, _BLOCK_TOKENS // dataset.max_sequence_length)
    for first, block in dataset.files.open(index).blocks(least):
        labels.append(block[:, 1].sum(axis=1, dtype=np.int64))
        if dataset.layout is VSL:
            places = np.argwhere((block[:, 1] == 1) & (block[:, 4] == 0))
            segments.append(places.astype(np.int64) + np.array([first, 0]))
    return np.concatenate([np.zeros(0, np.int64), *labels]), np.concatenate(segments)


_COLUMNS = ["token_end", "doc", "doc_token_start"]


@dataclass(frozen=True)
class RowSpans:
    """Spans of lineage, (N,) each: row of the shard (0 in a corpus), columns or tokens of the file,
    dense index, and first token inside the document."""

    row: I64
    token_start: I64
    token_end: I64
    doc: I64
    doc_token_start: I64

    def __len__(self) -> int:
        return len(self.doc)

    def at(self, index_M: I64) -> "RowSpans":
        """Some of them, in this order."""
        return RowSpans(*(column[index_M] for column in vars(self).values()))

    @staticmethod
    def joined(parts: Sequence["RowSpans"]) -> "RowSpans":
        """Parts one behind the other."""
        columns = zip(*(vars(part).values() for part in (_NO_SPANS, *parts)), strict=True)
        return RowSpans(*(np.concatenate(column) for column in columns))


_NO_SPANS = RowSpans(*(np.zeros(0, np.int64) for _ in range(5)))


def spans_of_rows(shard: Path, rows_R: I64) -> tuple[RowSpans, I64]:
    """The spans of these rows of a shard, row by row in this order, and how many each has, (R,)."""
    table = _read_columns(shard, ["row", *_COLUMNS])
    row = table["row"].to_numpy()
    first = np.searchsorted(row, rows_R)
    count = np.searchsorted(row, rows_R, side="right") - first
    return _make_spans(table, row, expand_ranges(first, count)), count


def spans_of_ranges(shard: Path, first_N: I64, stop_N: I64) -> tuple[RowSpans, I64]:
    """The spans of a corpus shard that hold some of the tokens [first, stop) of each range, range
    by range, and how many each has, (N,)."""
    table = _read_columns(shard, _COLUMNS)
    end = table["token_end"].to_numpy()
    begin = np.searchsorted(end, first_N, side="right")
    count = np.searchsorted(end, stop_N) + 1 - begin
    return _make_spans(table, np.zeros(len(end), np.int64), expand_ranges(begin, count)), count


def all_spans(dataset: SampleDataset, index: int) -> RowSpans:
    """The whole lineage of one shard."""
    shard = dataset.directory / dataset.shards[index].name
    is_corpus = dataset.layout is CORPUS
    table = _read_columns(shard, _COLUMNS if is_corpus else ["row", *_COLUMNS])
    row = np.zeros(len(table), np.int64) if is_corpus else table["row"].to_numpy()
    return _make_spans(table, row, np.arange(len(table)))


def stream_rows(shard: Path) -> I64:
    """The row of the stream of every span of a shard, as lineage has it."""
    return np.asarray(_read_columns(shard, ["stream_row"])["stream_row"].to_numpy())


def count_spans(shard: Path) -> int:
    """How many spans the lineage of a shard has."""
    with wrap_read_errors(lineage_path(shard)) as path:
        return int(pq.read_metadata(path).num_rows)


def _read_columns(shard: Path, columns: list[str]) -> pa.Table:
    with (
        wrap_read_errors(lineage_path(shard)) as path,
        pq.ParquetFile(pa.memory_map(str(path))) as file,
    ):
        return file.read(columns, use_threads=False)


def _make_spans(table: pa.Table, row_N: npt.NDArray[np.integer], index_M: I64) -> RowSpans:
    """Spans number `index_M` of a shard; `row_N` are the rows of all its spans."""
    end, doc, first = (table[name].to_numpy() for name in _COLUMNS)
    before = np.maximum(index_M - 1, 0)
    follows = (index_M > 0) & (row_N[before] == row_N[index_M])
    start = np.where(follows, end[before], 0)
    columns = (row_N[index_M], start, end[index_M], doc[index_M], first[index_M])
    return RowSpans(*(column.astype(np.int64) for column in columns))


@dataclass(frozen=True)
class CorpusWindows:
    """Spans of windows, window by window: the file of each, the span cut to the inputs there, and
    [label_start, label_end) of the tokens that are labels, as places in the file, (N,) each. Either
    range can be empty, never both."""

    shard: I64
    spans: RowSpans
    label_start: I64
    label_end: I64


def windows_of_corpus(dataset: SampleDataset, rows_R: I64) -> CorpusWindows:
    """The lineage of these rows of a corpus, in this order."""
    starts, length = dataset.starts, dataset.max_sequence_length
    row_P, shard_P = _split_by_file(rows_R * length, length, starts)
    begin_P = rows_R[row_P] * length - starts[shard_P]
    size_P = starts[shard_P + 1] - starts[shard_P]
    low_P, high_P = np.maximum(begin_P, 0), np.minimum(begin_P + length + 1, size_P)
    spans_by_window, pieces = [], [np.zeros(0, np.int64)]
    for index in np.unique(shard_P).tolist():
        here = np.flatnonzero((shard_P == index) & (high_P > low_P))
        path = dataset.directory / dataset.shards[index].name
        spans, count = spans_of_ranges(path, low_P[here], high_P[here])
        spans_by_window.append(spans)
        pieces.append(np.repeat(here, count))
    piece_N = np.concatenate(pieces)
    order = np.argsort(piece_N, kind="stable")
    piece_N, spans = piece_N[order], RowSpans.joined(spans_by_window).at(order)
    return _cut_spans(spans, shard_P[piece_N], begin_P[piece_N], length)


def _split_by_file(first_R: I64, length: int, starts: I64) -> tuple[I64, I64]:
    """The files that hold the length + 1 tokens from `first` on of each row: row and file, (P,)."""
    shard_R = np.searchsorted(starts, first_R, side="right") - 1
    count_R = np.searchsorted(starts, first_R + length, side="right") - shard_R
    row_P = np.repeat(np.arange(len(first_R)), count_R)
    return row_P, expand_ranges(shard_R, count_R)


def _cut_spans(spans: RowSpans, shard_N: I64, begin_N: I64, length: int) -> CorpusWindows:
    """Spans cut to windows that begin at `begin` of their file, or before the file: negative."""
    end_N = begin_N + length
    first = np.maximum(spans.token_start, begin_N)
    stop = np.maximum(first, np.minimum(spans.token_end, end_N))
    label = np.maximum(spans.token_start, begin_N + 1)
    label_stop = np.maximum(label, np.minimum(spans.token_end, end_N + 1))
    moved = spans.doc_token_start + first - spans.token_start
    cut = RowSpans(spans.row, first, stop, spans.doc, moved)
    return CorpusWindows(shard_N, cut, label, label_stop)


NEVER = 1 << 62


@dataclass(frozen=True)
class MaskedDocuments:
    """Documents (dense indices, ascending) and the first version in which each is masked, (N,)."""

    doc: I64
    since: I64

    def find_since(self, doc_M: I64) -> I64:
        """The first version in which each document is masked; NEVER where none is, (M,)."""
        if not len(self.doc):
            return np.full(len(doc_M), NEVER)
        place = np.minimum(np.searchsorted(self.doc, doc_M), len(self.doc) - 1)
        return np.where(self.doc[place] == doc_M, self.since[place], NEVER)

    def at(self, doc_M: I64, version: int) -> npt.NDArray[np.bool_]:
        """Whether each document is masked in a version, (M,)."""
        return np.asarray(self.find_since(doc_M) <= version)


def text_of_work(work_id: str) -> str:
    """Why a document was taken down that holds text of a work, as `because` has it."""
    return f"text of work {escape_text(work_id)}"


def find_taken_for_works(directory: Path, work_ids: Sequence[str]) -> dict[bytes, str]:
    """Documents (key -> why) that takedowns took for their text of one of these works. A takedown
    deletes what a rescan found, so that its record alone tells of them afterwards."""
    reasons = pa.array([text_of_work(work) for work in work_ids], pa.string())
    tables = _read_taken(directory, ["doc_key", "because"], pc.field("because").isin(reasons))
    rows = [row for _, table in tables for row in table.to_pylist()]
    return {row["doc_key"]: f"{row['because']}, taken down" for row in rows}


def find_takedowns(directory: Path, key: bytes) -> tuple[str, ...]:
    """The takedowns of a run, by name, that took this document."""
    of_document = pc.field("doc_key") == pa.scalar(key, pa.binary(len(key)))
    tables = _read_taken(directory, ["doc"], of_document)
    return tuple(name for name, table in tables if len(table))


def _read_taken(
    directory: Path, columns: list[str], chosen: pc.Expression
) -> Iterator[tuple[str, pa.Table]]:
    """Every takedown of a run by name, and the chosen documents that it took."""
    for path in sorted((directory / layout.TAKEDOWNS).glob("*.parquet")):
        with wrap_read_errors(path):
            table = pq.read_table(path, columns=columns, filters=chosen)
        yield path.stem, table


def read_masked_documents(directory: Path, dataset: SampleDataset) -> MaskedDocuments:
    """What takedowns masked in a data set of the run in `directory`. Raises IntegrityError when the
    record of one is missing."""
    docs, versions = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for version, name in enumerate(dataset.takedowns, 1):
        with wrap_read_errors(directory / layout.TAKEDOWNS / f"{name}.parquet") as path:
            doc = pq.read_table(path, columns=["doc"])["doc"].to_numpy().astype(np.int64)
        docs.append(doc)
        versions.append(np.full(len(doc), version))
    doc, first = np.unique(np.concatenate(docs), return_index=True)
    return MaskedDocuments(doc, np.concatenate(versions)[first])
