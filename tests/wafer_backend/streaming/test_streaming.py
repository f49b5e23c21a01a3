"""Weights visit the wafer and leave: resident bytes, poison, restoration, refusals."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from wafer_backend.compiled import BackendConfig, CompiledModule, Target
from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.streaming.activations import Activations
from wafer_backend.streaming.attachment import attach_source
from wafer_backend.streaming.weights import WeightStream


class Tied(nn.Module):
    """A tied read-out and a functional use of the same weight, around a layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(29, 8)
        self.norm = nn.LayerNorm(8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 29, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
        x_BSD = self.embedding(batch["ids"])
        x_BSD = torch.tanh(self.layer(self.norm(self.layer(self.norm(x_BSD)))))
        logits_BSV = self.head(x_BSD) + x_BSD @ self.embedding.weight.t()
        labels = batch["labels"].flatten()
        return F.cross_entropy(logits_BSV.flatten(0, 1), labels, reduction="sum"), labels.numel()


def batch(samples: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 29, (samples, 7), generator=torch.Generator().manual_seed(1))
    return {"ids": tokens[:, :-1], "labels": tokens[:, 1:]}


class Deep(nn.Module):
    """Equal layers, so that no tensor dominates."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(12))

    def forward(self, x_BD: torch.Tensor) -> tuple[torch.Tensor, int]:
        for layer in self.layers:
            x_BD = torch.tanh(layer(x_BD))
        return x_BD.sum(), len(x_BD)


def compiled(module: nn.Module, num_csx: int = 1, target: Target = "CSX") -> CompiledModule:
    made = CompiledModule(module, BackendConfig(target=target, micro_batch_size=2, num_csx=num_csx))
    made.memoryx.optimizer = torch.optim.SGD(
        [p for p in made.memoryx.parameters.values() if p.requires_grad]
    )
    return made


def test_resident_weights_peak_at_the_two_largest_modules():
    made = compiled(Deep(), num_csx=2)
    made.train_step(torch.randn(8, 24), step=1, learning_rate=0.1)
    layer_bytes = 4 * (24 * 24 + 24)
    for wafer in made.wafers:
        assert wafer.stream is not None
        assert 0 < wafer.stream.peak_bytes <= 2 * layer_bytes
        assert wafer.stream.resident_bytes == 0
    assert made.memoryx.weight_bytes == 12 * layer_bytes


def remember_copies(made: CompiledModule, look: Callable[[torch.Tensor], Any]) -> list[Any]:
    """What `look` makes of every copy that MemoryX hands out."""
    seen: list[Any] = []
    weight = made.memoryx.weight

    def remembered(name: str) -> torch.Tensor:
        copy = weight(name)
        seen.append(look(copy))
        return copy

    made.memoryx.weight = remembered  # type: ignore[method-assign]
    return seen


def test_every_copy_that_somebody_holds_is_poisoned():
    made = compiled(Tied())
    held = remember_copies(made, torch.Tensor.detach)
    made.train_step(batch(4), step=1, learning_rate=0.1)
    assert len(held) > 15
    assert all(bool(copy.isnan().all()) for copy in held)
    masters = {p.untyped_storage().data_ptr() for p in made.memoryx.parameters.values()}
    addresses = {copy.untyped_storage().data_ptr() for copy in held}
    assert not masters & addresses
    assert len(addresses) == len(held), "none of them is handed out again"


def test_every_copy_is_freed():
    made = compiled(Tied())
    storages = remember_copies(made, lambda copy: StorageWeakRef(copy.untyped_storage()))
    made.train_step(batch(4), step=1, learning_rate=0.1)
    gc.collect()
    assert len(storages) > 15
    assert all(storage.expired() for storage in storages)


def test_the_module_holds_no_usable_weights_during_a_step_and_has_them_back_after():
    module = Tied()
    before = dict(module.named_parameters())
    kinds = {name: type(child) for name, child in module.named_modules()}
    made = compiled(module)
    seen = []

    def look() -> None:
        for parameter in module.parameters():
            assert bool(parameter.isnan().all())
            seen.append(parameter.untyped_storage().nbytes())

    made.train_step(batch(4), step=1, learning_rate=0.1, between_leaves=look)
    assert max(seen) == 4
    assert all(dict(module.named_parameters())[name] is p for name, p in before.items())
    assert module.head.weight is module.embedding.weight
    assert {name: type(child) for name, child in module.named_modules()} == kinds
    assert not any("_wafer" in key for child in module.modules() for key in vars(child))


def test_everything_is_restored_after_an_error():
    module = Tied()
    made = compiled(module)
    bad = batch(4)
    bad["labels"] = bad["labels"][:, :3]
    with pytest.raises(ValueError, match="batch_size"):
        made.train_step(bad, step=1, learning_rate=0.1)
    assert type(module) is Tied
    assert not any(bool(p.isnan().any()) for p in module.parameters())
    made.train_step(batch(4), step=1, learning_rate=0.1)


class Writes(nn.Module):
    """Changes a weight during forward, which would be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x_BD: torch.Tensor) -> tuple[torch.Tensor, int]:
        with torch.no_grad():
            self.weight.mul_(2)
        return (x_BD * self.weight).sum(), len(x_BD)


