"""AdamW: what decays, what learns more slowly, and that a step is the paper's formula."""

import pytest
import torch
from torch import nn

from trainer import optimizer
from trainer.build import compile_model
from trainer.config import ModelConfig, OptimizerConfig, load_params
from trainer.model import GPT

SHAPE = {"vocab_size": 13, "max_position_embeddings": 8, "hidden_size": 16,
         "num_hidden_layers": 1, "num_heads": 2, "filter_size": 24}  # fmt: skip


def groups(rule=None, **model):
    """name -> (weight decay, factor on the learning rate); and how many groups there are."""
    config = ModelConfig(**SHAPE, **model)
    parameters = dict(GPT(config, 1).named_parameters())
    adam = optimizer.build(parameters, OptimizerConfig(learning_rate=1.0, **(rule or {})), config)
    found = {
        id(p): (group["weight_decay"], group["adjust_learning_rate"])
        for group in adam.param_groups
        for p in group["params"]
    }
    return {name: found[id(p)] for name, p in parameters.items()}, len(adam.param_groups)


def test_matrices_decay_and_vectors_do_not():
    found, count = groups({"weight_decay": 0.3})
    assert count == 2
    for name, (decay, factor) in found.items():
        vector = name.endswith(".bias") or "norm" in name
        assert (decay, factor) == (0.0 if vector else 0.3, 1.0)


def test_mup_slows_the_matrices_of_blocks_and_nothing_else():
    found, count = groups(mup_base_hidden_size=4, share_embedding_weights=False)
    assert count == 3
    slow = {name for name, (_, factor) in found.items() if factor == 0.25}
    assert {factor for _, factor in found.values()} == {0.25, 1.0}
    layers = ("attention.qkv", "attention.output", "feed_forward.input", "feed_forward.output")
    assert slow == {f"blocks.0.{layer}.weight" for layer in layers}
    assert {found[name][0] for name in slow} == {0.1}


def test_a_given_factor_holds_with_and_without_mup():
    rule = {"adjust_learning_rate": {"decoder_kernel": 0.125}}
    for model in ({}, {"mup_base_hidden_size": 4}):
        found, _ = groups(rule, **model)
        assert found["blocks.0.attention.qkv.weight"][1] == 0.125
        assert found["token_embedding.weight"][1] == 1.0


def test_a_base_filter_size_slows_the_last_filter_matrix():
    found, _ = groups(mup_base_hidden_size=4, mup_base_filter_size=8)
    assert found["blocks.0.feed_forward.output.weight"][1] == pytest.approx(8 / 24)
    assert found["blocks.0.feed_forward.input.weight"][1] == 0.25


def test_frozen_parameters_are_in_no_group():
    frozen, trained = (
        nn.Parameter(torch.ones(2, 2), requires_grad=False),
        nn.Parameter(torch.ones(2)),
    )
    config = OptimizerConfig(learning_rate=1.0)
    adam = optimizer.build({"frozen": frozen, "trained": trained}, config, ModelConfig(**SHAPE))
    assert [group["params"] for group in adam.param_groups] == [[trained]]


def test_a_step_is_adamw_at_the_groups_own_rate():
    """Loshchilov and Hutter (arXiv 1711.05101), algorithm 2, with bias correction."""
    config = ModelConfig(**SHAPE, mup_base_hidden_size=4)
    weight = nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3))
    rule = OptimizerConfig(learning_rate=1.0, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)
    adam = optimizer.build({"blocks.0.x.weight": weight}, rule, config)
    (group,) = adam.param_groups
    group["lr"] = rate = 0.1 * group["adjust_learning_rate"]
    expected, first, second = weight.detach().clone(), 0.0, 0.0
    for t in (1, 2, 3):
        weight.grad = torch.cos(t * torch.arange(6, dtype=torch.float64)).view(2, 3)
        first = 0.8 * first + 0.2 * weight.grad
        second = 0.9 * second + 0.1 * weight.grad**2
        update = first / (1 - 0.8**t) / ((second / (1 - 0.9**t)).sqrt() + 1e-3)
        expected = expected * (1 - rate * 0.2) - rate * update
        adam.step()
    assert rate == 0.025
    torch.testing.assert_close(weight.detach(), expected)


def test_a_run_in_mup_learns_at_its_rates(trainer):
    """From params.yaml to the groups that MemoryX steps."""
    path = trainer.configure(model={"mup_base_hidden_size": 8, "scale_qk_dot_by_d": True})
    compiled = compile_model(load_params(path), "CPU", 2)
    rates = {group["adjust_learning_rate"] for group in compiled.memoryx.optimizer.param_groups}
    assert rates == {0.5, 1.0}
