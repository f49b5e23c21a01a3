"""The splits of a run: `train`, and parts of given shares that are held out of it.

A document's split is a function of (seed, text key of its cluster's representative): a point in
[0, 1). The held-out splits take consecutive pieces of it, `validation` first; train has the rest.
"""

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from dedup.arrays import U8, U64
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


def assign(text_key_N2: U64, is_kept: npt.NDArray[np.bool_], splits: HeldOut, seed: int) -> U8:
    """The split of every document, (N,). A split with a share holds one kept document at least, as
    long as another one is left for train: the one whose point is next."""
    drawn = rng.rank(text_key_N2, seed, "split")
    point = rng.unit_interval(drawn)
    ends = list(accumulate((share for _, share in splits), initial=0.0))
    split = np.zeros(len(point), np.uint8)
    for index in range(len(splits)):
        split[(ends[index] <= point) & (point < ends[index + 1])] = index + 1
    for index, (_, share) in enumerate(splits, 1):
        in_train = np.flatnonzero(is_kept & (split == 0))
        if share > 0 and len(in_train) > 1 and not (is_kept & (split == index)).any():
            next_one = drawn[in_train].min()
            split[(drawn == next_one) & (split == 0)] = index
    return split
