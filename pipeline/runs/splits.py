"""The splits of a run: `train`, and parts of given shares that are held out of it.

A document's split is a function of (seed, text key of its cluster's representative): a point in
[0, 1). The held-out splits take consecutive pieces of it, `validation` first; train has the rest.
Only that no split stays empty depends on other documents: each part of a run counts its own, and
what has to move follows from the counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from dedup.arrays import U8, U64, Mask
from pipeline.config.prep import Config
from pipeline.core import rng

TRAIN = "train"
VALIDATION = "validation"

HeldOut = tuple[tuple[str, float], ...]
"""(name, share of the documents) of every split but train; the first is split 1, and so on."""


def held_out(config: Config) -> HeldOut:
    """The held-out splits a config asks for: validation, then the others in the config's order."""
    share = config.splits.get(VALIDATION, config.pack.validation_share)
    others = ((name, part) for name, part in config.splits.items() if name != VALIDATION)
    return ((VALIDATION, share), *others)


def names(config: Config) -> tuple[str, ...]:
    """The names of all splits; split s of a document is an index into them, train is 0."""
    return (TRAIN, *(name for name, _ in held_out(config)))


def draw(text_key_N2: U64, seed: int) -> U64:
    """The draw of every document, (N,)."""
    return rng.rank(text_key_N2, seed, "split")


def place(drawn_N: U64, splits: HeldOut) -> U8:
    """The split of every document by its draw alone, (N,)."""
    point = rng.unit_interval(drawn_N)
    ends = list(accumulate((share for _, share in splits), initial=0.0))
    split = np.zeros(len(point), np.uint8)
    for index in range(len(splits)):
        split[(ends[index] <= point) & (point < ends[index + 1])] = index + 1
    return split


@dataclass(frozen=True)
class KeptDraws:
    """Of some kept documents, placed by their draws: how many are in each split; and the smallest
    draws of those in train, one for each other split, with how many documents have it."""

    counts: tuple[int, ...]
    nearest: tuple[tuple[int, int], ...]


def count_kept(drawn_N: U64, is_kept: Mask, splits: HeldOut) -> KeptDraws:
    """What `find_moves` needs of some documents."""
    split = place(drawn_N, splits)[is_kept]
    counts = np.bincount(split, minlength=len(splits) + 1)
    draws, documents = np.unique(drawn_N[is_kept][split == 0], return_counts=True)
    nearest = zip(draws[: len(splits)].tolist(), documents[: len(splits)].tolist(), strict=True)
    return KeptDraws(tuple(counts.tolist()), tuple(nearest))


def find_moves(parts: Sequence[KeptDraws], splits: HeldOut) -> dict[int, int]:
    """Draw -> split of the documents that leave train. A split with a share holds one kept document
    at least, as long as another one is left for train: the one whose draw is next."""
    counts = [sum(of_split) for of_split in zip(*(part.counts for part in parts), strict=True)]
    train: Counter[int] = Counter()
    for part in parts:
        train.update(dict(part.nearest))
    nearest, moves = sorted(train.items()), {}
    for index, (_, share) in enumerate(splits, 1):
        if share > 0 and counts[0] > 1 and not counts[index]:
            drawn, documents = nearest.pop(0)
            moves[drawn] = index
            counts[0] -= documents
            counts[index] += documents
    return moves


def assign(drawn_N: U64, splits: HeldOut, moves: Mapping[int, int]) -> U8:
    """The split of every document, (N,)."""
    split = place(drawn_N, splits)
    for drawn, index in moves.items():
        split[(drawn_N == np.uint64(drawn)) & (split == 0)] = index
    return split
