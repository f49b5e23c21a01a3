"""Rows of Q, K and V: where each family puts them, and the two ways to pair rotated units.

Our matrix has the rows of Q, then K, then V, head after head. Rotary position embeddings turn pairs
of units: (i, i + R/2) in "halves" (NeoX, Llama), (2i, 2i + 1) in "neighbours" (GPT-J, Model Zoo).
Reordering the rows of Q and K alike changes no product of them, so both are the same model.

Shapes: H heads, E width of a head, R rotary_dim.
"""

import itertools

import torch
from torch import Tensor

from trainer.config import ModelConfig
from trainer.convert import lazy
from trainer.convert.lazy import LazyTensor
from trainer.convert.parameters import qkv_rows


def split(qkv: LazyTensor, config: ModelConfig) -> tuple[LazyTensor, LazyTensor, LazyTensor]:
    """(Q, K, V) of our matrix or bias."""
    q_rows, k_rows = qkv_rows(config)
    ends = (0, q_rows, q_rows + k_rows, q_rows + 2 * k_rows)
    q, k, v = (lazy.rows(qkv, start, stop) for start, stop in itertools.pairwise(ends))
    return q, k, v


def pair_rows(
    part: LazyTensor, config: ModelConfig, heads: int, interleaved: bool, back: bool
) -> LazyTensor:
    """Q or K with rotated units paired as `interleaved` says, from how `config` pairs them.

    `back`: the other direction. Unchanged where nothing is rotated or both pair alike.
    """
    if config.position_embedding_type != "rotary" or interleaved == config.rotary_interleaved:
        return part
    head = config.hidden_size // config.num_heads
    rotary = config.rotary_dim or head
    to_neighbours = interleaved != back
    return lazy.reorder_rows(part, _pairing(heads, head, rotary, to_neighbours))


def per_head(config: ModelConfig) -> Tensor:
    """Order of GPT-NeoX: for every head its rows of Q, K, V; indices into our rows.

    >>> base = {"vocab_size": 1, "max_position_embeddings": 1, "num_hidden_layers": 1}
    >>> config = ModelConfig(**base, hidden_size=4, num_heads=2, filter_size=1)
    >>> per_head(config).tolist()
    [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    """
    width, heads = config.hidden_size, config.num_heads
    return torch.arange(3 * width).view(3, heads, width // heads).transpose(0, 1).flatten()


def inverse(order_R: Tensor) -> Tensor:
    """The order that undoes another.

    >>> inverse(torch.tensor([2, 0, 1])).tolist()
    [1, 2, 0]
    """
    return torch.argsort(order_R)


def _pairing(heads: int, head: int, rotary: int, to_neighbours: bool) -> Tensor:
    """Row indices that bring halves to neighbours, or neighbours to halves.

    >>> _pairing(1, 6, 4, True).tolist(), _pairing(1, 6, 4, False).tolist()
    ([0, 2, 1, 3, 4, 5], [0, 2, 1, 3, 4, 5])
    >>> _pairing(1, 6, 6, True).tolist(), _pairing(1, 6, 6, False).tolist()
    ([0, 3, 1, 4, 2, 5], [0, 2, 4, 1, 3, 5])
    """
    pairs = torch.arange(rotary).view(2, -1) if to_neighbours else torch.arange(rotary).view(-1, 2)
    one_E = torch.cat([pairs.t().flatten(), torch.arange(rotary, head)])
    return (torch.arange(heads)[:, None] * head + one_E).flatten()
