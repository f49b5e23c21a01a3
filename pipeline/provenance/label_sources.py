"""Which source every label of a split belongs to, for losses by source.

Follows from the inverse of lineage alone, for all three formats; shards and their spans are not
read. Memory: some 30 bytes for every document in a row, so it is meant for validation splits; of
documents.parquet one row group at a time is read. Shapes: B rows, S tokens (MSL), W windows, D
documents.
"""

import numpy as np

from dedup.arrays import I16, I64
from pipeline import layout
from pipeline.hdf5.read import SampleDataset
from pipeline.provenance.document_table import DocumentTable
from pipeline.provenance.forward import windows_of
from pipeline.provenance.inverse import Inverse

NO_SOURCE = -1
"""What labels have that belong to no document: padding."""


def has_lineage(dataset: SampleDataset) -> bool:
    """Whether a data set stands in a run directory that tells of its documents."""
    return (dataset.directory.parent.parent / layout.DOCUMENTS).is_file()


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
        tokens_D, self.names, source_D = _about(table, docs_D)
        columns = [[np.zeros(0, np.int64)] * 4]
        for part in inverse.parts():
            w = windows_of(part, tokens_D, docs_D, dataset)
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
        window = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        for place, which in zip(row.tolist(), window.tolist(), strict=True):
            out[place, self._start[which] : self._end[which]] = self._source[which]
        return out


def _about(table: DocumentTable, docs_D: I64) -> tuple[I64, tuple[str, ...], I64]:
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
