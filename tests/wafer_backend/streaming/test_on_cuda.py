"""On a real GPU: streams, events and pinned memory; whole runs, their bits and what stays there.

What `test_device_stream.py` and `test_prefetch.py` show on simulated queues, on the device itself.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.wafer_backend.modules import (
    GPT2,
    Classifier,
    Llama,
    Mixed,
    Trained,
    compiled,
    points,
    state_of,
    tokens,
    train,
    train_outside,
)
from wafer_backend.cluster import precision as precisions
from wafer_backend.cluster.precision import LossScale
from wafer_backend.cluster.staging import Staging
from wafer_backend.cluster.timeline import ModuleTimes, Timeline, make_clock
from wafer_backend.compiled import BackendConfig
from wafer_backend.errors import StepError
from wafer_backend.streaming.device_link import Fetches, GradientOffload, WeightPrefetcher
from wafer_backend.streaming.device_stream import CudaStream, RingBuffer, Slot, StreamEvent

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: make gpu")
ON_CUDA = BackendConfig(target="CSX", micro_batch_size=1, seed=3, device="cuda")
CUDA = torch.device("cuda", 0)
SIZE = 4 << 20
"""Numbers of a weight: 16 MB, which take a third of a millisecond to arrive."""
CYCLES = 2_000_000
"""Of a kernel that does nothing: about a millisecond."""
Train = Callable[..., Trained]
CASES = [
    pytest.param(GPT2, train, 3, 1, id="gpt2"),
    pytest.param(Llama, train, 3, 2, id="llama"),
    pytest.param(Mixed, train, 3, 1, id="mixed"),
    pytest.param(Classifier, train_outside, 6, 2, id="outside"),
]


# Streams.


class IgnoresReaders(CudaStream):
    """Copies over what is still being read."""

    def copy_async(self, source: torch.Tensor, slot: Slot) -> None:
        slot.after = []
        super().copy_async(source, slot)


class ReadsAtOnce(CudaStream):
    """Reads what may not have arrived."""

    def wait(self, event: StreamEvent) -> None:
        return None


class CopiesAtOnce(CudaStream):
    """Copies a gradient before it is computed."""

    def copy_async(self, source: torch.Tensor, slot: Slot) -> None:
        with torch.cuda.stream(self._stream):
            slot.tensor.copy_(source, non_blocking=True)


def weights_arrive(stream: CudaStream, *, own_storages: bool, lag: int) -> bool:
    """Kernels read 30 weights through room for 3, each after a kernel of `lag` cycles."""
    ring = RingBuffer(stream, 3 * 4 * SIZE, own_storages=own_storages)
    weights = [torch.full((SIZE,), float(index)).pin_memory() for index in range(30)]
    ahead: deque[Slot] = deque()
    seen = []
    for index in range(len(weights) + 2):
        if index < len(weights):
            slot = ring.load(weights[index])
            assert slot is not None
            ahead.append(slot)
        if index < 2:
            continue
        slot = ahead.popleft()
        weight = ring.read(slot)
        if lag:
            torch.cuda._sleep(lag)
        seen.append(torch.stack([weight.min(), weight.max()]))
        ring.release(slot)
    stream.close()
    return all(bool((pair == index).all()) for index, pair in enumerate(seen))


class Received:
    """A transport that notes the least and the largest number of what arrives."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        self.seen.append((float(gradient.min()), float(gradient.max())))


def gradients_leave(stream: CudaStream, *, beside: bool) -> bool:
    """The host reads 12 gradients that slow kernels compute; no more than 3 wait."""
    received: Any = Received()
    offload = GradientOffload(received, stream, 3 * 4 * SIZE, beside=beside)
    for index in range(12):
        gradient = torch.zeros(SIZE, device=CUDA)
        torch.cuda._sleep(10 * CYCLES)
        gradient.fill_(index + 1)
        offload.send(0, str(index), gradient)
    offload.flush()
    offload.close()
    stream.close()
    return bool(received.seen == [(index, index) for index in range(1, 13)])


@pytest.mark.parametrize("own_storages", [True, False])
@pytest.mark.parametrize("lag", [0, CYCLES])
def test_weights_arrive_whole(own_storages: bool, lag: int):
    stream = CudaStream(CUDA, to_host=False)
    assert weights_arrive(stream, own_storages=own_storages, lag=lag)


@pytest.mark.parametrize("beside", [False, True])
def test_gradients_leave_whole(beside: bool):
    assert gradients_leave(CudaStream(CUDA, to_host=True), beside=beside)


@pytest.mark.parametrize(("mutant", "lag"), [(IgnoresReaders, CYCLES), (ReadsAtOnce, 0)])
def test_a_missing_event_of_a_weight_shows(mutant: type[CudaStream], lag: int):
    assert not weights_arrive(mutant(CUDA, to_host=False), own_storages=False, lag=lag)


