"""Bits do not depend on num_csx or target, and equal a plain loop over the documented tree."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wafer_backend
from wafer_backend import BackendConfig, LossRule, StepError
from wafer_backend.wafer import leaf_seed

STEPS = 6
VOCABULARY = 53


class Mixed(nn.Module):
    """Tied read-out, functional use, a block called twice, MHA, weight norm, a frozen layer."""

    def __init__(self, width: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.gain = nn.Parameter(torch.ones(width))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(width, width))
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.unused = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x_BSD = self.embedding(batch["ids"])
        for _ in range(2):
            y_BSD = self.norm(x_BSD)
            x_BSD = x_BSD + self.attention(y_BSD, y_BSD, y_BSD, need_weights=False)[0]
            x_BSD = x_BSD + self.gain * self.dropout(self.down(F.gelu(self.up(self.norm(x_BSD)))))
        x_BSD = self.frozen(self.normed(x_BSD))
        logits_BSV = self.head(x_BSD) + x_BSD @ self.embedding.weight.t()
        losses = F.cross_entropy(
            logits_BSV.flatten(0, 1), batch["labels"].flatten(), reduction="none"
        )
        return (losses * batch["mask"].flatten()).sum(), batch["mask"].sum()


def batch(step: int, samples: int, length: int = 8) -> dict[str, torch.Tensor]:
    """A random global batch, a function of the step; about a tenth of the labels do not count."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCABULARY, (samples, length + 1), generator=generator)
    mask = (torch.rand(samples, length, generator=generator) > 0.1).long()
    return {"ids": tokens[:, :-1], "labels": tokens[:, 1:], "mask": mask}