def test_writing_to_a_weight_in_forward_is_named():
    with pytest.raises(StepError, match="'weight' was modified in place"):
        compiled(Writes()).train_step(torch.ones(2, 3), step=1, learning_rate=0.1)


class Keeps(nn.Module):
    """Keeps a streamed copy beyond its module's call and returns it through another."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Linear(3, 3, bias=False)
        self.giver = Gives()
        self.kept: torch.Tensor | None = None

    def forward(self, x_BD: torch.Tensor) -> tuple[torch.Tensor, int]:
        self.kept = self.prompt.weight
        x_BD = F.linear(x_BD, self.giver()) + F.linear(x_BD, self.prompt.weight)
        return x_BD.sum(), len(x_BD)


class Gives(nn.Module):
    """Returns its own weight, as a prompt or a parametrisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.full((3, 3), 2.0))

    def forward(self) -> torch.Tensor:
        return self.matrix


def test_a_returned_weight_stays_valid_and_a_kept_one_becomes_nan():
    module = Keeps()
    made = compiled(module)
    result = made.train_step(torch.ones(4, 3), step=1, learning_rate=0.0)
    assert result.loss == pytest.approx(18 + float(module.prompt.weight.detach().sum()))
    assert module.kept is not None
    assert bool(module.kept.isnan().all())


def test_use_outside_a_leaf_is_named():
    module = Deep()
    stream = WeightStream(
        lambda name: torch.zeros(1),
        lambda name, gradient: None,
        dict(module.named_parameters()),
        Activations(None),
    )
    with (
        attach_source(module, stream),
        pytest.raises(StepError, match=r"layers.0.weight.*outside a step"),
    ):
        F.linear(torch.zeros(1, 24), module.layers[0].weight)


def test_evaluation_streams_and_leaves_no_gradients():
    module = Tied()
    made = compiled(module, num_csx=2)
    loss_sum, counted = made.evaluate(batch(3))
    module.eval()
    with torch.no_grad():
        expected = [module({k: v[i : i + 2] for k, v in batch(3).items()}) for i in (0, 2)]
    assert loss_sum == float(expected[0][0]) + float(expected[1][0])
    assert counted == int(expected[0][1] + expected[1][1])
    assert all(p.grad is None for p in module.parameters())


def test_a_missing_gpu_is_named():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(BackendConfigError, match="no CUDA device"):
        CompiledModule(Deep(), BackendConfig(target="GPU", micro_batch_size=2))


class Catches(nn.Module):
    """Catches an error of a part that had streamed a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = nn.Linear(5, 3)
        self.sound = nn.Linear(3, 3)

    def forward(self, x_BD: torch.Tensor) -> tuple[torch.Tensor, int]:
        try:
            x_BD = self.broken(x_BD)
        except RuntimeError:
            x_BD = self.sound(x_BD)
        return x_BD.sum(), len(x_BD)


def test_an_error_that_the_module_catches_leaves_nothing_behind():
    made = compiled(Catches())
    before = made.module.broken.weight.detach().clone()
    made.train_step(torch.ones(4, 3), step=1, learning_rate=0.1)
    stream = made.wafers[0].stream
    assert stream is not None
    assert stream.resident_bytes == 0
    assert torch.equal(made.module.broken.weight, before)


class Frozen(nn.Module):
    """Only a bias learns; every frozen matrix is still needed in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.first.weight.requires_grad_(False)
        self.second.requires_grad_(False)

    def forward(self, x_BD: torch.Tensor) -> tuple[torch.Tensor, int]:
        return torch.tanh(self.second(torch.tanh(self.first(x_BD)))).sum(), len(x_BD)


