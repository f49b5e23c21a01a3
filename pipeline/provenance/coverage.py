"""Whether lineage names the document of every token of a split, and nothing else."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError
from pipeline.hdf5.format import CORPUS, LINEAGE_SUFFIX, SHARD_SUFFIX, VSL
from pipeline.hdf5.read import SampleDataset

_BLOCK_TOKENS = 1 << 19


class MaskedLabels(Protocol):
    """Labels [start, stop) of rows of a shard that are masked, (N,) each; of `vsl` one for each
    segment."""

    @property
    def row(self) -> I64: ...  # noqa: D102
    @property
    def start(self) -> I64: ...  # noqa: D102
    @property
    def stop(self) -> I64: ...  # noqa: D102


_NONE: Mapping[int, MaskedLabels] = {}


def lineage_path(shard: Path) -> Path:
    """The lineage beside an HDF5 shard."""
    return shard.with_name(shard.name.removesuffix(SHARD_SUFFIX) + LINEAGE_SUFFIX)


def read_lineage(dataset: SampleDataset, index: int) -> pa.Table:
    """The lineage of shard `index`."""
    return pq.read_table(lineage_path(dataset.directory / dataset.shards[index].name))


def check_lineage(
    dataset: SampleDataset,
    split: str,
    documents: pa.Table,
    masked: Mapping[int, MaskedLabels] = _NONE,
) -> tuple[int, int]:
    """Spans of the split, and those that end with the last label of their document.

    `documents` has the columns state, split and tokens; `masked` names labels that a takedown
    masked, by shard. Raises IntegrityError naming the shard unless its spans cover every token that
    is not padding exactly once, of `vsl` one span per segment, and name kept documents of this
    split and tokens that they have.
    """
    spans = ends = 0
    for index, shard in enumerate(dataset.shards):
        table = read_lineage(dataset, index)
        named = documents.take(table["doc"])
        first = table["doc_token_start"].to_numpy()
        last = first + table["token_end"].to_numpy() - table["token_start"].to_numpy()
        tokens = named["tokens"].to_numpy().astype(np.int64)
        labelled = tokens - 1 if dataset.layout is VSL else tokens
        kept = pc.and_(pc.equal(named["state"], "kept"), pc.equal(named["split"], split))
        right = pc.all(kept, min_count=0).as_py() and bool((last <= labelled).all())
        if not right or not _covers(dataset, index, table, masked.get(index)):
            raise IntegrityError(
                f"{dataset.directory / shard.name}: lineage does not cover its tokens exactly"
            )
        spans += len(table)
        ends += int((last == labelled).sum())
    return spans, ends


def _covers(
    dataset: SampleDataset, index: int, table: pa.Table, masked: MaskedLabels | None
) -> bool:
    start, end = (table[name].to_numpy().astype(np.int64) for name in ("token_start", "token_end"))
    if dataset.layout is CORPUS:
        ends = np.array([dataset.shards[index].rows])
        return _tiles(np.zeros(len(start), np.int64), start, end, ends)
    row = table["row"].to_numpy().astype(np.int64)
    labels, segments = _found(dataset, index)
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


def _found(dataset: SampleDataset, index: int) -> tuple[I64, I64]:
    """What the rows of a shard say: labels of each, (R,), and row and first column of the segments
    of `vsl`, (N, 2)."""
    labels: list[I64] = []
    segments: list[I64] = [np.zeros((0, 2), np.int64)]
    for first, block in _blocks(dataset, index):
        labels.append(block[:, 1].sum(axis=1, dtype=np.int64))
        if dataset.layout is VSL:
            places = np.argwhere((block[:, 1] == 1) & (block[:, 4] == 0))
            segments.append(places.astype(np.int64) + np.array([first, 0]))
    return np.concatenate([np.zeros(0, np.int64), *labels]), np.concatenate(segments)


def _blocks(dataset: SampleDataset, index: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    least = max(1, _BLOCK_TOKENS // dataset.max_sequence_length)
    yield from dataset.files.open(index).blocks(least)
