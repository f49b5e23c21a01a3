"""Whether the inverse of a split says what its lineage says, no more and no less."""

import numpy as np

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError
from pipeline.hdf5.format import CORPUS, VSL
from pipeline.hdf5.read import SampleDataset
from pipeline.provenance.forward import stream_tokens
from pipeline.provenance.inverse import Inverse, inverse_path, stream_rows_at
from pipeline.provenance.lineage_shards import RowSpans, all_spans, stream_rows


def check_inverse(dataset: SampleDataset) -> int | None:
    """How many entries the inverse has, None when the run was made before there was one.

    Raises IntegrityError unless its entries are just the beginnings of documents (of `vsl` the
    segments) of the lineage, and the rows of `sample` stand where their keyed permutation says.
    """
    path = inverse_path(dataset.directory)
    if not path.is_file():
        return None
    found = [_entries(dataset, index) for index in range(len(dataset.shards))]
    width = 4 if dataset.layout is VSL else 2
    entries = np.unique(np.concatenate([np.zeros((0, width), np.int64), *found]), axis=0)
    parts = [_columns(part.columns) for part in Inverse(dataset).parts()]
    recorded = np.concatenate([np.zeros((0, width), np.int64), *parts])
    if dataset.layout is not VSL:  # the last token of a stream is no input, so in no span
        last = recorded[:, 1] == stream_tokens(dataset) - 1
        recorded = recorded[~last]
        entries = entries[entries[:, 1] != stream_tokens(dataset) - 1]
    order = np.lexsort(recorded.T[::-1])
    if not np.array_equal(recorded[order], entries) or (np.diff(recorded[:, 0]) < 0).any():
        raise IntegrityError(f"{path}: differs from the lineage next to the shards")
    return sum(map(len, parts))


def _columns(columns: list[object]) -> I64:
    return np.stack([np.asarray(column).astype(np.int64) for column in columns], axis=1)


def _entries(dataset: SampleDataset, index: int) -> I64:
    """The entries that the lineage of one shard asks for, each (N, 2), of `vsl` (N, 4)."""
    spans = all_spans(dataset, index)
    first = int(dataset.starts[index])
    if dataset.layout is VSL:
        row = spans.row + first
        return np.stack([spans.doc, spans.doc_token_start, row, spans.token_start], axis=1)
    if dataset.layout is CORPUS:
        start = first + spans.token_start - spans.doc_token_start
    else:
        row = _checked_rows(dataset, index, spans)
        start = row * dataset.max_sequence_length + spans.token_start - spans.doc_token_start
    return np.unique(np.stack([spans.doc, start], axis=1), axis=0)


def _checked_rows(dataset: SampleDataset, index: int, spans: RowSpans) -> I64:
    """The row of the stream of every span."""
    shard = dataset.directory / dataset.shards[index].name
    found = stream_rows(shard)
    seed, split = dataset.params["seed"], dataset.params["split"]
    row = spans.row + int(dataset.starts[index])
    if not np.array_equal(stream_rows_at(row, dataset.rows, seed, split), found):
        raise IntegrityError(f"{shard}: lineage: its rows are not where the seed puts them")
    return found
