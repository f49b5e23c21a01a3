"""Tokens shards sorted again by split and rank -> shuffle/: for the copies of a mixture, and where
`prep repack` has another seed. Else tokens are in that order as they are written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64
from pipeline.config.prep import Config
from pipeline.core import ids
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard
from pipeline.engine.stage import Inputs, Result, RunStage, Stage, Task, arrow_output
from pipeline.runs import layout, splits
from pipeline.runs.views.data_set import MixtureOutput, ScatterOutput, TokensOutput
from pipeline.stages.shuffle.places import in_order, places
from pipeline.stages.tokenize import list_lengths

SCATTERED = "shuffle"
"""The directory of what is scattered."""


@dataclass(frozen=True)
class Scattered:
    """Shards sorted by split and rank, and how many tokens of each split every task put there."""

    shards: tuple[Shard, ...]
    tokens: tuple[Mapping[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class ScatterJob:
    """One tokens shard and, if there is a mixture, how many copies of each document, put out
    `piece_tokens` at a time."""

    index: int
    tokens: Shard
    copies: Shard | None
    piece_tokens: int
    split_names: tuple[str, ...]
    seed: int


def _scatter(job: ScatterJob, inputs: Inputs) -> Result:
    """Columns doc_id, doc_key, tokens, split, rank, in one shard; in several with a mixture."""
    table = inputs.table(job.tokens, ["doc_id", "doc_key", "tokens", "split"])
    split = table["split"].to_numpy()
    copies = np.ones(len(table), np.uint16)
    mixed = None
    if job.copies is not None:
        mixed = _of_documents(inputs.table(job.copies), table, inputs.locate(job.tokens))
        copies = mixed["copies"].to_numpy()
    placed = places(ids.keys_as_u64(table["doc_key"]), split, copies, job.seed)
    lengths = list_lengths(table["tokens"])
    ordered = lengths[placed.row]
    counters: dict[str, Any] = {
        "documents": len(placed.row),
        "tokens": {
            name: int(ordered[placed.split == i].sum()) for i, name in enumerate(job.split_names)
        },
    }
    if mixed is not None:
        train = split == job.split_names.index(splits.TRAIN)
        counters["mixture"] = _count_train(mixed["source"].to_numpy(), copies, lengths, train)
        if "group" in mixed.column_names:
            group = mixed["group"].to_numpy()
            counters["cluster_sizes"] = _count_train(group, copies, lengths, train)
    table = table.drop_columns(["split"])
    cuts = [slice(None)] if mixed is None else pieces(ordered, job.piece_tokens)
    shards = (
        arrow_output(shard_of_piece(job.index, number), in_order(table, placed[cut]))
        for number, cut in enumerate(cuts)
    )
    return Result(shards, counters)


def _of_documents(mixed: pa.Table, tokens: pa.Table, path: Path) -> pa.Table:
    """The rows of a mixture, which are in the order of documents, in that of the tokens."""
    if len(mixed) != len(tokens):
        raise IntegrityError(f"{path}: the mixture was made for other documents")
    doc_id = tokens["doc_id"].to_numpy()
    return mixed.take(pa.array(np.searchsorted(np.sort(doc_id), doc_id))).combine_chunks()


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


def scatter_tokens(
    config: Config, tokens: TokensOutput, mixture: MixtureOutput | None, run: RunStage
) -> Scattered:
    """The tokens in the order of every stream; the stage runs where they are in another."""
    if mixture is None and tokens.seed == config.seed:
        return Scattered(tokens.tokens, tuple(tokens.of_splits))
    scatter = ScatterOutput(run(scatter_stage(config, tokens, mixture)))
    return Scattered(scatter.shards, tuple(scatter.tokens))


def scatter_stage(config: Config, tokens: TokensOutput, mixture: MixtureOutput | None) -> Stage:
    """One task per tokens shard."""
    copies = mixture.copies if mixture else (None,) * len(tokens.tokens)
    names = splits.names(config)
    tasks = []
    for i, (t, c) in enumerate(zip(tokens.tokens, copies, strict=True)):
        inputs = (t,) if c is None else (t, c)
        job = ScatterJob(
            index=i,
            tokens=t,
            copies=c,
            piece_tokens=config.pack.bucket_tokens,
            split_names=names,
            seed=config.seed,
        )
        tasks.append(Task(f"scatter of {t.path}", job, inputs, t.size))
    settings = {"seed": config.seed}
    return Stage(
        name="scatter", version=2, function=_scatter, tasks=tuple(tasks), settings=settings
    )
