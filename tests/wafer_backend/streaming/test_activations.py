"""Where activations wait: kept and counted, evicted, recomputed; and checkpoints of the user."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from tests.wafer_backend.modules import GPT2, Classifier, Mixed, compiled, tokens, train
from wafer_backend.cluster.wafer import ActivationWorker
from wafer_backend.compiled import BackendConfig
from wafer_backend.streaming.activations import Activations, StorageLedger, blocks

CONFIG = BackendConfig(target="CSX", micro_batch_size=2, num_csx=2, seed=3)


def test_a_ledger_counts_every_storage_once():
    ledger = StorageLedger()
    base = torch.zeros(100)
    views = [base[:50], base[50:], torch.zeros(10)]
    ledger.watch(views[0])
    ledger.watch(views[1])
    ledger.watch(views[2])
    assert ledger.resident_bytes == 440
    del views[0]
    assert ledger.resident_bytes == 440
    views.clear()
    assert ledger.resident_bytes == 0
    assert ledger.peak_bytes == 440


def test_saved_tensors_are_counted_until_backward_has_used_them():
    kept = Activations(None)
    x_BF = torch.randn(4, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
        y_BF = torch.tanh(torch.tanh(x_BF))  # each saves its result: 128 bytes
        assert kept.resident_bytes == 2 * 128
        y_BF.sum().backward()
    assert kept.resident_bytes == 0
    assert kept.peak_bytes == 2 * 128


def test_a_saved_tensor_that_is_written_to_is_named():
    kept = Activations(None)
    x_BF = torch.randn(4, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
        y_BF = torch.exp(x_BF)
        y_BF.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y_BF.sum().backward()


def test_evicted_tensors_are_with_the_worker():
    worker = ActivationWorker(torch.device("cpu"))
    evicted = Activations(worker)
    x_BF = torch.randn(4, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(evicted.pack, evicted.unpack):
        y_BF = torch.tanh(torch.tanh(x_BF))
        assert evicted.resident_bytes == 0
        assert worker.evicted.resident_bytes == 2 * 128
        y_BF.sum().backward()
        evicted.clear()
    assert evicted.resident_bytes == worker.evicted.resident_bytes == 0
    assert evicted.peak_bytes == 128


def test_peaks_of_the_three_rules():
    peaks, aside = {}, {}
    for rule in ("keep", "recompute", "evict"):
        made = compiled(lambda: GPT2(layers=6), CONFIG, activations=rule)
        made.train_step(tokens(1, 4), step=1, learning_rate=0.0)
        peaks[rule] = [wafer.activations.peak_bytes for wafer in made.wafers]
        aside[rule] = made.worker.evicted.peak_bytes
        assert [wafer.activations.resident_bytes for wafer in made.wafers] == [0, 0]
    assert all(a < b / 2 for a, b in zip(peaks["recompute"], peaks["keep"], strict=True))
    assert all(a < b / 4 for a, b in zip(peaks["evict"], peaks["keep"], strict=True))
    assert aside["evict"] == max(peaks["keep"])
    assert aside["keep"] == aside["recompute"] == 0


def test_blocks_are_outermost_and_own_parameters():
    assert blocks(model := GPT2(layers=3)) == list(model.blocks)
    classifier = Classifier()
    assert blocks(classifier) == list(classifier.layers)
    sequence = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.ModuleList([nn.Linear(2, 2)]))
    assert blocks(sequence) == [sequence[0], sequence[2][0]]
    assert blocks(Mixed()) == []


class Stack(nn.Module):
    """Blocks with what a checkpoint could get wrong: BatchNorm, keywords, a tuple, a shared one."""

    def __init__(self) -> None:
        super().__init__()
        shared = Part()
        self.parts = nn.ModuleList([Part(), shared, shared])

    def forward(self, x_BF: Tensor) -> Tensor:
        y_BF = x_BF
        for part in self.parts:
            x_BF, y_BF = part(x_BF, other=y_BF)
        return (x_BF * y_BF).mean()


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(8))
        self.layer = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x_BF: Tensor, *, other: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(torch.tanh(self.norm(self.layer(x_BF))), 0.3), other * self.gain


@pytest.mark.parametrize("rule", ["recompute", "evict"])
@pytest.mark.parametrize("target", ["CSX", "CPU"])
def test_rules_keep_the_bits_and_buffers_move_once(rule: str, target: str):
    x_BF = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))

    def run(**changes: Any) -> tuple[float, dict[str, Tensor], dict[str, Any]]:
        made = compiled(Stack, CONFIG, micro_batch_size=4, **changes)
        result = made.train_step(x_BF, step=1, learning_rate=0.1)
        kinds = {name: set(vars(child)) for name, child in made.module.named_modules()}
        return result.loss, dict(made.module.state_dict()), kinds

    kept, other = run(), run(activations=rule, target=target)
    assert kept[0] == other[0]
    assert all(torch.equal(kept[1][name], other[1][name]) for name in kept[1])
    assert int(kept[1]["parts.0.norm.num_batches_tracked"]) == 3
    assert kept[2] == other[2]


class Checkpointing(nn.Module):
    """A user's own checkpoints: of a block, of a method with weights of its own, nested."""

    def __init__(self, *, uses: bool = True) -> None:
        super().__init__()
        self.uses = uses
        self.embedding = nn.Embedding(53, 16)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.third = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)
        self.dropout = nn.Dropout(0.2)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        x_BSD = self.embedding(batch["ids"])
        for part in (self.first, self.inner, self.outer):
            x_BSD = x_BSD + self.checkpoint(part, x_BSD)
        logits_BSV = x_BSD @ self.embedding.weight.t()
        labels = batch["labels"].flatten()
        loss = F.cross_entropy(logits_BSV.flatten(0, 1), labels, reduction="sum")
        return loss, labels.numel()

    def checkpoint(self, function: Any, x_BSD: Tensor) -> Tensor:
        if not self.uses:
            return function(x_BSD)
        return checkpoint(function, x_BSD, use_reentrant=False)

    def inner(self, x_BSD: Tensor) -> Tensor:
        hidden_BSD = torch.tanh(x_BSD @ self.weight) @ self.weight.t()
        return self.dropout(self.second(hidden_BSD))

    def outer(self, x_BSD: Tensor) -> Tensor:
        return self.dropout(self.checkpoint(self.third, torch.sin(x_BSD)))


def test_checkpoints_of_the_user_keep_the_bits():
    plain = train(lambda: Checkpointing(uses=False), CONFIG, 7, 3, target="CPU")
    for changes in ({}, {"activations": "evict"}, {"target": "CPU"}):
        assert train(Checkpointing, CONFIG, 7, 3, **changes) == plain


class SavesOnCpu(Mixed):
    """Saves through hooks of its own."""

    def forward(self, batch: dict[str, Tensor]) -> Any:
        with save_on_cpu():
            return super().forward(batch)


def test_hooks_of_the_user_keep_the_bits():
    assert train(SavesOnCpu, CONFIG, 7, 3) == train(Mixed, CONFIG, 7, 3, target="CPU")