def test_frozen_weights_stream_in_backward_and_never_change():
    torch.manual_seed(0)
    made, plain = compiled(Frozen()), Frozen()
    plain.load_state_dict(made.module.state_dict())
    x_BD = torch.randn(2, 3)
    loss_sum, _ = plain(x_BD)
    loss_sum.backward()
    made.train_step(x_BD, step=1, learning_rate=0.5)
    state = made.module.state_dict()
    assert plain.first.bias.grad is not None
    expected = plain.first.bias.detach() - 0.5 * (plain.first.bias.grad / 2)
    torch.testing.assert_close(state["first.bias"], expected)
    for name in ("first.weight", "second.weight", "second.bias"):
        assert torch.equal(state[name], plain.state_dict()[name])


class Recurrent(nn.Module):
    """nn.LSTM keeps its parameters in a list besides its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(6, 1)

    def forward(self, x_BSF: torch.Tensor) -> tuple[torch.Tensor, int]:
        return self.head(self.lstm(x_BSF)[0]).pow(2).sum(), len(x_BSF)


class Listed(nn.Module):
    """Uses a list of parameters that it made itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 4))
        self.second = nn.Parameter(torch.randn(4, 4))
        self.both = [self.first, self.second]

    def forward(self, x_BF: torch.Tensor) -> tuple[torch.Tensor, int]:
        for weight in self.both:
            x_BF = torch.tanh(x_BF @ weight)
        return x_BF.sum(), len(x_BF)


@pytest.mark.parametrize(("make", "shape"), [(Recurrent, (4, 5, 4)), (Listed, (4, 4))])
def test_parameters_in_lists_stream(make: type, shape: tuple[int, ...]):
    results = []
    for target in ("CSX", "CPU"):
        torch.manual_seed(0)
        made = compiled(make(), target=target)
        lists = {
            name: (value, list(value))
            for child in made.module.modules()
            for name, value in vars(child).items()
            if isinstance(value, list) and any(isinstance(v, nn.Parameter) for v in value)
        }
        result = made.train_step(torch.ones(shape), step=1, learning_rate=0.1)
        results.append((result.loss, result.grad_norm, made.module.state_dict()))
        for child in made.module.modules():
            for name in lists.keys() & vars(child).keys():
                now = vars(child)[name]
                assert all(a is b for a, b in zip(now, lists[name][1], strict=True))
    assert results[0][:2] == results[1][:2]
    assert all(torch.equal(results[0][2][name], t) for name, t in results[1][2].items())


class Captures(nn.Module):
    """Keeps a parameter where nothing can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        weight = self.weight
        self.function = lambda x_BF: x_BF @ weight

    def forward(self, x_BF: torch.Tensor) -> tuple[torch.Tensor, int]:
        return self.function(x_BF).sum(), len(x_BF)


def test_a_parameter_that_does_not_stream_is_named():
    made = compiled(Captures())
    with pytest.raises(StepError, match="'weight' was used in a way that does not stream"):
        made.train_step(torch.ones(4, 4), step=1, learning_rate=0.1)
    assert made.module.weight.grad is None


class Inside(nn.Module):
    """Uses a weight under hooks of its own, without a module call in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x_BF: torch.Tensor) -> tuple[torch.Tensor, int]:
        x_BF = self.first(x_BF)
        with torch.autograd.graph.save_on_cpu():
            x_BF = torch.tanh(x_BF @ self.inner.weight) @ self.inner.weight
        return self.last(x_BF).sum(), len(x_BF)


def test_a_weight_under_foreign_hooks_stays_for_its_leaf():
    grads = []
    for target in ("CSX", "CPU"):
        torch.manual_seed(0)
        made = compiled(Inside(), target=target)
        grads.append(made.train_step(torch.ones(4, 4), step=1, learning_rate=0.1).grad_norm)
    assert grads[0] == grads[1]
    streamed = compiled(Inside())
    streamed.train_step(torch.ones(4, 4), step=1, learning_rate=0.1)
    assert streamed.wafers[0].stream is not None
    assert streamed.wafers[0].stream.resident_bytes == 0
