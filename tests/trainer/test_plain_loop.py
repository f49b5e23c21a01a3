"""The backend against plain PyTorch loops that import nothing of ours but the model."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from trainer.config import load_params
from trainer.model import GPT

STEPS, BATCH, LEAF = 100, 7, 2


def add(left, right):
    return [a + b for a, b in zip(left, right, strict=True)]


def canonical_tree(leaves: list, level: int, index: int):
    """Node (level, index) = left + right, or left where right is empty."""
    if index << level >= len(leaves):
        return None
    if level == 0:
        return leaves[index]
    left = canonical_tree(leaves, level - 1, 2 * index)
    right = canonical_tree(leaves, level - 1, 2 * index + 1)
    return left if right is None else add(left, right)


def running_sum(leaves: list, level: int, index: int):
    total = leaves[0]
    for leaf in leaves[1:]:
        total = add(total, leaf)
    return total


def learning_rate(step: int) -> float:
    done = step - 1
    if done < 3:
        return 0.0 + (0.01 - 0.0) * (done / 3)
    return 0.001 + (0.01 - 0.001) * (1 + math.cos(math.pi * (min(done - 3, 20) / 20))) / 2


def plain_loop(model: nn.Module, rows, reduce, steps: int) -> list[float]:
    """Train on rows in file order; returns the loss of every step."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    losses = []
    for step in range(1, steps + 1):
        batch = torch.from_numpy(rows[(step - 1) * BATCH : step * BATCH]).long()
        leaves = []
        for first in range(0, BATCH, LEAF):
            ids, mask, labels = batch[first : first + LEAF].unbind(1)
            features = {"input_ids": ids, "attention_mask": mask, "labels": labels}
            loss_sum, counted = model(features)
            loss_sum.backward()
            loss = loss_sum.detach().double()
            leaves.append([*(p.grad for p in parameters), loss, counted.double()])
            optimizer.zero_grad()
        *gradients, loss, counted = reduce(leaves, 2, 0)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient / counted.item()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss / counted))
    return losses


@pytest.fixture
def long_run(trainer, make_split, make_rows):
    """100 steps on 3 systems over rows that are read once, in file order: (rows, model, losses)."""
    rows = make_rows(STEPS * BATCH, seed=4)
    make_split(trainer.root / "long" / "hdf5" / "train", rows)
    trainer.train("out", num_csx=3, num_steps=STEPS, data=trainer.root / "long")
    model = GPT(load_params(trainer.params).model, seed=5)
    return rows, model, [line["loss"] for line in trainer.metrics("out")]


def test_canonical_tree_loop_is_bit_identical_for_100_steps(trainer, long_run):
    rows, model, streamed = long_run
    assert plain_loop(model, rows, canonical_tree, STEPS) == streamed
    final = trainer.root / "out" / "checkpoints" / "step_0000100" / "weights-00000.safetensors"
    weights = load_file(final)
    assert weights.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(weights[name], parameter)
    assert streamed[-1] < 0.7 * streamed[0]


def test_running_sum_loop_agrees_to_1e6_for_10_steps(long_run):
    rows, model, streamed = long_run
    plain = plain_loop(model, rows, running_sum, STEPS)
    for ours, theirs in zip(streamed[:10], plain[:10], strict=True):
        assert abs(ours - theirs) <= 1e-6 * abs(theirs)
    drift = max(abs(a - b) / b for a, b in zip(streamed, plain, strict=True))
    print(f"largest relative difference of the loss over {STEPS} steps: {drift:.2e}")
