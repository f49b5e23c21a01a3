"""Weights ahead and gradients behind: the bits, order and bounds of a run without them."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.slow import mark_slow
from tests.wafer_backend.modules import (
    GPT2,
    Classifier,
    Llama,
    Mixed,
    Trained,
    compiled,
    state_of,
    tokens,
    train,
    train_outside,
)
from wafer_backend.cluster import precision as precisions
from wafer_backend.cluster.precision import LossScale
from wafer_backend.cluster.staging import Staging
from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.streaming import device_link
from wafer_backend.streaming.device_link import Fetches, Orders, WeightPrefetcher
from wafer_backend.streaming.device_stream import CpuStream, RingBuffer, StreamEvent, align_size

CONFIG = BackendConfig(target="CSX", micro_batch_size=1, seed=3)
Train = Callable[..., Trained]
CASES = [
    pytest.param(GPT2, train, 3, 1, id="gpt2"),
    pytest.param(Llama, train, 3, 2, id="llama"),
    pytest.param(Mixed, train, 3, 1, id="mixed"),
    pytest.param(Classifier, train_outside, 6, 2, id="outside"),
]


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_link, "CpuStream", Quick)


class Quick(CpuStream):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, 4e-5)


class Slow(CpuStream):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0.002)


# One leaf after another.


class Weights:
    """Host weights, the order in which they were fetched, and a prefetcher over them."""

    def __init__(self, sizes: dict[str, int], budget: int, capacity: int = 0) -> None:
        self.tensors = {name: torch.rand(size) for name, size in sizes.items()}
        self.fetched: list[str] = []
        self.orders = Orders()
        self.budget = budget
        largest = sum(sorted(t.nbytes for t in self.tensors.values())[-2:])
        self.stream = Quick(0)
        self.ring = RingBuffer(
            self.stream,
            capacity or align_size(largest) + 512 + align_size(budget),
            own_storages=True,
        )
        self.prefetcher = WeightPrefetcher(self.fetch, self.ring, self.orders, budget)

    def fetch(self, name: str) -> torch.Tensor:
        self.fetched.append(name)
        return self.tensors[name]

    def leaf(self, order: str) -> None:
        """Take weights in an order, each used and given back; check their values."""
        with self.prefetcher.leaf():
            for name in order:
                copy = self.prefetcher.take(name)
                assert torch.equal(copy, self.tensors[name])
                self.prefetcher.release(copy)


def test_the_second_leaf_finds_its_weights_on_their_way():
    weights = Weights(dict.fromkeys("abc", 100), budget=800)
    weights.leaf("abcba")
    assert weights.orders.fetches == Fetches(ahead=0, late=5)
    weights.leaf("abcba")
    assert weights.orders.fetches == Fetches(ahead=5, late=5)
    assert "".join(weights.fetched) == "abcba" + "abcba" + "ab"
    weights.leaf("abcba")
    assert "".join(weights.fetched) == "abcba" * 3 + "ab"


def test_kinds_of_leaves_have_orders_of_their_own():
    weights = Weights(dict.fromkeys("abc", 100), budget=800)
    for _ in range(2):
        weights.leaf("abcba")
        with torch.no_grad():
            weights.leaf("abc")
    assert weights.orders.fetches == Fetches(ahead=8, late=8)


@pytest.mark.parametrize("other", ["abxba", "ab", "abcbaa", "cab", ""])
def test_another_order_falls_back_and_is_learned(other: str):
    weights = Weights(dict.fromkeys("abcx", 100), budget=800)
    weights.leaf("abcba")
    weights.leaf(other)
    before = weights.orders.fetches.ahead
    weights.leaf(other)
    assert weights.orders.fetches.ahead == before + len(other)
    assert weights.ring.used_bytes <= 800 + 2 * 512


def test_an_error_in_a_leaf_leaves_the_order_known_and_nothing_lost():
    weights = Weights(dict.fromkeys("abc", 100), budget=800)
    weights.leaf("abcba")
    with contextlib.suppress(ZeroDivisionError), weights.prefetcher.leaf():
        weights.prefetcher.release(weights.prefetcher.take("a"))
        raise ZeroDivisionError
    assert weights.ring.used_bytes == 0
    weights.leaf("abcba")
    assert weights.orders.fetches == Fetches(ahead=6, late=5)


def test_a_weight_that_finds_no_slot_comes_alone():
    weights = Weights({"a": 100, "b": 1000}, budget=0, capacity=512)
    weights.leaf("abab")
    weights.leaf("abab")
    assert weights.ring.peak_bytes == 512


@settings(max_examples=40)
@given(
    st.lists(st.text("abcde", max_size=8), min_size=1, max_size=6),
    st.lists(st.integers(1, 900), min_size=5, max_size=5),
    st.integers(0, 6000),
)
def test_values_are_right_and_bytes_bounded_whatever_leaves_take(
    leaves: list[str], sizes: list[int], budget: int
):
    weights = Weights(dict(zip("abcde", sizes, strict=True)), budget)
    for order in leaves:
        weights.leaf(order)
        weights.leaf(order)
        assert weights.ring.peak_bytes <= weights.ring.capacity
        assert sum(take.nbytes for take, _ in weights.prefetcher._ahead) <= budget
    weights.stream.close()


# Whole runs.


@pytest.mark.parametrize(("make", "run", "samples", "micro_batch"), CASES)
@pytest.mark.parametrize("precision", mark_slow(["float32", "bfloat16", "float16"], "float16"))
def test_bits_are_those_without_prefetch(
    make: Callable[[], nn.Module],
    run: Train,
    samples: int,
    micro_batch: int,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(precisions, "make_loss_scale", lambda _: LossScale(init_scale=16.0))
    changes: dict[str, Any] = {"micro_batch_size": micro_batch, "precision": precision}
    plain = run(make, CONFIG, samples, 2, **changes)
    assert all(math.isfinite(norm) for _, norm in plain.losses)
    for activations in ("keep", "recompute", "evict"):
        for ahead in (0, 3000) if activations == "keep" else (10**6,):
            more = {"activations": activations, "prefetch_bytes": ahead, "num_csx": 2}
            assert run(make, CONFIG, samples, 2, **changes, **more) == plain


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_bits_are_those_without_prefetch_under_any_delays(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(device_link, "CpuStream", lambda of: CpuStream(1000 * seed + of, 1e-3))
    plain = train(Mixed, CONFIG, 3, 3, precision="bfloat16")
    assert train(Mixed, CONFIG, 3, 3, precision="bfloat16", prefetch_bytes=4000) == plain


def test_most_weights_are_ahead_and_rings_keep_their_size():
    made = compiled(GPT2, CONFIG, prefetch_bytes=20_000, precision="bfloat16")
    for step in (1, 2, 3):
        made.train_step(tokens(step, 4), step=step, learning_rate=0.1)
    link = made.wafers[0].link
    assert link is not None
    assert link.fetches.late == 48
    assert link.fetches.ahead == 11 * 48
    largest = sorted(map(made.memoryx.streamed_bytes, made.memoryx.parameters))[-2:]
    assert 0 < link.peak_bytes <= sum(map(align_size, largest)) + align_size(20_000) + 512
    assert link.retired_bytes == 0


class NoWait(Slow):
    """The mutant that never waits."""

    def wait(self, event: StreamEvent) -> None:
        return None


class EarlyRelease(WeightPrefetcher):
    """The mutant that gives a slot back as soon as it is lent."""

    def take(self, name: str) -> torch.Tensor:
        copy = super().take(name)
        slot = self._out.get(copy.untyped_storage().data_ptr())
        if slot is not None:
            self._ring._stream.release(slot)
        return copy


class LastStep(Staging):
    """The mutant that does not notice an update."""

    def begin_pass(self) -> None:
        return None


MUTANTS = [
    pytest.param("wafer_backend.streaming.device_link.CpuStream", NoWait, id="no wait"),
    pytest.param(
        "wafer_backend.streaming.device_link.WeightPrefetcher", EarlyRelease, id="early release"
    ),
    pytest.param("wafer_backend.cluster.memoryx.Staging", LastStep, id="stale"),
]


@pytest.mark.parametrize(("place", "mutant"), MUTANTS)
def test_a_mutant_gives_other_bits_or_fails(
    place: str, mutant: type, monkeypatch: pytest.MonkeyPatch
):
    """Were its bits equal, the equalities above would prove nothing."""
    plain = train(GPT2, CONFIG, 3, 3, precision="bfloat16")
    monkeypatch.setattr(place, mutant)
    with contextlib.suppress(StepError):
        assert train(GPT2, CONFIG, 3, 3, precision="bfloat16", prefetch_bytes=4000) != plain


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
    def run(*, failing: bool, ahead: int | None) -> dict[str, torch.Tensor]:
        made = compiled(Fails, CONFIG, prefetch_bytes=ahead)
        for step in (1, 2):
            made.train_step(tokens(step, 3), step=step, learning_rate=0.1)
            if failing:
                made.module.fails = True
                with pytest.raises(ZeroDivisionError):
                    made.train_step(tokens(9, 3), step=3, learning_rate=0.1)
                made.module.fails = False
        return state_of(made.module)

    plain = run(failing=False, ahead=None)
    found = run(failing=True, ahead=4000)
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_evaluation_sees_weights_that_changed_without_a_new_version():
    made, plain = (
        compiled(GPT2, CONFIG, prefetch_bytes=n, precision="bfloat16") for n in (4000, None)
    )
    for step in (1, 2):
        assert made.evaluate(tokens(step, 3)) == plain.evaluate(tokens(step, 3))
        for module in (made, plain):
            module.train_step(tokens(step, 3), step=step, learning_rate=0.1)
            for parameter in module.module.parameters():
                parameter.data.mul_(0.5)  # as optimizers of users do: no new version


def test_a_chosen_micro_batch_is_that_without_prefetch():
    found = [
        train(GPT2, CONFIG, 16, 1, micro_batch_size=None, prefetch_bytes=n) for n in (None, 4000)
    ]
    assert found[0] == found[1]


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
    made = compiled(Gives, CONFIG, prefetch_bytes=4000)
    made.train_step(torch.ones(3, 4), step=1, learning_rate=0.0)
    assert len(made.module.kept) == 3
    assert all(bool(weight.isnan().all()) for weight in made.module.kept)


# Configuration.


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_cuda_device_is_named():
    with pytest.raises(BackendConfigError, match="no CUDA device on this machine; use 'cpu'"):
        CompiledModule(GPT2(), BackendConfig(target="CSX", micro_batch_size=1, device="cuda"))


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("CPU", {"prefetch_bytes": 1}, "for target CSX"),
        ("GPU", {"device": "cuda"}, "for target CSX"),
        ("CSX", {"prefetch_bytes": -1}, "prefetch_bytes is -1; expected at least 0"),
        ("CSX", {"device": "tpu"}, "device is 'tpu'; expected one of cpu, cuda"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_named(target: Any, changes: Any, message: str):
    with pytest.raises(BackendConfigError, match=message):
        CompiledModule(GPT2(), BackendConfig(target=target, micro_batch_size=1, **changes))


def test_there_is_no_link_unless_asked_for():
    assert compiled(GPT2, CONFIG).wafers[0].link is None
    assert compiled(GPT2, CONFIG).memoryx.staging is None
    assert compiled(GPT2, CONFIG, target="CPU").wafers[0].link is None


def test_a_link_is_used_inside_a_step_only():
    link = compiled(GPT2, CONFIG, prefetch_bytes=0).wafers[0].link
    assert link is not None
    with pytest.raises(StepError, match="outside a step"):
        link.fetch_weight("norm.weight")
    with pytest.raises(StepError, match="outside a step"):
        link.send_gradient(0, "norm.weight", torch.ones(1))
