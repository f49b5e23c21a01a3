"""The global shuffle of every split, in two rounds: scatter (each shard sorted by split and rank),
gather (one bucket of ranks).

The rank of a document is hash(seed, doc_key), so another document never moves it; further copies,
which a mixture asks for, have ranks of their own. A bucket is one slice of each scatter shard; the
stream of a split is its buckets one after the other. `splits` writes again, from documents.parquet,
what the keep-list wrote: the run of `prep repack` may have been cleaned up.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, U64
from pipeline.config.prep import Config
from pipeline.core import ids, rng
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output
from pipeline.packing.rows import ListRows, measure_byte_lengths, take_rows
from pipeline.runs import layout, splits, views
from pipeline.stages.tokenize import list_lengths


@dataclass(frozen=True)
class SplitsJob:
    """A part of the table, the first of its clean tasks, how many of its rows belong to each of
    these, and the splits in order."""

    documents: Shard
    first: int
    records: tuple[int, ...]
    names: tuple[str, ...]


def _splits(job: SplitsJob, inputs: Inputs) -> Result:
    return Result(_shards(job, inputs))


def _shards(job: SplitsJob, inputs: Inputs) -> Iterator[Output]:
    """Columns doc_id and split, one shard per task; records without a split get the first."""
    names = pq.read_table(inputs.path(job.documents), columns=["split"])["split"]
    split = pc.fill_null(pc.index_in(names, value_set=pa.array(job.names)), 0)
    start = 0
    for task, count in enumerate(job.records, job.first):
        doc_id = (np.uint64(task) << np.uint64(32)) + np.arange(count, dtype=np.uint64)
        part = split.slice(start, count).cast(pa.uint8())
        table = pa.table({"doc_id": pa.array(doc_id), "split": part}).combine_chunks()
        yield arrow_output(layout.shard("splits", task, "arrow"), table)
        start += count


def splits_stage(
    clean: views.CleanOutput, documents: views.DocumentsOutput, names: tuple[str, ...]
) -> Stage:
    """One task per part of the table."""
    tasks = []
    for part, group in zip(documents.parts, documents.tasks_of_parts(clean), strict=True):
        records = tuple(clean.records[group.start : group.stop])
        job = SplitsJob(part, group.start, records, names)
        tasks.append(Task(f"splits of {part.path}", job, (part,)))
    return Stage(name="splits", version=2, function=_splits, tasks=tuple(tasks))


SCATTERED = "shuffle"
"""The directory of what is scattered."""
WHOLE = 1 << 64
"""One past the last rank."""


@dataclass(frozen=True, kw_only=True)
class ScatterJob:
    """One tokens shard, the split of every document of its task, and, if there is a mixture, how
    many copies of each, put out `piece_tokens` at a time."""

    index: int
    tokens: Shard
    splits: Shard
    copies: Shard | None
    piece_tokens: int
    split_names: tuple[str, ...]
    seed: int


@dataclass(frozen=True)
class Places:
    """The M copies of N documents in stream order: row of the document, split, rank, (M,) each."""

    row: I64
    split: npt.NDArray[np.uint8]
    rank: U64


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


def _scatter(job: ScatterJob, inputs: Inputs) -> Result:
    """Columns doc_id, doc_key, tokens, split, rank, in one shard; in several with a mixture."""
    table, assigned = inputs.table(job.tokens), inputs.table(job.splits)
    rows = np.searchsorted(assigned["doc_id"].to_numpy(), table["doc_id"].to_numpy())
    split = assigned["split"].to_numpy()[rows]
    mixed = inputs.table(job.copies) if job.copies else None
    copies = np.ones(len(table), np.uint16) if mixed is None else mixed["copies"].to_numpy()
    if len(copies) != len(table):
        raise IntegrityError(f"{inputs.path(job.tokens)}: the mixture was made for other documents")
    placed = places(ids.keys_as_u64(table["doc_key"]), split, copies, job.seed)
    lengths = list_lengths(table["tokens"])
    in_order = lengths[placed.row]
    counters: dict[str, Any] = {
        "documents": len(placed.row),
        "tokens": {
            name: int(in_order[placed.split == i].sum()) for i, name in enumerate(job.split_names)
        },
    }
    if mixed is not None:
        train = split == job.split_names.index(splits.TRAIN)
        counters["mixture"] = _by_source(mixed["source"].to_numpy(), copies, lengths, train)
    cuts = [slice(None)] if mixed is None else pieces(in_order, job.piece_tokens)
    return Result(_placed_shards(job.index, table, placed, cuts), counters)


def _placed_shards(
    index: int, table: pa.Table, placed: Places, cuts: list[slice]
) -> Iterator[Output]:
    for number, cut in enumerate(cuts):
        row = placed.row[cut]
        names = table.select(["doc_id", "doc_key"]).take(pa.array(row))
        columns = {
            **{name: names[name] for name in names.column_names},
            "tokens": take_rows(table["tokens"], row),
            "split": pa.array(placed.split[cut]),
            "rank": pa.array(placed.rank[cut]),
        }
        yield arrow_output(shard_of_piece(index, number), pa.table(columns))


def shard_of_piece(index: int, piece: int) -> str:
    """The path of a piece of what one task scatters."""
    return layout.shard(SCATTERED, index, f"{piece}.arrow" if piece else "arrow")


def pieces(sizes_M: I64, most: int) -> list[slice]:
    """Rows in order cut into pieces of at most `most`, or of one larger row; one piece at least.

    >>> pieces(np.array([4, 3, 9, 1]), 8)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    ends = np.cumsum(sizes_M)
    parts, first = [], 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most, "right")))
        parts.append(slice(first, stop))
        first = stop
    return parts or [slice(0, 0)]


