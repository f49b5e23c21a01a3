"""Where a document is in the shuffled stream of its split, and shards in that order.

The rank of a document is hash(seed, doc_key), so another document never moves it; further copies,
which a mixture asks for, have ranks of their own.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U64
from pipeline.core import ids, rng
from pipeline.hdf5.packing import take_rows


@dataclass(frozen=True)
class Places:
    """The M copies of N documents in stream order: row of the document, split, rank, (M,) each."""

    row: I64
    split: npt.NDArray[np.uint8]
    rank: U64

    def __getitem__(self, cut: slice) -> "Places":
        return Places(self.row[cut], self.split[cut], self.rank[cut])


def places(
    key_N2: U64, split_N: npt.NDArray[np.uint8], copies_N: npt.NDArray[np.integer], seed: int
) -> Places:
    """Where every copy of every document belongs: sorted by split, rank, key and copy."""
    count = copies_N.astype(np.int64)
    row = np.repeat(np.arange(len(key_N2)), count)
    copy = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    rank = np.empty(len(row), np.uint64)
    for number in range(int(count.max(initial=0))):
        mine = np.flatnonzero(copy == number)
        rank[mine] = rank_of_copy(key_N2[row[mine]], number, seed)
    split = split_N[row]
    order = ids.sort_order(key_N2[row], rank, split)
    return Places(row[order], split[order], rank[order])


def rank_of_copy(key_N2: U64, copy: int, seed: int) -> U64:
    """The rank of one copy of every document, (N,) uint64; that of copy 0 is the document's own."""
    return rng.rank(key_N2, seed, f"shuffle/{copy}" if copy else "shuffle")


def in_order(table: pa.Table, placed: Places) -> pa.Table:
    """The copies of the documents of a table with lists of `tokens`, with their split and rank."""
    names = table.drop_columns(["tokens"]).take(pa.array(placed.row)).combine_chunks()
    return (
        names.append_column("tokens", take_rows(table["tokens"], placed.row))
        .append_column("split", pa.array(placed.split))
        .append_column("rank", pa.array(placed.rank))
    )
