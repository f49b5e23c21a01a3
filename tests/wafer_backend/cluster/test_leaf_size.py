"""Micro-batches that are chosen: by memory, never by num_csx, and without a trace."""

import pytest
import torch
from torch import Tensor, nn

from tests.wafer_backend.modules import GPT2, Classifier, compiled, points, state_of, tokens, train
from wafer_backend.compiled import BackendConfig
from wafer_backend.errors import BackendConfigError

CONFIG = BackendConfig(target="CSX", micro_batch_size=None, seed=3, min_leaves=4)


class Known(nn.Module):
    """Saves 2 x 4,000 bytes a sample (both results of tanh) and 800 for any number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(1000))
        self.scale = nn.Parameter(torch.zeros(200))

    def forward(self, x_BF: Tensor) -> Tensor:
        fixed = torch.tanh(self.scale).sum()
        return torch.tanh(torch.tanh(x_BF + self.gain)).sum() + fixed


WEIGHTS = 4000 + 800


@pytest.mark.parametrize("target", ["CSX", "CPU"])
@pytest.mark.parametrize(("memory", "size"), [(800, 1), (8800, 1), (24_800, 3), (10**6, 13)])
def test_the_most_samples_that_fit(memory: int, size: int, target: str):
    room = memory + WEIGHTS
    made = compiled(Known, CONFIG, wafer_memory=room, target=target)
    x_BF = torch.ones(40, 1000)
    if memory == 800:
        with pytest.raises(BackendConfigError, match=r"one sample needs 8,000 .* plus 800 .* 4,8"):
            made(x_BF)
        return
    made(x_BF)
    assert made.micro_batch_size == size  # 13 leaves 4 leaves of 40 samples
    made(x_BF[:3])
    assert made.micro_batch_size == size


def test_weights_copied_ahead_are_not_counted():
    made = compiled(Known, CONFIG, wafer_memory=24_800 + WEIGHTS, prefetch_bytes=100_000)
    made(torch.ones(40, 1000))
    assert made.micro_batch_size == 3


def test_evaluation_does_not_decide():
    made = compiled(Known, CONFIG)
    made.module.eval()
    made(torch.ones(4, 1000))
    assert made.micro_batch_size is None
    made.module.train()
    made(torch.ones(40, 1000))
    assert made.micro_batch_size == 13


@pytest.mark.parametrize("activations", ["keep", "recompute", "evict"])
def test_the_choice_does_not_depend_on_the_cluster_and_keeps_the_bits(activations: str):
    config = {"activations": activations, "wafer_memory": 60_000}
    sizes, runs = set(), []
    for target, num_csx in (("CSX", 1), ("CSX", 3), ("CPU", 1)):
        made = compiled(GPT2, CONFIG, target=target, num_csx=num_csx, **config)
        made.train_step(tokens(1, 12), step=1, learning_rate=1e-3)
        sizes.add(made.micro_batch_size)
        runs.append(train(GPT2, CONFIG, 12, 2, target=target, num_csx=num_csx, **config))
    (size,) = sizes
    assert runs[0] == runs[1] == runs[2]
    assert runs[0] == train(GPT2, CONFIG, 12, 2, micro_batch_size=size)
    assert size == {"keep": 2, "recompute": 3, "evict": 3}[activations]


class Counting(nn.Module):
    """Its buffer moves with every forward, its dropout draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x_BF: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.dropout(self.layer(x_BF) * self.calls)


def test_the_probe_leaves_no_trace():
    probed, given = compiled(Counting, CONFIG), compiled(Counting, CONFIG, micro_batch_size=6)
    x_BF, _ = points(1, 20)
    probed.module.train()
    before, state = torch.get_rng_state(), state_of(probed.module)
    outputs = [made(x_BF) for made in (probed, given)]
    assert probed.micro_batch_size == 6
    assert torch.equal(*outputs)
    assert torch.equal(before, torch.get_rng_state())
    assert int(probed.module.calls) == int(given.module.calls) == 4
    del state["calls"]
    assert all(torch.equal(t, probed.module.state_dict()[n]) for n, t in state.items())
    assert all(p.grad is None for p in probed.module.parameters())


def test_a_module_that_fails_on_one_sample_is_named():
    made = compiled(Classifier, CONFIG)
    with pytest.raises(
        BackendConfigError, match=r"failed on the first 1 of 20 .* set micro_batch_size"
    ):
        made(points(1, 20)[0])
    assert made.micro_batch_size is None
