"""Where documents stand in a split's shards: spans of input ids, and spans of labels.

A label belongs to the document of the token it asks for. In `sample` that is the token after the
input, so the label of a document's first token stands one place before the document, and where the
document begins a row, at the end of the row before it in the stream. In `vsl` labels and inputs of
a document fill the same columns. A corpus has no labels.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, Mask
from pipeline.hdf5.read import SampleDataset
from pipeline.provenance.forward import locate_documents


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
        first = np.repeat(self.start - np.cumsum(lengths) + lengths, lengths)
        return np.repeat(self.row, lengths), first + np.arange(int(lengths.sum()))


@dataclass(frozen=True)
class ShardPlaces:
    """The places in shard `index` of a split. A shard without any is left out of lists of these."""

    index: int
    inputs: MaskedSpans
    labels: MaskedSpans
    first_docs: I64
    """The document of every copy that begins in this shard."""

    @property
    def rows(self) -> I64:
        """Rows of the shard that hold an input or a label, ascending."""
        return np.unique(np.concatenate([self.inputs.row, self.labels.row]))


def find_places(dataset: SampleDataset, gone: Mask, tokens: I64) -> list[ShardPlaces]:
    """The places of the documents that are `gone`, (documents,) bool; `tokens`, as many int64, are
    the tokens that each document has. They are looked up in the inverse of the split's lineage.
    Raises InputError when the run has none."""
    docs = np.flatnonzero(gone)
    places = locate_documents(dataset, docs, tokens[docs]).places
    names = [f"{dataset.directory.name}/{info.name}" for info in dataset.shards]
    shard = pc.index_in(places["file"], value_set=pa.array(names, pa.string())).to_numpy()
    columns = {name: _column(places, name) for name in _COLUMNS}
    order = np.lexsort((columns["token_start"], columns["row"], shard))
    columns = {name: column[order] for name, column in columns.items()}
    found = []
    for index in np.unique(shard).tolist():
        here = slice(*np.searchsorted(shard[order], [index, index + 1]))
        found.append(_in_shard(index, {name: column[here] for name, column in columns.items()}))
    return found


_COLUMNS = ("row", "token_start", "token_end", "doc", "doc_token_start", "label_start", "label_end")


def _column(places: pa.Table, name: str) -> I64:
    values: I64 = pc.fill_null(places[name], 0).to_numpy().astype(np.int64)
    return values


def _in_shard(index: int, columns: dict[str, I64]) -> ShardPlaces:
    """The places of one shard: `_COLUMNS` of its windows, by row and first input."""
    inputs, labels = (_spans(columns, *names) for names in _RANGES)
    begins = (columns["doc_token_start"] == 0) & (columns["token_end"] > columns["token_start"])
    return ShardPlaces(index, inputs, labels, columns["doc"][begins])


_RANGES = (("token_start", "token_end"), ("label_start", "label_end"))


def _spans(columns: dict[str, I64], first: str, last: str) -> MaskedSpans:
    """The windows in which this range holds something."""
    held = columns[last] > columns[first]
    return MaskedSpans(*(columns[name][held] for name in ("row", first, last, "doc")))
