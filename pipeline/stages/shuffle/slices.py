"""Slices of many sorted shards put together in order, one shard open at a time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.core.manifest import Shard
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
        first, stop = rows.find("rank", low, high, *rows.find("split", split, split + 1))
        if first < stop:
            yield Slice(shard, first, stop), rows.read(None, first, stop)


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
        kind, length_M = empty.schema.field(name).type, np.concatenate(lengths[name])
        column = _gather_column(kept, name, kind, length_M, order_M, inputs)
        table = table.append_column(name, column)
    return table.select(empty.column_names)


def _gather_column(
    slices: list[Slice],
    name: str,
    kind: pa.DataType,
    byte_length_M: I64,
    order_M: I64,
    inputs: Inputs,
) -> pa.Array:
    """Column `name` of all slices in this order of their M rows, one shard open at a time."""
    rows = ListRows(kind, byte_length_M[order_M])
    place = np.empty(len(order_M), np.int64)
    place[order_M] = np.arange(len(order_M))
    start = 0
    for part in slices:
        column = inputs.open(part.shard).read([name], part.first, part.stop)[name]
        for chunk in column.chunks:
            rows.fill(place[start : start + len(chunk)], chunk, np.arange(len(chunk)))
            start += len(chunk)
    return rows.array()
