"""Rings and streams: right use gives right bytes, and every kind of wrong use shows.

`CudaStream` itself runs here too, on simulated queues that execute in any order its events allow.
"""

import contextlib
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wafer_backend.streaming import device_stream
from wafer_backend.streaming.device_link import GradientOffload
from wafer_backend.streaming.device_stream import (
    CpuStream,
    CudaStream,
    DeviceStream,
    RingBuffer,
    Slot,
)

SEEDS = range(40)
CUDA = torch.device("cuda", 0)


def numbers(index: int, size: int = 100) -> torch.Tensor:
    return torch.full((size,), float(index))


# The CPU stream.


def reads_right(stream: CpuStream, *, early: bool = False) -> bool:
    """Stream 12 tensors through room for 3, two ahead, and compare what is read."""
    ring = RingBuffer(stream, 3 * 512, own_storages=True)
    ahead: deque[Slot] = deque()
    right = True
    for index in range(14):
        if index < 12:
            slot = ring.load(numbers(index))
            assert slot is not None
            ahead.append(slot)
        if index < 2:
            continue
        slot = ahead.popleft()
        tensor = ring.read(slot)
        if early:
            ring.release(slot)
        right = right and torch.equal(tensor, numbers(index - 2))
        if not early:
            ring.release(slot)
    stream.close()
    return right and ring.peak_bytes == ring.capacity and ring.used_bytes == 0


class NoWait(CpuStream):
    """The mutant that reads without waiting."""

    def wait(self, event: device_stream.StreamEvent) -> None:
        return None


def test_right_use_gives_right_bytes_under_any_delays():
    assert all(reads_right(CpuStream(seed)) for seed in SEEDS)


def test_a_missing_wait_shows():
    assert not any(reads_right(NoWait(seed, 0.002)) for seed in SEEDS[:10])


def test_an_early_release_shows():
    assert not any(reads_right(CpuStream(seed), early=True) for seed in SEEDS[:10])


@given(
    st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 5)), max_size=30),
    st.integers(512, 4096),
)
def test_slots_never_overlap_and_never_exceed_the_ring(steps: list[tuple[int, int]], capacity: int):
    ring = RingBuffer(CpuStream(0, 0.0), capacity, own_storages=True)
    live: list[tuple[Slot, torch.Tensor]] = []
    for size, which in steps:
        source = torch.arange(size).to(torch.uint8)
        fits = ring.fits(size)
        slot = ring.load(source)
        assert (slot is not None) == fits
        if slot is not None:
            live.append((slot, source))
        elif not live:
            assert device_stream.align_size(size) > ring.capacity
        spans = sorted((slot.start, slot.stop) for slot, _ in live)
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
        assert all(0 <= start < stop <= ring.capacity for start, stop in spans)
        assert ring.used_bytes == sum(stop - start for start, stop in spans) <= ring.peak_bytes
        for slot, source in live:
            assert torch.equal(ring.read(slot), source)
        if which < len(live):
            ring.release(live.pop(which)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_copy_is_like_to_makes_it(dtype: torch.dtype, order: tuple[int, int, int]):
    source = torch.arange(24).reshape(2, 3, 4).permute(order).to(dtype)
    stream = CpuStream(1)
    ring = RingBuffer(stream, 4096, own_storages=True)
    slots = [ring.load(source), ring.load(source)]
    copy = source.to(dtype, copy=True)
    for slot in slots:
        assert slot is not None
        tensor = ring.read(slot)
        assert torch.equal(tensor, copy)
        assert (tensor.dtype, tensor.stride()) == (copy.dtype, copy.stride())
        assert tensor.storage_offset() == 0
        assert tensor.untyped_storage().nbytes() == copy.nbytes
    stream.close()


def test_what_somebody_keeps_is_never_handed_out_again():
    stream = CpuStream(0)
    ring = RingBuffer(stream, 1024, own_storages=True)
    slot = ring.load(numbers(1))
    assert slot is not None
    kept = ring.read(slot)[3:5]
    ring.release(slot)
    assert ring.retired_bytes == 512
    for index in range(5):
        other = ring.load(numbers(index))
        assert other is not None
        ring.read(other)
        ring.release(other)
    assert bool(kept.isnan().all())
    assert ring.retired_bytes == 512
    stream.close()


def test_nothing_fits_a_full_ring_nor_nothing_at_all():
    stream = CpuStream(0)
    ring = RingBuffer(stream, 512, own_storages=False)
    assert not ring.fits(0)
    assert ring.load(torch.zeros(0)) is None
    assert ring.load(torch.zeros(200)) is None
    assert ring.load(torch.zeros(128)) is not None
    assert ring.load(torch.zeros(1)) is None
    stream.close()


def test_a_copy_that_fails_is_raised_where_it_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    def fail(*args: object) -> None:
        raise RuntimeError("no copy today")

    monkeypatch.setattr(device_stream, "_copy_late", fail)
    stream = CpuStream(0)
    ring = RingBuffer(stream, 512, own_storages=False)
    slot = ring.load(numbers(1))
    assert slot is not None
    with pytest.raises(RuntimeError, match="no copy today"):
        ring.read(slot)
    stream.close()


# The CUDA stream, on queues that are simulated.


class Queue:
    """A CUDA stream: work that runs in order, some of it waiting for other queues."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.work: deque[Callable[[], bool]] = deque()
        self.queued = self.done = 0
        machine.queues.append(self)

    def add(self, ready: Callable[[], bool]) -> None:
        self.work.append(ready)
        self.queued += 1

    def wait_event(self, event: "Moment") -> None:
        self.add(event.query_only)

    def record_event(self) -> "Moment":
        return Moment(self, self.queued)

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def advance(self) -> bool:
        if not self.work or not self.work[0]():
            return False
        self.work.popleft()
        self.done += 1
        return True


class Moment:
    """A CUDA event."""

    def __init__(self, queue: Queue, position: int) -> None:
        self.queue, self.position = queue, position

    def query_only(self) -> bool:
        return self.queue.done >= self.position

    def query(self) -> bool:
        self.queue.machine.run_a_little()
        return self.query_only()

    def synchronize(self) -> None:
        while not self.query_only():
            self.queue.machine.step()


class Machine:
    """Queues that advance in an order drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queues: list[Queue] = []
        self.compute = self.current = Queue(self)

    def step(self) -> None:
        for queue in self.random.sample(self.queues, len(self.queues)):
            if queue.advance():
                return
        raise AssertionError("every queue waits for another")

    def run_a_little(self) -> None:
        for _ in range(self.random.randrange(4)):
            if any(queue.work for queue in self.queues):
                self.step()

    def finish(self) -> None:
        while any(queue.work for queue in self.queues):
            self.step()

    def launch(self, kernel: Callable[[], object]) -> None:
        """Queue a kernel where kernels of the calling code go."""

        def run() -> bool:
            kernel()
            return True

        self.current.add(run)

    @contextlib.contextmanager
    def stream(self, queue: Queue) -> Iterator[None]:
        self.current, held = queue, self.current
        try:
            yield
        finally:
            self.current = held

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Queue(self))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)


