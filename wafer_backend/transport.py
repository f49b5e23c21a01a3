"""How roles talk: the protocol, and the transport that calls them directly in one process."""

from dataclasses import dataclass
from typing import Protocol

import torch

from wafer_backend.memoryx import MemoryX
from wafer_backend.swarmx import SwarmX


class Transport(Protocol):
    """The messages a wafer may send."""

    def fetch_weight(self, name: str) -> torch.Tensor:
        """Ask for a copy of a weight."""

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """Stream one gradient of one leaf out."""

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        """Say that a leaf is complete: its loss sum in nats and its counted labels."""


@dataclass
class Traffic:
    """Bytes moved since the start of the run."""

    weight_bytes: int = 0
    gradient_bytes: int = 0


class InlineTransport:
    """Messages are calls; tensors go by reference, and receivers never write to what they got."""

    def __init__(self, memoryx: MemoryX, swarmx: SwarmX) -> None:
        self._memoryx = memoryx
        self._swarmx = swarmx
        self.traffic = Traffic()

    def fetch_weight(self, name: str) -> torch.Tensor:
        """A copy of a weight, from MemoryX through SwarmX."""
        weight = self._swarmx.broadcast(self._memoryx.weight(name))
        self.traffic.weight_bytes += weight.numel() * weight.element_size()
        return weight

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """One gradient to MemoryX."""
        self.traffic.gradient_bytes += gradient.numel() * gradient.element_size()
        self._memoryx.receive_gradient(leaf, name, gradient)

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        """A finished leaf to MemoryX, whose completed nodes go on to SwarmX."""
        self._memoryx.finish_leaf(system, leaf, loss_sum, n_counted, self._swarmx.reduce)
