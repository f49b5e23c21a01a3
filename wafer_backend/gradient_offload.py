"""Gradients leave a device on a stream of their own while the leaf goes on.

A gradient is copied into a slot of host memory and handed on when its copy is done, in the order
of sending, and a finished leaf behind its gradients: what is added, and in which order, is as if
every copy had been waited for.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch

from wafer_backend.device_stream import RingBuffer, Slot
from wafer_backend.transport import Transport

_WIDENED = frozenset({torch.bfloat16, torch.float16})


class _Message(NamedTuple):
    """Something to tell MemoryX, when the copy into `slot` is done if there is one."""

    slot: Slot | None
    tell: Callable[[], None]


class GradientOffload:
    """Sends gradients through `ring`, which is host memory, to `transport`."""

    def __init__(self, transport: Transport, ring: RingBuffer) -> None:
        self._transport = transport
        self._ring = ring
        self._waiting: deque[_Message] = deque()

    def send(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """Queue the copy of one gradient; blocks only while the ring is full."""
        slot = None
        if gradient.layout is torch.strided:
            gradient = _dense(gradient)
            slot = self._ring.load(gradient)
            while slot is None and self._waiting:
                self._tell_next()
                slot = self._ring.load(gradient)
        if slot is None:
            self.flush()
            self._transport.send_gradient(leaf, name, gradient.to(self._ring.device, copy=True))
            return
        copied = slot
        self._waiting.append(_Message(slot, lambda: self._hand_on(leaf, name, copied)))
        self._tell_finished()

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        """Say that a leaf is complete, behind its gradients."""

        def tell() -> None:
            self._transport.finish_leaf(system, leaf, loss_sum, n_counted)

        self._waiting.append(_Message(None, tell))
        self._tell_finished()

    def flush(self) -> None:
        """Block until everything has been handed on."""
        while self._waiting:
            self._tell_next()

    def _tell_finished(self) -> None:
        while self._waiting:
            slot = self._waiting[0].slot
            if slot is not None and slot.ready is not None and not slot.ready.query():
                return
            self._tell_next()

    def _tell_next(self) -> None:
        self._waiting.popleft().tell()

    def _hand_on(self, leaf: int, name: str, slot: Slot) -> None:
        """MemoryX keeps an fp32 gradient, so it gets a copy; it widens a half one by itself."""
        gradient = self._ring.read(slot)
        kept = gradient if gradient.dtype in _WIDENED else gradient.clone()
        self._transport.send_gradient(leaf, name, kept)
        self._ring.release(slot)


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """Without the gaps and repeats (of an expanded tensor) that no single copy can transfer."""
    like = torch.empty_like(gradient, device="meta")
    if like.stride() == gradient.stride():
        return gradient
    return torch.empty_like(gradient).copy_(gradient)
