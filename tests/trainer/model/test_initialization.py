"""Initial weights: Table 14's deviations, keyed by (seed, name)."""

import math

import pytest
import torch
from torch import nn

from pipeline.core.rng import key
from trainer.config import TruncatedNormal
from trainer.model import GPT
from trainer.model.initialization import rule_of

LAYERS = 3
WIDE = {"hidden_size": 64, "num_hidden_layers": LAYERS, "filter_size": 96}


def test_bits_are_those_of_a_generator_keyed_by_seed_and_name(make_config):
    """Weights of a run can be made again by anybody, also those of runs before this version."""
    weights = dict(GPT(make_config(num_hidden_layers=LAYERS), 9).named_parameters())
    stds = {"token_embedding": 0.02, "blocks.1.attention.qkv": 0.02,
            "blocks.2.feed_forward.output": 0.02 / math.sqrt(2 * LAYERS)}  # fmt: skip
    for name, std in stds.items():
        expected = torch.empty_like(weights[f"{name}.weight"])
        generator = torch.Generator().manual_seed(key(9, "weights", f"{name}.weight") >> 65)
        nn.init.trunc_normal_(expected, 0.0, std, -2 * std, 2 * std, generator=generator)
        assert torch.equal(weights[f"{name}.weight"], expected)


def stds(config) -> dict[str, float]:
    """Standard deviation of every matrix before cutting, by measuring: cut at 2 it is 0.8796."""
    model = GPT(config, 1)
    return {
        name.removeprefix("blocks.0.").removesuffix(".weight"): float(p.detach().std()) / 0.8796
        for name, p in model.named_parameters()
        if p.ndim == 2
    }


@pytest.mark.parametrize("base", [None, 16, 64])
def test_standard_deviations_are_those_of_table_14(make_config, base):
    changes = {} if base is None else {"mup_base_hidden_size": base}
    rule = TruncatedNormal(std=0.08)
    config = make_config("llama", **WIDE, **changes, embedding_initializer=rule, initializer=rule)
    width = 1 if base is None else 64 / base
    found = stds(config)
    for name in ("token_embedding", "read_out"):
        assert found[name] == pytest.approx(0.08, rel=0.05)
    for name in ("attention.qkv", "feed_forward.input", "feed_forward.gate"):
        assert found[name] == pytest.approx(0.08 / math.sqrt(width), rel=0.05)
    for name in ("attention.output", "feed_forward.output"):
        assert found[name] == pytest.approx(0.08 / math.sqrt(2 * width * LAYERS), rel=0.05)


def test_the_last_filter_matrix_may_have_a_base_of_its_own(make_config):
    config = make_config(**WIDE, mup_base_hidden_size=16, mup_base_filter_size=48)
    output = {name: rule_of(f"blocks.2.{name}.output.weight", config).std
              for name in ("attention", "feed_forward")}  # fmt: skip
    assert output["attention"] == pytest.approx(0.02 / math.sqrt(2 * LAYERS * 4))
    assert output["feed_forward"] == pytest.approx(0.02 / math.sqrt(2 * LAYERS * 2))


def test_a_given_rule_of_the_last_layers_stays_and_given_cuts_narrow_along(make_config):
    given = TruncatedNormal(std=0.5, a=-1.0, b=1.0)
    config = make_config(**WIDE, mup_base_hidden_size=16, output_layer_initializer=given,
                         initializer=given)  # fmt: skip
    assert rule_of("blocks.0.attention.output.weight", config) == given
    narrow = rule_of("blocks.0.attention.qkv.weight", config)
    assert (narrow.std, narrow.a, narrow.b) == (0.25, -0.5, 0.5)
    weight = GPT(config, 1).blocks[0].attention.qkv.weight.detach()
    assert 0.45 < float(weight.abs().max()) <= 0.5


def test_biases_are_zero_and_norms_one(family, make_config):
    for name, parameter in GPT(make_config(family), 1).named_parameters():
        if parameter.ndim == 1:
            assert set(parameter.tolist()) == {0.0 if name.endswith("bias") else 1.0}
