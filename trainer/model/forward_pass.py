"""What the layers of a forward pass share, and what they keep: geometry, cached keys and values,
and what routers decided.

Every pass over cached texts adds its N columns to all; texts of different lengths end in the same
column, with pads before the shorter ones.

Shapes: B sequences, S tokens, K heads of K and V, E width of a head; C columns of a cache, N of
them, the last ones, of one pass; of routers E experts, K of them for a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.config import ModelConfig
from trainer.model.positions import Rotation


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


@dataclass(frozen=True)
class Routing:
    """What a router decided: fp32 probabilities (B, S, E), and the experts chosen (B, S, K)."""

    probabilities: Tensor
    chosen: Tensor


class RoutingLog:
    """What the routers of a pass decided, layer by layer, until it is closed: a block that is
    computed again for backward adds nothing, which would keep its activations."""

    def __init__(self) -> None:
        self._entries: list[Routing] | None = []

    def add(self, routing: Routing) -> None:
        """Add that of the next layer."""
        if self._entries is not None:
            self._entries.append(routing)

    def close(self) -> list[Routing]:
        """All of the pass, which ends here."""
        entries, self._entries = self._entries or [], None
        return entries


@dataclass(frozen=True)
class Geometry:
    """What all layers of one forward pass share. `mask`: see `additive_mask`; None: every token
    attends to itself and all earlier ones, in an encoder to all. `rotation`: of Q and K, or None.
    `past`: what the layer has seen before, never in training. `routed`: where layers of experts
    tell what their routers decided. `encoded`: what an encoder says, (B, S, hidden size), for
    attention to its tokens."""

    mask: Tensor | None
    rotation: Rotation | None
    past: LayerCache | None = None
    routed: RoutingLog = field(default_factory=RoutingLog)
    encoded: Tensor | None = None
