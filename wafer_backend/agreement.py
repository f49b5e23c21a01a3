"""Ranks run one script on the same data, or their sums would mean nothing: this checks it."""

from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils import _pytree

from wafer_backend.errors import StepError
from wafer_backend.tensor_bytes import to_stored
from wafer_backend.transport import ClusterTransport

_BITS = 48  # a number travels as float64, exact to 53


def check_alike(transport: ClusterTransport, what: str, values: Any) -> None:
    """Raise StepError on a rank whose `values` (nested tensors and numbers) are not rank 0's.

    All ranks call it. `what` they are, for the message.
    """
    if transport.processes == 1:
        return
    mine = _fingerprint(values)
    if transport.agreed(mine) != mine:
        raise StepError(
            f"{what} of this rank differs from that of rank 0: every rank runs the same script on "
            "the same global batches; use the same seed, and do not shard the data"
        )


def _fingerprint(values: Any) -> int:
    digest = xxhash.xxh3_64()
    for value in _pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor):
            stored = to_stored(value)
            digest.update(f"{value.dtype} {stored.shape}".encode())
            digest.update(stored.reshape(-1).view(np.uint8).data if stored.size else b"")
        elif isinstance(value, int | float | str | None):
            digest.update(repr(value).encode())
    return digest.intdigest() >> (64 - _BITS)
