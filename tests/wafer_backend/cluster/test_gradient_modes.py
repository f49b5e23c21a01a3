"""Under `torch.no_grad()` and `torch.inference_mode()` of the caller nothing else comes out."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.wafer_backend.modules import GPT2, Classifier, compiled, points, same, state_of, tokens
from wafer_backend.compiled import BackendConfig

MODES = [torch.no_grad, torch.inference_mode]
CONFIGS = {
    "csx": BackendConfig(target="CSX", micro_batch_size=2, num_csx=2),
    "csx-bf16": BackendConfig(target="CSX", micro_batch_size=2, num_csx=2, precision="bfloat16"),
    "csx-device-stream": BackendConfig(target="CSX", micro_batch_size=2, prefetch_bytes=10_000),
    "csx-recompute": BackendConfig(target="CSX", micro_batch_size=2, activations="recompute"),
    "csx-simulated": BackendConfig(
        target="CSX", micro_batch_size=2, num_csx=2, transport="simulated"
    ),
    "cpu": BackendConfig(target="CPU", micro_batch_size=2),
    "cpu-bf16": BackendConfig(target="CPU", micro_batch_size=2, precision="bfloat16"),
}
Mode = Callable[[], AbstractContextManager[Any]]

pytestmark = [
    pytest.mark.parametrize("mode", MODES),
    pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys()),
]


def test_evaluation(config: BackendConfig, mode: Mode):
    made = compiled(GPT2, config)
    with mode():
        inside = made.evaluate(tokens(1, 5))
    assert inside == made.evaluate(tokens(1, 5))


def test_evaluation_that_chooses_its_leaves(config: BackendConfig, mode: Mode):
    made = compiled(GPT2, config, micro_batch_size=None, min_leaves=2)
    with mode():
        inside = made.evaluate(tokens(1, 4))
    assert inside == made.evaluate(tokens(1, 4))


@pytest.mark.parametrize("training", [False, True])
def test_calls(config: BackendConfig, mode: Mode, training: bool):
    """In evaluation mode and in training mode (BatchNorm moves on), from a batch made inside."""
    found = []
    for inner in (mode, torch.no_grad):
        made = compiled(Classifier, config)
        made.module.train(training)
        with inner():
            x_BF, _ = points(1, 6)
            out = made(x_BF)
            assert not out.requires_grad
            assert out.exp().sum().isfinite()
        found.append((out, state_of(made.module)))
    assert torch.equal(found[0][0], found[1][0])
    assert same(found[0][1], found[1][1])


def test_a_call_that_learns_follows(config: BackendConfig, mode: Mode):
    """What ran inside leaves nothing that backward could not use."""
    made = compiled(GPT2, replace(config, num_csx=1))
    with mode():
        made(tokens(1, 4))
    loss_sum, counted = made(tokens(1, 4))
    (loss_sum / counted).backward()
    assert all(p.grad is not None for p in made.module.parameters())


def test_a_training_step_learns_all_the_same(config: BackendConfig, mode: Mode):
    inside, outside = compiled(GPT2, config), compiled(GPT2, config)
    for step in (1, 2):
        with mode():
            inside.train_step(tokens(step, 4), step=step, learning_rate=1e-3)
        outside.train_step(tokens(step, 4), step=step, learning_rate=1e-3)
    assert same(state_of(inside.module), state_of(outside.module))
