"""Gradients arrive whole, in the order in which they were sent."""

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.wafer_backend.modules import train
from wafer_backend.compiled import BackendConfig
from wafer_backend.errors import StepError
from wafer_backend.streaming import device_link
from wafer_backend.streaming.device_link import GradientOffload
from wafer_backend.streaming.device_stream import CpuStream

CONFIG = BackendConfig(target="CSX", micro_batch_size=1, seed=3)


class Quick(CpuStream):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, 4e-5)


class Slow(CpuStream):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0.002)


class Newest(GradientOffload):
    """The mutant that hands on the newest gradient first."""

    def _tell_next(self) -> None:
        message = self._waiting.pop()
        self._waiting_bytes -= message.nbytes
        message.tell()


class Received:
    """A transport that notes what arrives, and keeps it as MemoryX does."""

    def __init__(self) -> None:
        self.arrived: list[tuple[Any, ...]] = []
        self.kept: list[torch.Tensor] = []

    def fetch_weight(self, name: str) -> torch.Tensor:
        raise NotImplementedError

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        self.arrived.append((leaf, name))
        half = gradient.dtype in (torch.bfloat16, torch.float16)
        self.kept.append(gradient.float() if half else gradient)

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        self.arrived.append((leaf, "done", loss_sum))


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.sampled_from([torch.float32, torch.bfloat16])),
        max_size=12,
    ),
    st.integers(512, 4096),
    st.booleans(),
)
@settings(max_examples=40)
def test_gradients_arrive_whole_and_in_their_order(
    gradients: list[tuple[int, torch.dtype]], capacity: int, beside: bool
):
    """Empty ones and ones larger than what may wait included."""
    received, stream = Received(), Quick(1)
    offload = GradientOffload(received, stream, capacity, beside=beside)
    sent = [torch.rand(size).to(dtype) for size, dtype in gradients]
    for index, gradient in enumerate(sent):
        offload.send(0, str(index), gradient)
    offload.finish_leaf(0, 0, 1.5, 1)
    offload.flush()
    stream.close()
    assert received.arrived == [*((0, str(i)) for i in range(len(sent))), (0, "done", 1.5)]
    assert all(
        torch.equal(kept, gradient.float())
        for kept, gradient in zip(received.kept, sent, strict=True)
    )


BESIDE = pytest.mark.parametrize("beside", [False, True])


@BESIDE
def test_no_more_gradients_wait_than_may(beside: bool):
    received, stream = Received(), Slow(1)
    offload = GradientOffload(received, stream, 2048, beside=beside)
    for sent in range(1, 21):
        offload.send(0, str(sent), torch.ones(128))
        assert sent - len(received.arrived) <= 2048 / 512
    offload.flush()
    stream.close()
    assert len(received.arrived) == 20


@BESIDE
def test_a_sparse_gradient_arrives_in_its_turn(beside: bool):
    received, stream = Received(), Slow(1)
    offload = GradientOffload(received, stream, 4096, beside=beside)
    sparse = torch.eye(3).to_sparse()
    offload.send(0, "dense", torch.ones(3))
    offload.send(0, "sparse", sparse)
    offload.flush()
    stream.close()
    assert received.arrived == [(0, "dense"), (0, "sparse")]
    assert torch.equal(received.kept[1].to_dense(), torch.eye(3))


@BESIDE
@pytest.mark.parametrize(
    "gradient",
    [
        torch.rand(3, 1).expand(3, 5),
        torch.rand(8, 6)[::2, 1:4],
        torch.rand(4, 6).t(),
        torch.rand(()),
    ],
    ids=["expanded", "with gaps", "transposed", "0-d"],
)
def test_a_gradient_of_any_strides_arrives(gradient: torch.Tensor, beside: bool):
    received, stream = Received(), Quick(1)
    offload = GradientOffload(received, stream, 4096, beside=beside)
    offload.send(0, "it", gradient)
    offload.flush()
    stream.close()
    assert torch.equal(received.kept[0], gradient)
    assert received.kept[0].stride() == gradient.clone().stride()


def test_gradients_in_another_order_give_other_bits(monkeypatch: pytest.MonkeyPatch):
    """A weight that is used three times: the order of its gradients matters."""
    plain = train(Thrice, CONFIG, 4, 3)
    assert train(Thrice, CONFIG, 4, 3, prefetch_bytes=4000) == plain
    monkeypatch.setattr(device_link, "CpuStream", Slow)
    monkeypatch.setattr(
        device_link, "GradientOffload", lambda *args, beside: Newest(*args, beside=False)
    )
    with contextlib.suppress(StepError):
        assert train(Thrice, CONFIG, 4, 3, prefetch_bytes=4000) != plain


class Thrice(nn.Module):
    """One layer, called three times, and a wide read-out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(53, 16)
        self.layer = nn.Linear(16, 16)

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
        x_BSD = self.embedding(batch["ids"])
        for _ in range(3):
            x_BSD = torch.tanh(self.layer(x_BSD))
        return x_BSD.square().sum(), batch["ids"].numel()


class Breaks(Received):
    """A transport that fails in the middle."""

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        if name == "bad":
            raise StepError("the server has ended")
        super().send_gradient(leaf, name, gradient)


@BESIDE
def test_an_error_of_the_receiver_is_raised_and_nothing_follows_it(beside: bool):
    received, stream = Breaks(), Quick(1)
    offload = GradientOffload(received, stream, 1 << 20, beside=beside)
    offload.send(0, "good", torch.ones(128))
    offload.flush()
    with pytest.raises(StepError, match="server has ended"):
        send_and_flush(offload, "bad")
    offload.close()
    stream.close()
    assert received.arrived == [(0, "good")]


def send_and_flush(offload: GradientOffload, name: str) -> None:
    offload.send(0, name, torch.ones(128))
    offload.flush()
