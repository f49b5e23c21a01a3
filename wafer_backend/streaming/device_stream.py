"""Copies between a host and a device beside the computation: streams, events, rings of bytes.

A `RingBuffer` hands out slots of one piece of memory. A copy into a slot is queued and has an event
that its reader waits for; bytes that are given back are reused when the reader is done.

- `CudaStream`: a side stream, CUDA events, `non_blocking` copies from or to pinned memory.
- `CpuStream`: a thread that copies after seeded delays. Released slots are all ones, which is NaN,
  so a missing wait or an early release shows. It cannot show a copy that fails to wait for
  computing, which is never asynchronous on a CPU.

One thread at a time may use a ring.
"""

import bisect
import random
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch.utils.dlpack import from_dlpack

from wafer_backend.streaming.leases import count_holders

_ALIGNMENT = 512
"""Bytes; what PyTorch's CUDA allocator aligns to, a multiple of what its CPU allocator does."""
_POISON = 0xFF
"""Bytes of NaN in fp32, bf16 and fp16, and of -1 in integers."""


class StreamEvent(Protocol):
    """A moment in a queue of work."""

    def query(self) -> bool:
        """Whether it has passed."""

    def synchronize(self) -> None:
        """Block the calling thread until it has."""


@dataclass(eq=False, kw_only=True)
class Slot:
    """Some bytes of a ring, from `start` up to `stop`, and the tensor that is copied into them.

    `after`: what a copy into them waits for. `ready`: the copy is done. `source` lives as long.
    `holders`: references to the storage of `tensor` that are the ring's own.
    """

    start: int
    stop: int
    tensor: torch.Tensor
    after: list[StreamEvent] = field(default_factory=list)
    ready: StreamEvent | None = None
    source: torch.Tensor | None = None
    holders: int = 0


class DeviceStream(Protocol):
    """A queue of copies in one direction, beside the queue that computes."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Bytes where copies end: (nbytes,) uint8."""

    def copy_async(self, source: torch.Tensor, slot: Slot) -> None:
        """Queue a copy of `source` into a slot; it starts when `slot.after` has passed."""

    def record(self) -> StreamEvent:
        """The moment when all copies queued so far are done."""

    def wait(self, event: StreamEvent) -> None:
        """Who reads next does so after `event`."""

    def release(self, slot: Slot) -> StreamEvent | None:
        """The moment when who has read so far is done with a slot; None when that is now."""

    def close(self) -> None:
        """Block until every copy is done; the stream is not used again."""


class _FreedBytes(NamedTuple):
    """Bytes whose reader is done at `event`."""

    start: int
    stop: int
    event: StreamEvent


class RingBuffer:
    """Slots of `capacity` bytes, handed out round and round; slots still in use are stepped over.

    `own_storages`: each slot's tensor has a storage of its own, as streamed weights must have to be
    told apart; if that is still held elsewhere on release, its bytes are not handed out again
    (`retired_bytes`), so that what a user kept stays NaN.
    """

    def __init__(self, stream: DeviceStream, capacity: int, *, own_storages: bool) -> None:
        self._stream = stream
        self._own_storages = own_storages
        self.capacity = align_size(capacity)
        with torch.inference_mode(False):
            self._memory = stream.allocate(self.capacity)
        self._live: list[Slot] = []
        self._freed: list[_FreedBytes] = []
        self._head = 0
        self.used_bytes = self.peak_bytes = self.retired_bytes = 0
        self._note_freed(Slot(start=0, stop=self.capacity, tensor=self._memory))

    @property
    def device(self) -> torch.device:
        """Where its memory is."""
        return self._memory.device

    def fits(self, nbytes: int) -> bool:
        """Whether a tensor of so many bytes finds a slot now."""
        return nbytes > 0 and self._place(align_size(nbytes)) is not None

    def load(self, source: torch.Tensor) -> Slot | None:
        """Queue a copy of a dense tensor into a slot; None when no slot is free for it.

        The copy has the strides that `source.to(..., copy=True)` would give it, and so the bits of
        what is computed from it are the same. `source` must not change before the slot is read.
        """
        size = align_size(source.nbytes)
        start = self._place(size) if size else None
        if start is None:
            return None
        with torch.inference_mode(False), torch.no_grad():
            slot = Slot(
                start=start, stop=start + size, tensor=self._carved(start, source), source=source
            )
            slot.after = self._readers(slot)
            self._stream.copy_async(source, slot)
        slot.ready = self._stream.record()
        if self._own_storages:
            slot.holders = count_holders(slot.tensor)
        bisect.insort(self._live, slot, key=lambda live: live.start)
        self._head = slot.stop
        self.used_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return slot

    def read(self, slot: Slot) -> torch.Tensor:
        """The tensor of a slot; who uses it does so after its copy."""
        assert slot.ready is not None
        self._stream.wait(slot.ready)
        return slot.tensor

    def release(self, slot: Slot) -> None:
        """Give a slot back, read or not; it holds nothing of use from here on."""
        slot.source = None
        if self._own_storages and count_holders(slot.tensor) > slot.holders:
            self._stream.release(slot)
            self.retired_bytes += slot.stop - slot.start
            return
        self._live.remove(slot)
        self.used_bytes -= slot.stop - slot.start
        self._note_freed(slot)

    def _place(self, size: int) -> int | None:
        """Where `size` bytes are free: from the head on if possible, else from the start."""
        gaps = list(self._gaps())
        ahead = [(max(start, self._head), stop) for start, stop in gaps]
        return next((start for start, stop in [*ahead, *gaps] if stop - start >= size), None)

    def _gaps(self) -> Iterable[tuple[int, int]]:
        end = 0
        for slot in self._live:
            yield end, slot.start
            end = slot.stop
        yield end, self.capacity

    def _carved(self, start: int, source: torch.Tensor) -> torch.Tensor:
        """Bytes of the ring as a tensor like `source`."""
        piece = self._memory[start : start + source.nbytes]
        if self._own_storages:
            piece = from_dlpack(piece)
        like = torch.empty_like(source, device="meta")
        typed = piece.view(source.dtype)
        return typed.as_strided(like.shape, like.stride(), typed.storage_offset())

    def _readers(self, slot: Slot) -> list[StreamEvent]:
        """Who may still read the bytes of a new slot; whole pieces it covers are forgotten."""
        events = [f.event for f in self._freed if f.start < slot.stop and slot.start < f.stop]
        self._forget_inside(slot)
        return events

    def _note_freed(self, slot: Slot) -> None:
        event = self._stream.release(slot)
        self._forget_inside(slot)
        if event is not None:
            self._freed.append(_FreedBytes(slot.start, slot.stop, event))

    def _forget_inside(self, slot: Slot) -> None:
        self._freed = [f for f in self._freed if f.start < slot.start or slot.stop < f.stop]


