"""The engine against loops in plain PyTorch; of ours they know the seed of a leaf, no more."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.slow import mark_slow
from tests.wafer_backend.modules import GPT2, Llama, Mixed, Trained, tokens, train
from wafer_backend.cluster.wafer import leaf_seed
from wafer_backend.compiled import BackendConfig

CONFIG = BackendConfig(target="CSX", micro_batch_size=2, num_csx=3, seed=3)
SAMPLES = 13
Sums = list[torch.Tensor | None]


def tree_sum(leaves: list[Sums]) -> Sums:
    """The canonical tree by its definition: halves at the largest power of two below the count."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << ((len(leaves) - 1).bit_length() - 1)
    left, right = tree_sum(leaves[:half]), tree_sum(leaves[half:])
    return [a if b is None else a + b for a, b in zip(left, right, strict=True)]


def running_sum(leaves: list[Sums]) -> Sums:
    """What gradient accumulation does."""
    total = leaves[0]
    for leaf in leaves[1:]:
        total = [a if b is None else a + b for a, b in zip(total, leaf, strict=True)]
    return total


def plain_loop(make: Callable[[], nn.Module], reduce: Callable, steps: int) -> Trained:
    torch.manual_seed(0)
    module, losses = make(), []
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    for step in range(1, steps + 1):
        whole, leaves = tokens(step, SAMPLES), []
        for first in range(0, SAMPLES, 2):
            torch.manual_seed(leaf_seed(3, step, len(leaves)))
            loss_sum, counted = module({k: v[first : first + 2] for k, v in whole.items()})
            loss_sum.backward()
            gradients = [p.grad for p in trained]
            leaves.append([*gradients, loss_sum.detach().double(), counted.double()])
            optimizer.zero_grad()
        *gradients, loss, counted = reduce(leaves)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient / counted.item()
        norm = nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((float(loss / counted), float(norm)))
    return Trained(losses, module.state_dict())


@pytest.mark.parametrize("make", mark_slow([GPT2, Llama, Mixed], Llama))
@pytest.mark.parametrize(
    "steps", [20, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_bits_equal_a_plain_loop_over_the_documented_tree(
    make: Callable[[], nn.Module], steps: int
):
    assert train(make, CONFIG, SAMPLES, steps) == plain_loop(make, tree_sum, steps)


@pytest.mark.parametrize("make", mark_slow([GPT2, Llama], Llama))
def test_a_running_sum_agrees_in_loss_to_1e6_for_10_steps(make: Callable[[], nn.Module]):
    plain = plain_loop(make, running_sum, 20).losses
    ours = train(make, CONFIG, SAMPLES, 20).losses
    for (loss, _), (expected, _) in zip(ours[:10], plain[:10], strict=True):
        assert abs(loss - expected) <= 1e-6 * expected
    drift = max(abs(a - b) / b for (a, _), (b, _) in zip(ours, plain, strict=True))
    print(f"largest relative difference of the loss over 20 steps: {drift:.2e}")