def test_a_missing_event_of_a_gradient_shows():
    assert not gradients_leave(CopiesAtOnce(CUDA, to_host=True), beside=True)


def test_a_slot_of_its_own_storage_counts_its_holders():
    stream = CudaStream(CUDA, to_host=False)
    ring = RingBuffer(stream, 2048, own_storages=True)
    slot = ring.load(torch.ones(128).pin_memory())
    assert slot is not None
    kept = ring.read(slot)[3:5]
    assert kept.untyped_storage().nbytes() == 512
    ring.release(slot)
    assert ring.retired_bytes == 512
    free = ring.load(torch.ones(128).pin_memory())
    assert free is not None
    ring.release(free)
    assert ring.retired_bytes == 512
    stream.close()


# Whole runs.


@pytest.mark.parametrize(("make", "run", "samples", "micro_batch"), CASES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_bits_depend_on_nothing_but_the_device(
    make: Callable[[], nn.Module],
    run: Train,
    samples: int,
    micro_batch: int,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """Not on what is copied ahead, on the number of systems, nor on where activations wait."""
    monkeypatch.setattr(precisions, "make_loss_scale", lambda _: LossScale(init_scale=16.0))
    changes: dict[str, Any] = {"micro_batch_size": micro_batch, "precision": precision}
    plain = run(make, ON_CUDA, samples, 3, **changes, prefetch_bytes=0)
    assert all(math.isfinite(norm) for _, norm in plain.losses)
    for activations in ("keep", "recompute", "evict"):
        for ahead in (None, 3000, 10**6):
            more = {"activations": activations, "prefetch_bytes": ahead, "num_csx": 2}
            assert run(make, ON_CUDA, samples, 3, **changes, **more) == plain, more


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [GPT2, Llama, Mixed])
def test_streamed_weights_give_the_losses_and_gradients_of_resident_ones(
    make: Callable[[], nn.Module], precision: str
):
    """The same kernels on the same numbers; the optimizers differ, one computes on the host."""
    found = []
    for more in ({"target": "GPU", "device": "cpu"}, {}):
        made = compiled(make, ON_CUDA, precision=precision, **more)
        loss_sum, counted = made(tokens(1, 4))
        (loss_sum / counted).backward()
        gradients = {
            name: p.grad.cpu() for name, p in made.module.named_parameters() if p.grad is not None
        }
        found.append((float(loss_sum.detach()), gradients))
    assert found[0][0] == found[1][0]
    assert found[0][1].keys() == found[1][1].keys()
    for name, gradient in found[0][1].items():
        assert torch.equal(gradient, found[1][1][name]), name


@pytest.mark.parametrize("target", ["CSX", "GPU"])
def test_losses_are_those_of_a_cpu_but_for_rounding(target: str):
    """A model without dropout, whose random numbers a GPU draws otherwise."""
    device = "cuda" if target == "CSX" else "cpu"
    found = train(Llama, ON_CUDA, 4, 10, target=target, device=device)
    plain = train(Llama, ON_CUDA, 4, 10, target="CPU", device="cpu")
    for (loss, norm), (their_loss, their_norm) in zip(found.losses, plain.losses, strict=True):
        assert loss == pytest.approx(their_loss, rel=1e-4)
        assert norm == pytest.approx(their_norm, rel=1e-3)


def test_weights_are_on_their_way_and_rings_are_small():
    made = compiled(GPT2, ON_CUDA, prefetch_bytes=20_000, precision="bfloat16")
    for step in (1, 2, 3):
        made.train_step(tokens(step, 4), step=step, learning_rate=0.1)
    link = made.wafers[0].link
    assert link is not None
    assert link.fetches == Fetches(ahead=11 * 48, late=48)
    assert link.retired_bytes == 0


def test_the_device_holds_a_ring_and_one_leaf_and_nothing_between_steps():
    before = torch.cuda.memory_allocated()
    made = compiled(lambda: GPT2(1024, 12, 8), ON_CUDA, precision="bfloat16")
    assert torch.cuda.memory_allocated() == before
    torch.cuda.reset_peak_memory_stats()
    made.train_step(tokens(1, 2), step=1, learning_rate=0.1)
    weights = sum(map(made.memoryx.streamed_bytes, made.memoryx.parameters))
    assert weights > 300_000_000
    assert 0 < torch.cuda.max_memory_allocated() - before < weights / 2
    assert torch.cuda.memory_allocated() - before <= 80 << 20  # the workspaces of cuBLAS


class LastStep(Staging):
    """The mutant that does not notice an update."""

    def begin_pass(self) -> None:
        return None


class EarlyRelease(WeightPrefetcher):
    """The mutant that gives a slot back as soon as it is lent, to the next copy."""

    def take(self, name: str) -> torch.Tensor:
        copy = super().take(name)
        slot = self._out.get(copy.untyped_storage().data_ptr())
        if slot is not None:
            slot.tensor.fill_(math.nan)
        return copy


MUTANTS = [
    pytest.param("wafer_backend.streaming.device_link.WeightPrefetcher", EarlyRelease, id="early"),
    pytest.param("wafer_backend.cluster.memoryx.Staging", LastStep, id="stale"),
]


@pytest.mark.parametrize(("place", "mutant"), MUTANTS)
def test_a_mutant_gives_other_bits_or_fails(
    place: str, mutant: type, monkeypatch: pytest.MonkeyPatch
):
    plain = train(GPT2, ON_CUDA, 3, 3, precision="bfloat16")
    monkeypatch.setattr(place, mutant)
    with contextlib.suppress(StepError):
        assert train(GPT2, ON_CUDA, 3, 3, precision="bfloat16") != plain


class Fails(nn.Module):
    """Fails in the middle of a leaf when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Mixed()
        self.fails = False

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        if self.fails:
            self.inner.up(self.inner.embedding(batch["ids"]))
            raise ZeroDivisionError
        loss_sum, counted = self.inner(batch)
        return loss_sum, counted


def test_a_failed_step_leaves_no_trace():
    def run(*, failing: bool) -> dict[str, torch.Tensor]:
        made = compiled(Fails, ON_CUDA)
        for step in (1, 2):
            made.train_step(tokens(step, 3), step=step, learning_rate=0.1)
            if failing:
                made.module.fails = True
                with pytest.raises(ZeroDivisionError):
                    made.train_step(tokens(9, 3), step=3, learning_rate=0.1)
                made.module.fails = False
        return state_of(made.module)

    plain, found = run(failing=False), run(failing=True)
    assert all(torch.equal(found[name], plain[name]) for name in plain)


class Gives(nn.Module):
    """Keeps a weight beyond its use."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.others = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.kept: list[torch.Tensor] = []

    def forward(self, x_BD: torch.Tensor) -> tuple[torch.Tensor, int]:
        self.kept.append(self.weight.detach())
        x_BD = x_BD @ self.weight
        for layer in self.others:
            x_BD = layer(x_BD)
        return x_BD.sum(), len(x_BD)


def test_a_weight_that_is_kept_beyond_its_use_stays_nan():
    made = compiled(Gives, ON_CUDA)
    made.train_step(torch.ones(3, 4), step=1, learning_rate=0.0)
    assert len(made.module.kept) == 3
    assert all(weight.is_cuda and bool(weight.isnan().all()) for weight in made.module.kept)


def test_the_clock_waits_for_the_device():
    made = compiled(lambda: GPT2(512, 4, 4), ON_CUDA)
    batch = tokens(1, 16)
    made.train_step(batch, step=1, learning_rate=0.0)
    torch.cuda.synchronize()
    started = time.perf_counter_ns()
    timeline = Timeline(make_clock(CUDA))
    with made.profile(timeline, ModuleTimes(timeline.clock)):
        made.train_step(batch, step=2, learning_rate=0.0)
    torch.cuda.synchronize()
    took = time.perf_counter_ns() - started
    leaves = [span for span in timeline.spans if span.name.startswith("leaf")]
    assert leaves
    assert 0 < sum(span.end - span.start for span in leaves if span.role == "wafer 0") <= took


def test_a_program_sees_no_other_device_than_without_one():
    """Outputs and losses are in host memory, as the weights and their gradients are."""
    made = compiled(Classifier, ON_CUDA, micro_batch_size=2)
    x_BF, classes_B = points(1, 6)
    output_BC = made(x_BF)
    nn.functional.nll_loss(output_BC, classes_B).backward()
    assert not output_BC.is_cuda
    assert all(p.grad is not None and not p.grad.is_cuda for p in made.module.parameters())
    assert float(made.module.norm.running_mean.abs().sum()) > 0
    loss_sum, counted = compiled(GPT2, ON_CUDA)(tokens(1, 3))
    assert not loss_sum.is_cuda
    assert not counted.is_cuda


def test_fused_adamw_on_pinned_masters_is_that_on_plain_memory():
    """`train` uses it on the host."""
    found = []
    for pinned in (True, False):
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(1000, 33, generator=generator)
        weight = weight.pin_memory() if pinned else weight
        parameter = nn.Parameter(weight)
        optimizer = torch.optim.AdamW([parameter], lr=1e-2, fused=True)
        for _ in range(5):
            parameter.grad = torch.randn(1000, 33, generator=generator)
            optimizer.step()
        found.append(parameter.detach().clone())
    assert torch.equal(found[0], found[1])
