"""Keys and values of the tokens that a decoder has seen, so that each is computed once.

Shapes: B texts, K heads of K and V, C columns, N columns of one pass, E width of a head.

Texts of different lengths end in the same column: pads stand before the shorter ones, and every
pass adds its N columns to all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import ModelConfig


@dataclass
class LayerCache:
    """Of one layer: `keys`, rotated already, and `values`, (B, K, C, E) fp32, of which the first
    `filled` columns are those of tokens."""

    keys: Tensor
    values: Tensor
    filled: int = 0

    def extended(self, k_BKNE: Tensor, v_BKNE: Tensor) -> tuple[Tensor, Tensor]:
        """Take up N columns, which there must be room for; all keys and all values so far."""
        first, self.filled = self.filled, self.filled + k_BKNE.shape[2]
        self.keys[:, :, first : self.filled] = k_BKNE
        self.values[:, :, first : self.filled] = v_BKNE
        return self.keys[:, :, : self.filled], self.values[:, :, : self.filled]


@dataclass
class KVCache:
    """Of all `layers`, in order. `pads`: (B,) int64, columns before the first token of every
    text."""

    layers: list[LayerCache]
    pads: Tensor

    @classmethod
    def empty(
        cls, config: ModelConfig, pads: Sequence[int], columns: int, device: torch.device
    ) -> "KVCache":
        """Room for C = `columns` columns, pads included."""
        shape = len(pads), config.num_kv_heads, columns, config.head_size
        layers = [
            LayerCache(torch.empty(shape, device=device), torch.empty(shape, device=device))
            for _ in range(config.num_hidden_layers)
        ]
        return cls(layers, torch.tensor(pads, dtype=torch.int64, device=device))

    @property
    def filled(self) -> int:
        """Columns that are taken up."""
        return self.layers[0].filled

    def only(self, texts: Sequence[int]) -> "KVCache":
        """A copy with these texts alone, by their places in B."""
        index = torch.tensor(texts, dtype=torch.int64, device=self.pads.device)
        layers = [LayerCache(c.keys[index], c.values[index], c.filled) for c in self.layers]
        return KVCache(layers, self.pads[index])
