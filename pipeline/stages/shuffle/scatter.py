"""The first round of the shuffle: each tokens shard sorted by split and rank -> shuffle/.

The rank of a document is hash(seed, doc_key), so another document never moves it; further copies,
which a mixture asks for, have ranks of their own. `splits` writes again, from documents.parquet,
what the keep-list wrote: the run of `prep repack` may have been cleaned up.
"""

from collections.abc import Iterator
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
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output
from pipeline.hdf5.packing import take_rows
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
        path = inputs.locate(job.tokens)
        raise IntegrityError(f"{path}: the mixture was made for other documents")
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
        counters["mixture"] = _count_train(mixed["source"].to_numpy(), copies, lengths, train)
        if "group" in mixed.column_names:
            group = mixed["group"].to_numpy()
            counters["cluster_sizes"] = _count_train(group, copies, lengths, train)
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


def _count_train(
    group: npt.NDArray[np.uint32],
    copies: npt.NDArray[np.uint16],
    tokens: I64,
    train: npt.NDArray[np.bool_],
) -> list[list[int]]:
    """Of the training split, per source or smaller group: its number, documents and tokens before
    the mixture, documents and tokens of all copies."""
    number, place = np.unique(group[train], return_inverse=True)
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