class CpuStream:
    """Copies on a thread, each after a delay of up to `longest_delay` seconds drawn from `seed`.

    It is there for tests: on a CPU a copy beside the computation gains nothing.
    """

    def __init__(self, seed: int, longest_delay: float = 3e-4) -> None:
        self._delays = random.Random(seed)
        self._longest_delay = longest_delay
        self._thread = ThreadPoolExecutor(1, "cpu-stream")
        self._last: Future[None] = Future()
        self._last.set_result(None)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Bytes of host memory, NaN until something is copied there."""
        return torch.full((nbytes,), _POISON, dtype=torch.uint8)

    def copy_async(self, source: torch.Tensor, slot: Slot) -> None:
        """Queue a copy after what is queued already."""
        delay = self._delays.uniform(0, self._longest_delay)
        self._last = self._thread.submit(_copy_late, source.detach(), slot.tensor, delay)

    def record(self) -> StreamEvent:
        """The last copy that is queued."""
        return _PendingCopy(self._last)

    def wait(self, event: StreamEvent) -> None:
        """Block."""
        event.synchronize()

    def release(self, slot: Slot) -> None:
        """Overwrite the slot: on a CPU its reader is done."""
        _view_bytes(slot.tensor).fill_(_POISON)

    def close(self) -> None:
        """Block until the thread has ended."""
        self._thread.shutdown(wait=True)


class _PendingCopy:
    """A copy on the thread; an error there is raised where it is waited for."""

    def __init__(self, future: "Future[None]") -> None:
        self._future = future

    def query(self) -> bool:
        return self._future.done()

    def synchronize(self) -> None:
        self._future.result()


class CudaStream:
    """Copies on a side stream of a CUDA device: to the device, or (`to_host`) from it.

    Who reads and releases is the current stream of the calling thread; with `to_host`, the host
    reads, and nothing is released: what is copied there is its own.
    """

    def __init__(self, device: torch.device, *, to_host: bool) -> None:
        self._device = device
        self._to_host = to_host
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Bytes of device memory, or pinned ones of the host."""
        if self._to_host:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def copy_async(self, source: torch.Tensor, slot: Slot) -> None:
        """Queue a copy; one to the host first waits for what computes its source."""
        if self._to_host:
            self._stream.wait_event(self._computed())  # type: ignore[arg-type]
        for event in slot.after:
            self._stream.wait_event(event)  # type: ignore[arg-type]
        with torch.cuda.stream(self._stream):
            slot.tensor.copy_(source, non_blocking=True)

    def record(self) -> StreamEvent:
        """An event behind all copies so far."""
        event: StreamEvent = self._stream.record_event()
        return event

    def wait(self, event: StreamEvent) -> None:
        """The current stream waits; the host does not, unless it is the reader."""
        if self._to_host:
            event.synchronize()
        else:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(event)  # type: ignore[arg-type]

    def release(self, slot: Slot) -> StreamEvent:
        """An event behind what the current stream was given so far."""
        return self._computed()

    def close(self) -> None:
        """Block the host until all copies are done."""
        self._stream.synchronize()

    def _computed(self) -> StreamEvent:
        event: StreamEvent = torch.cuda.current_stream(self._device).record_event()
        return event


def align_size(nbytes: int) -> int:
    """Bytes that a tensor takes in a ring.

    >>> align_size(1), align_size(512), align_size(513)
    (512, 512, 1024)
    """
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _copy_late(source: torch.Tensor, target: torch.Tensor, delay: float) -> None:
    time.sleep(delay)
    with torch.no_grad():
        target.copy_(source)


def _view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor, whatever its strides."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)
