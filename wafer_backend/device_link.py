"""The link between a wafer's device and the other roles: weights ahead, gradients behind.

It stands where a transport stands, around one: a wafer asks it for weights, which it has copied
ahead (`prefetch`), and gives it gradients, which it copies out beside the computation
(`gradient_offload`). Rings and streams live as long as a pass over a batch.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from wafer_backend.device_stream import CpuStream, CudaStream, DeviceStream, RingBuffer, align_size
from wafer_backend.errors import StepError
from wafer_backend.gradient_offload import GradientOffload
from wafer_backend.prefetch import Fetches, Orders, WeightPrefetcher
from wafer_backend.transport import Transport


@dataclass(frozen=True)
class LinkRule:
    """How links work; the same for all wafers.

    `largest`: bytes of the two largest weights as they travel; `ahead`: bytes of weights copied
    ahead. Either ring holds both sums. `seed`: of the delays of a CPU stream.
    """

    device: torch.device
    largest: int
    ahead: int
    seed: int

    @property
    def capacity(self) -> int:
        """Bytes of a ring; every weight may lose some to alignment."""
        return align_size(self.largest) + align_size(self.ahead) + align_size(1)


class DeviceLink:
    """One wafer's link; it is a transport itself."""

    def __init__(self, transport: Transport, rule: LinkRule) -> None:
        self._transport = transport
        self._rule = rule
        self._orders = Orders()
        self._weights: WeightPrefetcher | None = None
        self._gradients: GradientOffload | None = None
        self.peak_bytes = 0
        self.retired_bytes = 0

    @property
    def fetches(self) -> Fetches:
        """Weights that were on their way in time, and those that were not."""
        return self._orders.fetches

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """One pass: every gradient has been handed on after it, and no copy is under way.

        An error abandons what was not handed on.
        """
        down, up = self._streams()
        weights = RingBuffer(down, self._rule.capacity, own_storages=True)
        gradients = RingBuffer(up, self._rule.capacity, own_storages=False)
        fetch = self._transport.fetch_weight
        self._weights = WeightPrefetcher(fetch, weights, self._orders, self._rule.ahead)
        self._gradients = GradientOffload(self._transport, gradients)
        try:
            yield
            self._gradients.flush()
        finally:
            down.close()
            up.close()
            self.peak_bytes = max(self.peak_bytes, weights.peak_bytes)
            self.retired_bytes = weights.retired_bytes
            self._weights = self._gradients = None

    def leaf(self) -> contextlib.AbstractContextManager[None]:
        """Run one leaf."""
        return self._prefetcher.leaf()

    def fetch_weight(self, name: str) -> torch.Tensor:
        """A copy of a weight on the device, its storage its own; give it back when it is used."""
        return self._prefetcher.take(name)

    def release_weight(self, copy: torch.Tensor) -> None:
        """Take back a copy."""
        self._prefetcher.release(copy)

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """Queue one gradient of one leaf."""
        self._offload.send(leaf, name, gradient)

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        """Queue a finished leaf behind its gradients."""
        self._offload.finish_leaf(system, leaf, loss_sum, n_counted)

    @property
    def _prefetcher(self) -> WeightPrefetcher:
        if self._weights is None:
            raise StepError("a weight was used outside a step; weights live in MemoryX")
        return self._weights

    @property
    def _offload(self) -> GradientOffload:
        if self._gradients is None:
            raise StepError("a gradient was sent outside a step")
        return self._gradients

    def _streams(self) -> tuple[DeviceStream, DeviceStream]:
        """To the device, and from it."""
        device, seed = self._rule.device, self._rule.seed
        if device.type == "cuda":
            return CudaStream(device, to_host=False), CudaStream(device, to_host=True)
        return CpuStream(2 * seed), CpuStream(2 * seed + 1)
