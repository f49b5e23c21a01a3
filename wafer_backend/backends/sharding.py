"""Warn about a loader that shards itself.

A user's loader runs once and its batch is the global batch, whatever num_csx is: the rank
functions say 0 of 1, so sharding by them does nothing. Sharding by anything else makes each
process see part of the data, which here means that the rest is never read.
"""

import os
import warnings
from typing import Any

from torch.utils.data.distributed import DistributedSampler

_INSIDE = ("dataloader", "_loader", "loader", "batch_sampler", "sampler")


def warn_if_sharded(loader: Any) -> None:
    """Warn once for a loader (or whatever wraps one) whose sampler takes a share of the data."""
    sampler = _distributed_sampler(loader)
    if sampler is not None and sampler.num_replicas > 1:
        warnings.warn(
            f"the DistributedSampler of the loader reads share {sampler.rank} of "
            f"{sampler.num_replicas}: the batch of a loader is the global batch here, so the "
            "other shares are never read; remove the sampler",
            stacklevel=3,
        )
    elif int(os.environ.get("WORLD_SIZE", "1") or 1) > 1 and sampler is not None:
        warnings.warn(
            "WORLD_SIZE > 1 and the loader has a DistributedSampler: the batch of a loader is the "
            "global batch here; do not shard the data",
            stacklevel=3,
        )


def _distributed_sampler(loader: Any, depth: int = 4) -> "DistributedSampler[Any] | None":
    """The torch DistributedSampler somewhere inside `loader`, if any."""
    if isinstance(loader, DistributedSampler):
        return loader
    if depth == 0 or not hasattr(loader, "__dict__"):
        return None
    for name in _INSIDE:
        found = _distributed_sampler(vars(loader).get(name), depth - 1)
        if found is not None:
            return found
    return None
