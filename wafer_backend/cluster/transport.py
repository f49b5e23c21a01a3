"""How roles talk: the protocol, and the transport that calls them directly in one process."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.tree import Partial, SwarmX
from wafer_backend.streaming.weights import Transport


class ClusterTransport(Transport, Protocol):
    """A transport with the coordinator's side: what it may ask of the other roles.

    A reduction is one round: `begin`, leaves run, `sums`; then `total`, or `deliver` and `update`;
    `end`. Raises TransportError when a role or a message is lost.
    """

    @property
    def processes(self) -> int:
        """Processes that the wafers run in."""

    @property
    def rank(self) -> int:
        """The number of this process among them."""

    def order(self, spans: list[range], *, by_leaf: bool) -> Iterator[tuple[int, int]]:
        """(system, leaf) that run here, in this order; `by_leaf`: leaves must run in theirs."""

    def begin(self, spans: list[range], leaves: int) -> None:
        """Start a reduction; `spans` are the leaves of every CS-2."""

    def sums(self) -> tuple[float, int]:
        """(loss sum in nats, counted labels) over all leaves."""

    def total(self) -> Partial:
        """The sums over all leaves with their gradients."""

    def deliver(self, divisor: float) -> dict[str, torch.Tensor]:
        """Put gradient sums / divisor beside the weights; their norms, 0-d fp32, by name."""

    def update(self, learning_rate: float, factor: torch.Tensor | None) -> None:
        """Multiply gradients by a factor, and take one optimizer step."""

    def drop(self) -> None:
        """Forget the gradients beside the weights."""

    def end(self) -> None:
        """Forget what was reduced."""

    def gather(self, outputs: Mapping[int, Any]) -> list[Any]:
        """What the module returned for every leaf, in their order, from those that ran here."""

    def agreed(self, number: int) -> int:
        """The number that the coordinator's process gave; all processes call it."""

    def bring_home(self) -> None:
        """Weights and optimizer state of all servers are in rank 0's MemoryX after it."""


@dataclass
class Traffic:
    """Bytes that wafers of this process took and sent since the start of the run.

    Inline every gradient of a leaf counts; over messages, the partials that leave a wafer. What is
    sent again counts once.
    """

    weight_bytes: int = 0
    gradient_bytes: int = 0

    def count_gradients(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Count the tensors of a partial."""
        self.gradient_bytes += sum(tensor.nbytes for tensor in tensors.values())


class OneProcess:
    """What a transport answers whose roles are all in this process."""

    processes = 1
    rank = 0

    def agreed(self, number: int) -> int:
        """The number itself: there is nobody else."""
        return number

    def bring_home(self) -> None:
        """Nothing: all weights and their state are here."""


class InlineTransport(OneProcess):
    """Messages are calls; tensors go by reference, and receivers never write to what they got."""

    def __init__(self, memoryx: MemoryX) -> None:
        self._memoryx = memoryx
        self._swarmx = SwarmX()
        self.traffic = Traffic()

    def fetch_weight(self, name: str) -> torch.Tensor:
        """A copy of a weight, from MemoryX through SwarmX."""
        weight = self._swarmx.broadcast(self._memoryx.weight(name))
        self.traffic.weight_bytes += weight.nbytes
        return weight

    def release_weight(self, name: str, copy: torch.Tensor, *, intact: bool) -> None:
        """An intact copy back to MemoryX."""
        if intact:
            self._memoryx.take_back(name, copy)

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """One gradient to MemoryX."""
        self.traffic.gradient_bytes += gradient.nbytes
        self._memoryx.receive_gradient(leaf, name, gradient)

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        """A finished leaf to MemoryX, whose completed nodes go on to SwarmX."""
        self._memoryx.finish_leaf(system, leaf, loss_sum, n_counted, self._swarmx.reduce)

    def order(self, spans: list[range], *, by_leaf: bool) -> Iterator[tuple[int, int]]:
        """Systems one after another, which is by leaf."""
        for system, span in enumerate(spans):
            for leaf in span:
                yield system, leaf

    def begin(self, spans: list[range], leaves: int) -> None:
        """Lanes in MemoryX and the tree in SwarmX are ready after it."""
        self._memoryx.begin_step(spans, leaves)
        self._swarmx.begin_step(leaves)

    def sums(self) -> tuple[float, int]:
        """(loss sum, counted labels) over all leaves."""
        total = self._swarmx.total()
        return total.loss_sum, total.n_counted

    def total(self) -> Partial:
        """The sums over all leaves."""
        return self._swarmx.total()

    def deliver(self, divisor: float) -> dict[str, torch.Tensor]:
        """Gradients into `parameter.grad`; their norms."""
        self._memoryx.deliver(self._swarmx.total(), divisor, self._memoryx.parameters)
        return self._memoryx.gradient_norms(self._memoryx.parameters)

    def update(self, learning_rate: float, factor: torch.Tensor | None) -> None:
        """Clip, and one optimizer step."""
        if factor is not None:
            self._memoryx.scale_gradients(factor, self._memoryx.parameters)
        self._memoryx.apply(learning_rate, self._memoryx.parameters)

    def drop(self) -> None:
        """Forget `parameter.grad`."""
        self._memoryx.drop_gradients(self._memoryx.parameters)

    def end(self) -> None:
        """Forget what leaves have sent."""
        self._memoryx.end_step()
        self._swarmx.abandon()

    def gather(self, outputs: Mapping[int, Any]) -> list[Any]:
        """All of them ran here."""
        return [outputs[leaf] for leaf in sorted(outputs)]
