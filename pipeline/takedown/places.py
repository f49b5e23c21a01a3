"""Where documents stand in a split's shards: spans of input ids, and spans of labels.

A label belongs to the document of the token it asks for. In `sample` that is the token after the
input, so the label of a document's first token stands one place before the document, and where the
document begins a row, at the end of the row before it in the stream. In `vsl` labels and inputs of
a document fill the same columns. A corpus has no labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import SampleDataset
from pipeline.provenance.coverage import lineage_path

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Spans:
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
        first = np.repeat(self.start - np.cumsum(lengths) + lengths, lengths)
        return np.repeat(self.row, lengths), first + np.arange(int(lengths.sum()))


@dataclass(frozen=True)
class ShardPlaces:
    """The places in shard `index` of a split. A shard without any is left out of lists of these."""

    index: int
    inputs: Spans
    labels: Spans
    first_docs: I64
    """The document of every copy that begins in this shard."""

    @property
    def rows(self) -> I64:
        """Rows of the shard that hold an input or a label, ascending."""
        return np.unique(np.concatenate([self.inputs.row, self.labels.row]))


def find_places(dataset: SampleDataset, gone: Mask, tokens: I64) -> list[ShardPlaces]:
    """The places of the documents that are `gone`, (documents,) bool; `tokens`, as many int64, are
    the tokens that each document has. Lineage is read one shard at a time."""
    tables = [_gone_spans(dataset, index, gone) for index in range(len(dataset.shards))]
    inputs = [_inputs(table) for table in tables]
    match dataset.layout.name:
        case "corpus":
            labels = [_NONE] * len(tables)
        case "vsl":
            labels = inputs
        case "sample":
            own = [_own_labels(dataset, table, tokens) for table in tables]
            before = _labels_before(dataset, tables)
            labels = [_joined(a, b) for a, b in zip(own, before, strict=True)]
    begun = [_column(t, "doc")[_column(t, "doc_token_start") == 0] for t in tables]
    return [
        ShardPlaces(index, *found)
        for index, found in enumerate(zip(inputs, labels, begun, strict=True))
        if len(found[0]) or len(found[1])
    ]


_COLUMNS = ["token_start", "token_end", "doc", "doc_token_start"]
_EMPTY = np.zeros(0, np.int64)
_NONE = Spans(_EMPTY, _EMPTY, _EMPTY, _EMPTY)


def _gone_spans(dataset: SampleDataset, index: int, gone: Mask) -> pa.Table:
    columns = _COLUMNS if dataset.layout is CORPUS else [*_COLUMNS, "row", "stream_row"]
    table = _lineage(dataset, index, columns)
    return table.filter(pa.array(gone[table["doc"].to_numpy()]))


def _lineage(dataset: SampleDataset, index: int, columns: Sequence[str]) -> pa.Table:
    path = lineage_path(dataset.directory / dataset.shards[index].name)
    return pq.read_table(path, columns=list(columns))


def _column(table: pa.Table, name: str) -> I64:
    values: I64 = table[name].to_numpy().astype(np.int64)
    return values


def _inputs(table: pa.Table) -> Spans:
    start, stop, doc = (_column(table, name) for name in ("token_start", "token_end", "doc"))
    row = _column(table, "row") if "row" in table.column_names else np.zeros(len(doc), np.int64)
    return Spans(row, start, stop, doc)


def _own_labels(dataset: SampleDataset, table: pa.Table, tokens: I64) -> Spans:
    """Labels in the rows of the inputs: one place before these. The last label of the stream asks
    for a token that is no input of any row."""
    spans = _inputs(table)
    last_row = _column(table, "stream_row") == dataset.rows - 1
    behind = _column(table, "doc_token_start") + spans.stop - spans.start
    goes_on = last_row & (behind < tokens[spans.doc])
    start, stop = np.maximum(spans.start, 1) - 1, spans.stop - 1 + goes_on
    return _kept(Spans(spans.row, start, stop, spans.doc))


def _labels_before(dataset: SampleDataset, tables: list[pa.Table]) -> list[Spans]:
    """Per shard, last labels of rows whose next row in the stream begins with such a document."""
    stream_row = np.concatenate([_EMPTY, *(_column(t, "stream_row") for t in tables)])
    first = np.concatenate([_EMPTY, *(_column(t, "token_start") for t in tables)]) == 0
    doc = np.concatenate([_EMPTY, *(_column(t, "doc") for t in tables)])
    chosen = first & (stream_row > 0)
    wanted, doc = stream_row[chosen] - 1, doc[chosen]
    order = np.argsort(wanted)
    wanted, doc = wanted[order], doc[order]
    if not len(wanted):
        return [_NONE] * len(tables)
    last = dataset.max_sequence_length - 1
    found = []
    for index in range(len(tables)):
        table = _lineage(dataset, index, ["row", "stream_row"])
        there, at = np.unique(_column(table, "stream_row"), return_index=True)
        place = np.searchsorted(there, wanted)
        here = (place < len(there)) & (there[np.minimum(place, len(there) - 1)] == wanted)
        row = _column(table, "row")[at[place[here]]]
        column = np.full(len(row), last, np.int64)
        found.append(Spans(row, column, column + 1, doc[here]))
    return found


def _joined(first: Spans, second: Spans) -> Spans:
    parts = [np.concatenate(pair) for pair in zip(vars(first).values(), vars(second).values(),
                                                  strict=True)]  # fmt: skip
    order = np.lexsort((parts[1], parts[0]))
    return Spans(*(part[order] for part in parts))


def _kept(spans: Spans) -> Spans:
    """Without those that hold nothing."""
    filled = spans.stop > spans.start
    return Spans(*(column[filled] for column in vars(spans).values()))
