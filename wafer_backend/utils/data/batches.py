"""Nested batches: their size, and their tensors in a form that crosses a pipe."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from wafer_backend.tensor_bytes import Array, TensorLayout, from_stored, layout_of, to_stored


def infer_batch_size(batch: Any) -> int | None:
    """Samples in a nested batch: the first dimension its tensors share.

    0-d tensors do not count. None when there is no tensor, or when the tensors disagree.
    """
    leaves = _pytree.tree_leaves(batch)
    sizes = {leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()}
    return sizes.pop() if len(sizes) == 1 else None


@dataclass(frozen=True)
class _PackedBatch:
    layout: TensorLayout
    stored: Array


def pack(batch: Any) -> Any:
    """The batch with plain numpy arrays for its dense tensors, so that a message is whole bytes.

    Torch would send handles, which need the sender to live until the receiver has opened them.
    """
    return _pytree.tree_map_only(torch.Tensor, _packed, batch)


def unpack(message: Any) -> Any:
    """The batch of `pack`."""
    return _pytree.tree_map_only(_PackedBatch, lambda p: from_stored(p.stored, p.layout), message)


def _packed(tensor: torch.Tensor) -> _PackedBatch:
    return _PackedBatch(layout_of("a tensor of the batch", tensor), to_stored(tensor))
