"""The shuffled stream of a split, and parts of it read from the shards that hold its tokens."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard
from pipeline.engine.ranges import copy_table
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs
from pipeline.hdf5.packing import ListRows, Tokens
from pipeline.stages.shuffle.slices import Slice, fill_column, find_ranks, order_by_rank


@dataclass(frozen=True, kw_only=True)
class SplitStream:
    """A split and its number; its buckets in order, but for empty ones: of each the shard that
    lists its documents, how many tokens they have, and the shards, sorted by split and rank, that
    these are in."""

    name: str
    number: int
    buckets: tuple[Shard, ...]
    bucket_tokens: tuple[int, ...]
    documents: int
    shards: tuple[Shared[tuple[Shard, ...]], ...]

    @property
    def tokens(self) -> int:
        """T: all tokens, one EOS per document included."""
        return sum(self.bucket_tokens)

    def rows(self, max_sequence_length: int) -> int:
        """ceil((T - 1) / MSL), the number of packed sequences."""
        return -(-max(0, self.tokens - 1) // max_sequence_length)

    @cached_property
    def starts(self) -> list[int]:
        """The stream token that each bucket begins with, and T."""
        return [*accumulate(self.bucket_tokens, initial=0)]

    def buckets_with(self, first: int, stop: int) -> "Buckets":
        """The buckets that hold stream tokens [first, stop)."""
        low = bisect_right(self.starts, first) - 1
        high = bisect_left(self.starts, min(stop, self.tokens))
        several = list(dict.fromkeys(self.shards[low:high]))
        shards = several[0]
        if len(several) > 1:
            shards = Shared(tuple(dict.fromkeys(s for each in several for s in each.value)))
        return Buckets(
            split=self.number, begin=self.starts[low], lists=self.buckets[low:high], shards=shards
        )


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Buckets in a row of a stream, of which the first begins with stream token `begin`: of each
    the shard that lists its documents, and the shards that their tokens are in."""

    split: int
    begin: int
    lists: tuple[Shard, ...]
    shards: Shared[tuple[Shard, ...]]

    @property
    def inputs(self) -> tuple[Shard | Shared[tuple[Shard, ...]], ...]:
        """What a task reads that reads tokens of them."""
        return (*self.lists, self.shards)


@dataclass(frozen=True)
class StreamPart:
    """Whole documents of a stream in order, of which the first begins with stream token `start`:
    doc_id and length, (D,) each, and their tokens one after the other, (T,)."""

    start: int
    doc_id: npt.NDArray[np.uint64]
    length: I64
    tokens: Tokens


def read_stream(
    buckets: Buckets, first: int, stop: int, inputs: Inputs, end: tuple[int, int] = (0, 0)
) -> StreamPart:
    """The documents with stream tokens [first, stop). Behind their tokens is room for some more,
    which hold an id: `end` says how many and which.

    Raises IntegrityError where the shards have other documents than the lists say.
    """
    listed = pa.concat_tables(inputs.table(shard) for shard in buckets.lists)
    length, rank = listed["tokens"].to_numpy(), listed["rank"].to_numpy()
    ends = buckets.begin + np.cumsum(length)
    low = int(np.searchsorted(ends, first, side="right"))
    high = int(np.searchsorted(ends - length, stop))
    # All documents of a rank, as it is by ranks that they are found.
    low, high = np.searchsorted(rank, rank[low]), np.searchsorted(rank, rank[high - 1], "right")
    length, doc_id = length[low:high], listed["doc_id"].to_numpy()[low:high]
    bounds = (int(rank[low]), int(rank[high - 1]) + 1)
    slices, order, found = _find_documents(buckets, bounds, inputs)
    if not np.array_equal(found, length):
        raise IntegrityError(
            f"{inputs.locate(buckets.lists[0])}: lists other documents than the shards of tokens "
            "have; run again the command that made this run"
        )
    kind = inputs.open(buckets.shards.value[0]).empty.schema.field("tokens").type
    dtype = np.dtype(kind.value_type.to_pandas_dtype())
    room, token = end
    tokens = np.empty(int(length.sum()) + room, dtype)
    tokens[len(tokens) - room :] = token
    rows = ListRows(kind, length * dtype.itemsize, tokens.view(np.uint8))
    fill_column(rows, slices, "tokens", order, inputs)
    return StreamPart(int(ends[low] - length[0]), doc_id, length, tokens)


def _find_documents(
    buckets: Buckets, bounds: tuple[int, int], inputs: Inputs
) -> tuple[list[Slice], I64, I64]:
    """Where the documents with ranks in [low, high) are, their order, and their lengths in it."""
    slices, parts, lengths = [], [], [np.zeros(0, np.int64)]
    for shard in buckets.shards.value:
        rows = inputs.open(shard)
        first, stop = find_ranks(rows, buckets.split, *bounds)
        if first < stop:
            slices.append(Slice(shard, first, stop))
            parts.append(copy_table(rows.read(["doc_key", "rank"], first, stop)))
            lengths.append(rows.lengths("tokens", first, stop))
    order = order_by_rank(pa.concat_tables(parts)) if parts else np.zeros(0, np.int64)
    return slices, order, np.concatenate(lengths)[order]