def _by_source(
    source: npt.NDArray[np.uint32],
    copies: npt.NDArray[np.uint16],
    tokens: I64,
    train: npt.NDArray[np.bool_],
) -> list[list[int]]:
    """Of the training split, per source: its number, documents and tokens before the mixture,
    documents and tokens of all copies."""
    number, place = np.unique(source[train], return_inverse=True)
    copies, tokens = copies[train].astype(np.int64), tokens[train]
    counted = np.column_stack([np.ones(len(place), np.int64), tokens, copies, tokens * copies])
    sums = np.zeros((len(number), counted.shape[1]), np.int64)
    np.add.at(sums, place, counted)
    return [[int(n), *row] for n, row in zip(number, sums.tolist(), strict=True)]


def scatter_stage(
    config: Config,
    assigned: views.SplitsOutput,
    tokens: views.TokensOutput,
    mixture: views.MixtureOutput | None = None,
) -> Stage:
    """The round that reads document order and writes rank order."""
    copies = mixture.copies if mixture else (None,) * len(assigned.splits)
    names = splits.names(config)
    tasks = []
    for i, (t, s, c) in enumerate(zip(tokens.tokens, assigned.splits, copies, strict=True)):
        inputs = (t, s) if c is None else (t, s, c)
        job = ScatterJob(
            index=i,
            tokens=t,
            splits=s,
            copies=c,
            piece_tokens=config.pack.bucket_tokens,
            split_names=names,
            seed=config.seed,
        )
        tasks.append(Task(f"scatter of {t.path}", job, inputs, t.size))
    settings = {"seed": config.seed}
    return Stage(
        name="scatter", version=1, function=_scatter, tasks=tuple(tasks), settings=settings
    )


@dataclass(frozen=True)
class GatherJob:
    """Bucket `bucket` of `buckets` equal ranges of rank, in one split."""

    split: int
    name: str
    bucket: int
    buckets: int
    shards: Shared[tuple[Shard, ...]]