def train(
    target: str, num_csx: int, samples: int, micro_batch: int, *, loss: LossRule | None = None
) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    """(loss, gradient norm) of every step, and the final state of the module."""
    torch.manual_seed(0)
    module = Mixed()
    config = BackendConfig(target, micro_batch, num_csx, seed=3, loss=loss or LossRule())
    compiled = wafer_backend.compile(module, config)
    trained = [p for p in compiled.memoryx.parameters.values() if p.requires_grad]
    compiled.memoryx.optimizer = torch.optim.AdamW(trained)
    results = [
        compiled.train_step(
            batch(step, samples), step=step, learning_rate=3e-3, max_gradient_norm=1.0
        )
        for step in range(1, STEPS + 1)
    ]
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return [(r.loss, r.grad_norm) for r in results], state


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize(("samples", "micro_batch"), [(12, 1), (13, 2), (30, 4), (8, 1)])
def test_bits_are_equal_for_every_number_of_systems(samples: int, micro_batch: int):
    leaves = -(-samples // micro_batch)
    losses, weights = train("CPU", 1, samples, micro_batch)
    for num_csx in sorted({1, 2, 3, 4, 5, leaves}):
        if num_csx <= leaves:
            streamed_losses, streamed_weights = train("CSX", num_csx, samples, micro_batch)
            assert streamed_losses == losses
            assert same(streamed_weights, weights)


def plain_loop(samples: int, micro_batch: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same training in plain PyTorch; of ours only the per-leaf seed (dropout is on)."""
    torch.manual_seed(0)
    module = Mixed()
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    losses = []
    for step in range(1, STEPS + 1):
        whole, leaves = batch(step, samples), []
        for first in range(0, samples, micro_batch):
            torch.manual_seed(leaf_seed(3, step, len(leaves)))
            part = {k: v[first : first + micro_batch] for k, v in whole.items()}
            loss_sum, counted = module(part)
            loss_sum.backward()
            leaves.append(([p.grad for p in trained], float(loss_sum.detach()), int(counted)))
            optimizer.zero_grad()
        gradients, loss, counted_all = tree_sum(leaves)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient / counted_all
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss / counted_all)
    return losses, module.state_dict()


def tree_sum(leaves: list) -> tuple:
    """Canonical tree by its definition: halves at the largest power of two below the count."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << ((len(leaves) - 1).bit_length() - 1)
    left, right = tree_sum(leaves[:half]), tree_sum(leaves[half:])
    gradients = [
        a if b is None else b if a is None else a + b
        for a, b in zip(left[0], right[0], strict=True)
    ]
    return gradients, left[1] + right[1], left[2] + right[2]


def test_bits_equal_a_plain_loop_over_the_documented_tree():
    losses, weights = plain_loop(13, 2)
    streamed, streamed_weights = train("CSX", 3, 13, 2)
    assert [loss for loss, _ in streamed] == losses
    assert same(streamed_weights, weights)


def test_a_sum_per_system_would_give_other_bits():
    """The mutant of the design: without it the equalities above would prove little."""
    torch.manual_seed(0)
    module = Mixed(dropout=0.0)
    leaves = []
    for sample in range(12):
        loss_sum, _ = module({k: v[sample : sample + 1] for k, v in batch(1, 12).items()})
        trained = [p for p in module.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss_sum, trained, allow_unused=True)
        leaves.append(([g for g in gradients if g is not None], 0.0, 0))

    def per_system(num_csx: int) -> list[torch.Tensor]:
        share = 12 // num_csx
        blocks = [tree_sum(leaves[j * share : (j + 1) * share]) for j in range(num_csx)]
        return tree_sum(blocks)[0]

    pairs = list(zip(per_system(1), per_system(2), strict=True))
    assert not all(torch.equal(one, two) for one, two in pairs)


def test_loss_scaling_by_batch_size_divides_by_b_over_loss_weight():
    rule = LossRule("batch_size", 1 / 8)
    assert rule.divisor(77, 12) == 96.0
    by_batch, _ = train("CSX", 2, 12, 1, loss=rule)
    by_tokens, _ = train("CSX", 2, 12, 1)
    assert by_batch[0][0] == by_tokens[0][0]
    counted = int(batch(1, 12)["mask"].sum())
    assert by_batch[0][1] == pytest.approx(by_tokens[0][1] * counted / 96, rel=1e-5)


def compiled_mixed() -> wafer_backend.CompiledModule:
    torch.manual_seed(0)
    compiled = wafer_backend.compile(Mixed(), BackendConfig("CSX", 2, 2))
    trained = [p for p in compiled.memoryx.parameters.values() if p.requires_grad]
    compiled.memoryx.optimizer = torch.optim.AdamW(trained)
    return compiled


def test_a_batch_in_which_nothing_counts_names_the_step():
    empty = batch(1, 8)
    empty["mask"] = torch.zeros_like(empty["mask"])
    with pytest.raises(StepError, match=r"step 57: .*D = 0"):
        compiled_mixed().train_step(empty, step=57, learning_rate=1e-3)


def test_a_loss_that_is_not_finite_names_the_step_and_changes_nothing():
    compiled = compiled_mixed()
    before = {name: p.detach().clone() for name, p in compiled.memoryx.parameters.items()}
    bad = batch(1, 8)
    bad["mask"] = bad["mask"] * 0.5
    with pytest.raises(StepError, match="step 4: n_counted must be a whole number"):
        compiled.train_step(bad, step=4, learning_rate=1e-3)
    with torch.no_grad():
        compiled.memoryx.parameters["gain"].fill_(float("nan"))
        before["gain"].fill_(float("nan"))
    with pytest.raises(StepError, match="step 5: the loss is nan; weights are those after step 4"):
        compiled.train_step(batch(1, 8), step=5, learning_rate=1e-3)
    for name, parameter in compiled.memoryx.parameters.items():
        assert torch.equal(parameter.nan_to_num(), before[name].nan_to_num())
        assert parameter.grad is None


def test_an_abandoned_step_leaves_no_trace():
    def stop_at(leaf: int):
        seen = []

        def check() -> None:
            seen.append(1)
            if len(seen) == leaf:
                raise KeyboardInterrupt

        return check

    clean, stopped = compiled_mixed(), compiled_mixed()
    with pytest.raises(KeyboardInterrupt):
        stopped.train_step(batch(1, 8), step=1, learning_rate=1e-3, between_leaves=stop_at(3))
    for compiled in (clean, stopped):
        compiled.train_step(batch(1, 8), step=1, learning_rate=1e-3)
    assert same(dict(clean.module.state_dict()), dict(stopped.module.state_dict()))


def test_the_global_random_state_is_left_alone():
    compiled = compiled_mixed()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    compiled.train_step(batch(1, 8), step=1, learning_rate=1e-3)
    assert torch.equal(torch.get_rng_state(), before)
