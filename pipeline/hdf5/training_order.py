"""The training order by its name in a config."""

from collections.abc import Sequence
from typing import Literal

from pipeline.core.mixture_order import KeyedShuffle, OrderPart, Shuffle, TrainingOrder
from pipeline.hdf5.sampler import ModelZooShuffle

OrderName = Literal["keyed", "modelzoo"]
"""keyed: `pipeline.core.order`; modelzoo: `torch.randperm` of every epoch, 8 bytes a row."""


def training_order(
    name: OrderName, parts: Sequence[OrderPart], seed: int, rows_globally_shuffled: Sequence[bool]
) -> TrainingOrder:
    """The order over data sets; the flags are those of their manifests.

    Keyed, epoch 0 of a single data set that is read once and was shuffled globally is file order.
    Raises ConfigError for a modelzoo order of too many rows.
    """
    size = sum(part.per_epoch for part in parts)
    plain = len(parts) == 1 and parts[0].per_epoch == parts[0].rows
    shuffle: Shuffle = KeyedShuffle(size, seed, plain and all(rows_globally_shuffled))
    if name == "modelzoo":
        shuffle = ModelZooShuffle(size, seed)
    return TrainingOrder(tuple(parts), seed, shuffle)
