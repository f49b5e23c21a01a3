"""The link between a wafer's device and the other roles: weights ahead, gradients behind.

It stands between a wafer and a transport; ring and streams live as long as a pass over a batch.
Leaves take weights in the same order, so the first leaf of a kind (with a graph, or without)
teaches it, and from then on the next weights are copied ahead, up to `budget` bytes. A leaf that
takes another order gets its weights one by one and teaches the new order. Gradients, and finished
leaves behind them, are handed on in the order of sending when their copies are done. Bits never
depend on any of this.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch

from wafer_backend.errors import StepError
from wafer_backend.streaming.device_stream import (
    CpuStream,
    CudaStream,
    DeviceStream,
    RingBuffer,
    Slot,
    StreamEvent,
    align_size,
)
from wafer_backend.streaming.weights import Fetch, Transport


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
        self.by_kind: dict[bool, tuple[Take, ...]] = {}
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
        self._following = self._orders.by_kind.get(kind, ())
        self._copy_ahead()
        complete = False
        try:
            yield
            complete = True
        finally:
            if not complete or tuple(self._taken) != self._following:
                self._drop()
        self._orders.by_kind[kind] = tuple(self._taken)

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


_HALVES = frozenset({torch.bfloat16, torch.float16})


class _Message(NamedTuple):
    """Something to tell MemoryX: the bytes that wait for it, whether it can be told without
    waiting, and how."""

    nbytes: int
    ready: Callable[[], bool]
    tell: Callable[[], object]


class GradientOffload:
    """Copies gradients to host memory on `stream` and hands them on, in the order of sending.

    They leave as fp32, which the device widens to: memory of the host is what takes longest. At
    most `limit` bytes wait, or one gradient. With `beside`, a thread hands them on, so that adding
    them up there does not hold up who computes; the transport must allow that.
    """

    def __init__(
        self, transport: Transport, stream: DeviceStream, limit: int, *, beside: bool
    ) -> None:
        self._transport = transport
        self._stream = stream
        self._limit = limit
        self._thread = ThreadPoolExecutor(1, "gradients") if beside else None
        self._waiting: deque[_Message] = deque()
        self._waiting_bytes = 0

    def send(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """Queue the copy of one gradient; blocks only while too many wait."""
        if gradient.layout is not torch.strided:
            copy = gradient.to("cpu", copy=True)
            self._queue(0, None, lambda: self._transport.send_gradient(leaf, name, copy))
            return
        with torch.inference_mode(False), torch.no_grad():
            source = _dense(gradient)
            source = source.float() if source.dtype in _HALVES else source
            slot = Slot(start=0, stop=source.nbytes, tensor=self._room(source), source=source)
            self._stream.copy_async(source, slot)
        slot.ready = self._stream.record()
        self._queue(source.nbytes, slot.ready, lambda: self._hand_on(leaf, name, slot))

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        """Say that a leaf is complete, behind its gradients."""
        self._queue(0, None, lambda: self._transport.finish_leaf(system, leaf, loss_sum, n_counted))

    def flush(self) -> None:
        """Block until everything has been handed on."""
        while self._waiting:
            self._tell_next()

    def close(self) -> None:
        """Forget what was not handed on."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def _room(self, like: torch.Tensor) -> torch.Tensor:
        """Host memory for a dense tensor, with its strides."""
        return (
            self._stream.allocate(like.nbytes)
            .view(like.dtype)
            .as_strided(like.shape, like.stride())
        )

    def _queue(self, nbytes: int, copied: StreamEvent | None, tell: Callable[[], None]) -> None:
        if self._thread is not None:
            future = self._thread.submit(tell)
            self._waiting.append(_Message(nbytes, future.done, future.result))
        else:
            ready = _at_once if copied is None else copied.query
            self._waiting.append(_Message(nbytes, ready, tell))
        self._waiting_bytes += nbytes
        while self._waiting and (
            self._waiting_bytes > max(self._limit, nbytes) or self._waiting[0].ready()
        ):
            self._tell_next()

    def _tell_next(self) -> None:
        message = self._waiting.popleft()
        self._waiting_bytes -= message.nbytes
        message.tell()

    def _hand_on(self, leaf: int, name: str, slot: Slot) -> None:
        assert slot.ready is not None
        self._stream.wait(slot.ready)
        slot.source = None
        self._transport.send_gradient(leaf, name, slot.tensor)


def _at_once() -> bool:
    return True


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """Without the gaps and repeats (of an expanded tensor) that no single copy can transfer."""
    like = torch.empty_like(gradient, device="meta")
    if like.stride() == gradient.stride():
        return gradient
    return torch.empty_like(gradient).copy_(gradient)


@dataclass(frozen=True)
class LinkRule:
    """How links work; the same for all wafers.

    `largest`: bytes of the two largest weights as they travel; `ahead`: bytes of weights copied
    ahead. The ring holds both sums, and as many bytes of gradients wait. `beside`: a thread hands
    gradients on. `seed`: of the delays of a CPU stream.
    """

    device: torch.device
    largest: int
    ahead: int
    beside: bool
    seed: int

    @property
    def capacity(self) -> int:
        """Bytes of the ring; every weight may lose some to alignment."""
        return align_size(self.largest) + align_size(self.ahead) + align_size(1)


class DeviceLink:
    """One wafer's link; it is a transport itself."""

    def __init__(self, transport: Transport, rule: LinkRule) -> None:
        self._transport = transport
        self._rule = rule
        self._orders = Orders()
        self._weights: WeightPrefetcher | None = None
        self._gradients: GradientOffload | None = None
        self.beside = rule.beside
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
        gradients = GradientOffload(self._transport, up, self._rule.capacity, beside=self.beside)
        fetch = self._transport.fetch_weight
        self._weights = WeightPrefetcher(fetch, weights, self._orders, self._rule.ahead)
        self._gradients = gradients
        try:
            yield
            gradients.flush()
        finally:
            gradients.close()
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

    def release_weight(self, name: str, copy: torch.Tensor, *, intact: bool) -> None:
        """Take back a copy; the next one is loaded over it."""
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
