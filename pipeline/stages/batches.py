"""The documents that dedup compares: those of earlier batches first, then this run's.

Every document has a dense index: its position when all documents shards of all batches are put one
after the other. Indices travel as uint32, so one run compares at most 2^32 - 2 documents.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from dedup.arrays import I64, U8
from pipeline.core.errors import InputError
from pipeline.core.manifest import Shard
from pipeline.engine.arrow_shard import ArrowShard
from pipeline.engine.stage import Inputs

MOST_DOCUMENTS = (1 << 32) - 2
_OPEN_TABLES = 256
"""Memory-mapped tables at a time; each holds a file open."""

_MOST_TOUCHED = 128 << 20
_FAULT = 128 << 10
"""Bytes around a text that may come into memory with it."""

Kind = Literal["documents", "signatures", "keep", "decisions"]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One run's shards, parallel to its documents shards but for `runs`, each of `run_counts`
    documents. `location` is the directory of an earlier run (empty for this one) and no part of any
    fingerprint; `name` identifies the batch."""

    documents: tuple[Shard, ...]
    name: str = ""
    location: str = ""
    counts: tuple[int, ...] = ()
    signatures: tuple[Shard, ...] = ()
    runs: tuple[Shard, ...] = ()
    run_counts: tuple[int, ...] = ()
    keep: tuple[Shard, ...] = ()
    decisions: tuple[Shard, ...] = ()

    @property
    def total(self) -> int:
        """Documents in this batch."""
        return sum(self.counts)


@dataclass(frozen=True, kw_only=True)
class SampledBatch(Batch):
    """An earlier batch with samples of its shingles, parallel to its documents shards, and how many
    each holds. A class of its own, so that the jobs of other batches, and so their fingerprints,
    are what they were without it."""

    samples: tuple[Shard, ...]
    sampled: tuple[int, ...]


@dataclass(frozen=True)
class Batches:
    """Earlier batches in the order given, then this run's."""

    all: tuple[Batch, ...]

    @property
    def first_new(self) -> int:
        """Dense index of this run's first document."""
        return sum(batch.total for batch in self.all[:-1])

    @property
    def total(self) -> int:
        """Documents over all batches."""
        return sum(batch.total for batch in self.all)

    def check_size(self) -> None:
        """Raises InputError when there are more documents than dense indices."""
        if self.total > MOST_DOCUMENTS:
            raise InputError(
                f"{self.total:,} documents to compare; one run compares at most "
                f"{MOST_DOCUMENTS:,}: split the inputs and name the first part in dedup.indexes"
            )


@dataclass
class Corpus:
    """Verified access to columns of any documents of all batches by dense index."""

    batches: Batches
    inputs: Inputs
    _opened: dict[tuple[Kind, int], ArrowShard] = field(default_factory=dict)
    _touched: int = 0

    def __post_init__(self) -> None:
        counts = [count for batch in self.batches.all for count in batch.counts]
        self._bases = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._owner = [(n, i) for n, b in enumerate(self.batches.all) for i in range(len(b.counts))]

    def batch_number(self, shard: int) -> int:
        """Which batch a documents shard belongs to."""
        return self._owner[shard][0]

    def is_old(self, shard: int) -> bool:
        """Whether a documents shard belongs to an earlier batch."""
        return self.batch_number(shard) < len(self.batches.all) - 1

    def table(self, kind: Kind, shard: int) -> pa.Table:
        """The table of one kind behind the `shard`-th documents shard over all batches."""
        return self._open(kind, shard).read()

    def _open(self, kind: Kind, shard: int) -> ArrowShard:
        key = (kind, shard)
        if key not in self._opened:
            if len(self._opened) == _OPEN_TABLES:
                self._opened.pop(next(iter(self._opened)))
            number, position = self._owner[shard]
            batch = self.batches.all[number]
            inputs = Inputs(Path(batch.location)) if batch.location else self.inputs
            self._opened[key] = inputs.open(getattr(batch, kind)[position])
        return self._opened[key]

    def split_by_shard(self, indices: I64) -> list[tuple[int, slice, I64]]:
        """Ascending dense indices cut by shard: (shard, their places, rows in the shard)."""
        if not len(indices):
            return []
        shard = np.searchsorted(self._bases, indices, side="right") - 1
        cuts = np.flatnonzero(np.diff(shard, prepend=-1))
        ends = np.append(cuts[1:], len(indices))
        return [
            (int(shard[a]), slice(int(a), int(b)), indices[a:b] - self._bases[shard[a]])
            for a, b in zip(cuts, ends, strict=True)
        ]

    def take(self, kind: Kind, columns: list[str], indices: I64) -> pa.Table:
        """Rows of ascending dense indices, in that order."""
        parts = [
            self._open(kind, shard).take(columns, rows)
            for shard, _, rows in self.split_by_shard(indices)
        ]
        if not parts:
            return self._open(kind, 0).empty.select(columns)
        return pa.concat_tables(parts)

    def text(self, index: int) -> U8:
        """The UTF-8 bytes of one document's text, uint8, without a copy.

        Pages of a mapped file count as memory of the process while it is mapped, so now and then
        all files are closed; what was handed out stays.
        """
        if self._touched > _MOST_TOUCHED:
            self._opened.clear()
            self._touched = 0
        shard = int(np.searchsorted(self._bases, index, side="right")) - 1
        row = index - int(self._bases[shard])
        text = self._open("documents", shard).text("text", row)
        self._touched += len(text) + _FAULT
        return text
