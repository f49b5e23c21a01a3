"""Weights that are on their way before they are asked for.

Leaves take weights in the same order, forward and backward. The first leaf of a kind teaches it;
from then on the next weights are copied into the ring while those before them are used, up to
`budget` bytes, across the end of a leaf too. A leaf that takes another order gets its weights one
by one, as it asks, and teaches the new order. Bits never depend on any of this.

A `WeightPrefetcher` lives as long as a pass over a batch: no copy outlives an update of the
weights.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from wafer_backend.device_stream import RingBuffer, Slot
from wafer_backend.streaming import Fetch


class Take(NamedTuple):
    """One weight that a leaf asked for, and its bytes as it travels."""

    name: str
    nbytes: int


@dataclass
class Fetches:
    """How many weights were on their way when they were asked for, and how many were not."""

    ahead: int = 0
    late: int = 0


class Orders:
    """What outlives a pass: the order of takes, per kind of leaf (with a graph, or without)."""

    def __init__(self) -> None:
        self.known: dict[bool, tuple[Take, ...]] = {}
        self.fetches = Fetches()


class WeightPrefetcher:
    """Fetches weights from the host into `ring`, those that come next ahead of time."""

    def __init__(self, fetch: Fetch, ring: RingBuffer, orders: Orders, budget: int) -> None:
        self._fetch = fetch
        self._ring = ring
        self._orders = orders
        self._budget = budget
        self._kind: bool | None = None
        self._following: tuple[Take, ...] = ()
        self._taken: list[Take] = []
        self._ahead: deque[tuple[Take, Slot]] = deque()
        self._ahead_bytes = 0
        self._out: dict[int, Slot] = {}

    @contextlib.contextmanager
    def leaf(self) -> Iterator[None]:
        """Run one leaf; its kind is whether gradients are enabled now."""
        kind = torch.is_grad_enabled()
        if kind != self._kind:
            self._drop()
        self._kind, self._taken = kind, []
        self._following = self._orders.known.get(kind, ())
        self._copy_ahead()
        complete = False
        try:
            yield
            complete = True
        finally:
            if not complete or tuple(self._taken) != self._following:
                self._drop()
        self._orders.known[kind] = tuple(self._taken)

    def take(self, name: str) -> torch.Tensor:
        """A copy of a weight on the device, for its next use."""
        self._check_order(name)
        if self._ahead:
            take, slot = self._ahead.popleft()
            self._ahead_bytes -= take.nbytes
            self._taken.append(take)
            self._orders.fetches.ahead += 1
            self._copy_ahead()
            return self._lent(slot)
        weight = self._fetch(name)
        late = self._ring.load(weight)
        self._taken.append(Take(name, weight.nbytes))
        self._orders.fetches.late += 1
        self._copy_ahead()
        return weight.to(self._ring.device, copy=True) if late is None else self._lent(late)

    def release(self, copy: torch.Tensor) -> None:
        """Take a copy back that is used no more."""
        slot = self._out.pop(copy.untyped_storage().data_ptr(), None)
        if slot is not None:
            self._ring.release(slot)

    def _lent(self, slot: Slot) -> torch.Tensor:
        copy = self._ring.read(slot)
        self._out[copy.untyped_storage().data_ptr()] = slot
        return copy

    def _check_order(self, name: str) -> None:
        """Stop following an order that this take does not continue."""
        index = len(self._taken)
        if self._following and (
            index == len(self._following) or self._following[index].name != name
        ):
            self._following = ()
            self._drop()

    def _copy_ahead(self) -> None:
        """Queue copies of the weights that come next, as far as budget and ring allow."""
        while len(self._ahead) < len(self._following):
            index = (len(self._taken) + len(self._ahead)) % len(self._following)
            take = self._following[index]
            over = self._ahead_bytes + take.nbytes > self._budget
            if over or not self._ring.fits(take.nbytes):
                return
            slot = self._ring.load(self._fetch(take.name))
            assert slot is not None
            self._ahead.append((take, slot))
            self._ahead_bytes += take.nbytes

    def _drop(self) -> None:
        """Forget what is ahead; its copies are behind those that come next, in the same queue."""
        while self._ahead:
            self._ring.release(self._ahead.pop()[1])
        self._ahead_bytes = 0