class OnMachine(torch.Tensor):
    """Memory that a machine copies to."""

    machine: Machine

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not torch.Tensor.copy_:
            return super().__torch_function__(function, types, args, kwargs or {})
        assert kwargs == {"non_blocking": True}
        target, source = (tensor.as_subclass(torch.Tensor) for tensor in args)
        cls.machine.launch(lambda: target.copy_(source))
        return args[0]


class Simulated(CudaStream):
    """A CUDA stream whose memory is on the machine."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8).as_subclass(OnMachine)


class IgnoresReaders(Simulated):
    """Copies over what is still being read."""

    def copy_async(self, source: torch.Tensor, slot: Slot) -> None:
        slot.after = []
        super().copy_async(source, slot)


class ReadsAtOnce(Simulated):
    """Reads what may not have arrived."""

    def wait(self, event: device_stream.StreamEvent) -> None:
        return None


class CopiesAtOnce(Simulated):
    """Copies a gradient before it is computed."""

    def copy_async(self, source: torch.Tensor, slot: Slot) -> None:
        with torch.cuda.stream(self._stream):
            slot.tensor.copy_(source, non_blocking=True)


def weights_arrive(machine: Machine, stream: DeviceStream) -> bool:
    """Kernels read 20 weights of many sizes through room for a few, the host far ahead of them."""
    OnMachine.machine = machine
    ring = RingBuffer(stream, 4 * 512, own_storages=False)
    weights = [numbers(index, machine.random.randrange(1, 400)) for index in range(20)]
    waiting, seen = deque(weights), []
    ahead: deque[Slot] = deque()
    while waiting or ahead:
        machine.run_a_little()
        while waiting and len(ahead) < 3:
            slot = ring.load(waiting[0])
            if slot is None:
                break
            ahead.append(slot)
            waiting.popleft()
        slot = ahead.popleft()
        tensor = ring.read(slot).as_subclass(torch.Tensor)
        machine.launch(lambda tensor=tensor: seen.append(tensor.clone()))
        ring.release(slot)
    machine.finish()
    stream.close()
    return all(map(torch.equal, seen, weights)) and len(seen) == len(weights)


class Received:
    """A transport that adds up what arrives."""

    def __init__(self) -> None:
        self.sums: list[float] = []

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        self.sums.append(float(gradient.as_subclass(torch.Tensor).sum()))


def gradients_leave(machine: Machine, stream: DeviceStream) -> bool:
    """The host reads 12 gradients that kernels compute; no more than 3 wait."""
    OnMachine.machine = machine
    received: Any = Received()
    offload = GradientOffload(received, stream, 3 * 400, beside=False)
    for index in range(12):
        machine.run_a_little()
        gradient = torch.zeros(100)
        machine.launch(lambda gradient=gradient, index=index: gradient.fill_(index + 1))
        offload.send(0, str(index), gradient)
    offload.flush()
    machine.finish()
    return received.sums == [100.0 * (index + 1) for index in range(12)]


def right(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Simulated],
    run: Callable[[Machine, DeviceStream], bool],
    *,
    to_host: bool,
) -> list[bool]:
    found = []
    for seed in SEEDS:
        machine = Machine(seed)
        machine.patch(monkeypatch)
        found.append(run(machine, kind(CUDA, to_host=to_host)))
    return found


def test_on_cuda_weights_arrive_in_any_order_of_events(monkeypatch: pytest.MonkeyPatch):
    assert all(right(monkeypatch, Simulated, weights_arrive, to_host=False))


def test_on_cuda_gradients_leave_in_any_order_of_events(monkeypatch: pytest.MonkeyPatch):
    assert all(right(monkeypatch, Simulated, gradients_leave, to_host=True))


@pytest.mark.parametrize("mutant", [IgnoresReaders, ReadsAtOnce])
def test_on_cuda_a_missing_event_of_a_weight_shows(
    monkeypatch: pytest.MonkeyPatch, mutant: type[Simulated]
):
    assert not all(right(monkeypatch, mutant, weights_arrive, to_host=False))


@pytest.mark.parametrize("mutant", [CopiesAtOnce, ReadsAtOnce])
def test_on_cuda_a_missing_event_of_a_gradient_shows(
    monkeypatch: pytest.MonkeyPatch, mutant: type[Simulated]
):
    assert not all(right(monkeypatch, mutant, gradients_leave, to_host=True))