@dataclass(frozen=True)
class BucketSlice:
    """The rows of a scatter shard that belong to a bucket."""

    shard: Shard
    first: int
    stop: int


def slices(
    ranges: Iterable[tuple[Shard, int, int]], split: int, inputs: Inputs
) -> Iterator[tuple[BucketSlice, pa.Table]]:
    """The rows of every scatter shard with ranks in [low, high) of one split, where there are any;
    one shard after the other, so that few files are open at a time."""
    for shard, low, high in ranges:
        table = inputs.table(shard)
        begin, end = np.searchsorted(table["split"].to_numpy(), [split, split + 1])
        rank = table["rank"].to_numpy()[begin:end]
        first = int(np.searchsorted(rank, np.uint64(low)))
        stop = len(rank) if high >= WHOLE else int(np.searchsorted(rank, np.uint64(high)))
        if first < stop:
            here = BucketSlice(shard, int(begin) + first, int(begin) + stop)
            yield here, table.slice(here.first, here.stop - here.first)


def _gather(job: GatherJob, inputs: Inputs) -> Result:
    """Columns doc_id, doc_key, tokens, in stream order."""
    low, high = (WHOLE * (job.bucket + i) // job.buckets for i in (0, 1))
    bucket_slices, names, byte_lengths = [], [], []
    kind = inputs.table(job.shards.value[0]).schema.field("tokens").type
    ranges = ((shard, low, high) for shard in job.shards.value)
    for here, piece in slices(ranges, job.split, inputs):
        bucket_slices.append(here)
        names.append(copy_table(piece.select(["doc_id", "doc_key", "rank"])))
        byte_lengths.append(measure_byte_lengths(piece["tokens"]))
    whole = pa.concat_tables([*names, _NAMES.empty_table()])
    length = np.concatenate([np.zeros(0, np.int64), *byte_lengths])
    order = ids.sort_order(ids.keys_as_u64(whole["doc_key"]), whole["rank"].to_numpy())
    tokens = gather_rows(bucket_slices, "tokens", kind, length, order, inputs)
    ordered = whole.select(["doc_id", "doc_key"]).take(pa.array(order)).combine_chunks()
    table = ordered.append_column("tokens", tokens)
    counters = {"documents": len(table), "tokens": len(tokens.values), "split": job.name}
    path = f"stream/{job.name}-{job.bucket:06d}.arrow"
    return Result((arrow_output(path, table),), counters)


_NAMES = pa.schema(
    [("doc_id", pa.uint64()), ("doc_key", pa.binary(ids.KEY_BYTES)), ("rank", pa.uint64())]
)


def copy_table(table: pa.Table) -> pa.Table:
    """The same rows in memory of their own, so that the file behind them can be closed."""
    return table.take(pa.array(np.arange(len(table))))


def gather_rows(
    bucket_slices: list[BucketSlice],
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
    for part in bucket_slices:
        column = inputs.table(part.shard, [name])[name].slice(part.first, part.stop - part.first)
        for chunk in column.chunks:
            rows.fill(place[start : start + len(chunk)], chunk, np.arange(len(chunk)))
            start += len(chunk)
    return rows.array()


def gather_stage(config: Config, scatter: views.ScatterOutput) -> Stage:
    """The round that writes each split's stream, bucket by bucket."""
    shards, counts = Shared(scatter.shards), scatter.tokens
    tasks = []
    for split, name in enumerate(splits.names(config)):
        tokens = sum(of_task[name] for of_task in counts)
        if not tokens:
            continue
        buckets = -(-tokens // config.pack.bucket_tokens)
        tasks += [
            Task(
                f"gather of {name} bucket {b}",
                GatherJob(split, name, b, buckets, shards),
                (shards,),
                2 * tokens // buckets,
            )
            for b in range(buckets)
        ]
    settings = {"bucket_tokens": config.pack.bucket_tokens}
    return Stage(name="gather", version=1, function=_gather, tasks=tuple(tasks), settings=settings)
