"""Slices of many sorted shards put together in order, one shard open at a time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.core.manifest import Shard
from pipeline.engine.arrow_shard import ArrowShard
from pipeline.engine.ranges import copy_table
from pipeline.engine.stage import Inputs
from pipeline.hdf5.packing import ListRows, measure_byte_lengths

WHOLE = 1 << 64
"""One past the last rank."""


@dataclass(frozen=True)
class Slice:
    """Rows [first, stop) of a shard."""

    shard: Shard
    first: int
    stop: int


Slices = Iterable[tuple[Slice, pa.Table]]
"""Slices with their rows, from shards of the same columns."""


def slice_ranks(ranges: Iterable[tuple[Shard, int, int]], split: int, inputs: Inputs) -> Slices:
    """The rows of every scatter shard with ranks in [low, high) of one split, where there are any;
    one shard after the other, so that few files are open at a time."""
    for shard, low, high in ranges:
        rows = inputs.open(shard)
        first, stop = find_ranks(rows, split, low, high)
        if first < stop:
            yield Slice(shard, first, stop), rows.read(None, first, stop)


def find_ranks(rows: ArrowShard, split: int, low: int, high: int) -> tuple[int, int]:
    """The rows [first, stop) of a scatter shard with ranks in [low, high) of one split."""
    return rows.find("rank", low, high, *rows.find("split", split, split + 1))


def slice_positions(shards: Iterable[Shard], low: int, high: int, inputs: Inputs) -> Slices:
    """The rows of every shard sorted by `position` with positions in [low, high)."""
    for shard in shards:
        rows = inputs.open(shard)
        first, stop = rows.find("position", low, high)
        yield Slice(shard, first, stop), rows.read(None, first, stop)


Order = Callable[[pa.Table], I64]
"""Finds the order of rows by their narrow columns."""


def order_by_rank(rows: pa.Table) -> I64:
    """Ascending rank, then key."""
    return ids.sort_order(ids.keys_as_u64(rows["doc_key"]), rows["rank"].to_numpy())


def order_by_position(rows: pa.Table) -> I64:
    """Ascending position."""
    return np.argsort(rows["position"].to_numpy(), kind="stable")


def merge_slices(
    slices: Slices, empty: pa.Table, wide: Iterable[str], order: Order, inputs: Inputs
) -> pa.Table:
    """All rows in order, with the columns of `empty`, each in one chunk. `wide` columns (lists and
    texts) are read when the order is there, and copied to their place at once."""
    wide = [name for name in wide if name in empty.column_names]
    kept, narrow = [], [empty.drop_columns(wide)]
    lengths: dict[str, list[I64]] = {name: [np.zeros(0, np.int64)] for name in wide}
    for here, rows in slices:
        kept.append(here)
        narrow.append(copy_table(rows.drop_columns(wide)))
        for name in wide:
            lengths[name].append(measure_byte_lengths(rows[name]))
    whole = pa.concat_tables(narrow)
    order_M = order(whole)
    table = whole.take(pa.array(order_M)).combine_chunks()
    for name in wide:
        length_M = np.concatenate(lengths[name])[order_M]
        rows = ListRows(empty.schema.field(name).type, length_M)
        fill_column(rows, kept, name, order_M, inputs)
        table = table.append_column(name, rows.array())
    return table.select(empty.column_names)


def fill_column(
    rows: ListRows, slices: list[Slice], name: str, order_M: I64, inputs: Inputs
) -> None:
    """Fill `rows` with column `name` of all slices in this order of their M rows, one shard open at
    a time."""
    place = np.empty(len(order_M), np.int64)
    place[order_M] = np.arange(len(order_M))
    start = 0
    for part in slices:
        column = inputs.open(part.shard).read([name], part.first, part.stop)[name]
        for chunk in column.chunks:
            rows.fill(place[start : start + len(chunk)], chunk, np.arange(len(chunk)))
            start += len(chunk)
