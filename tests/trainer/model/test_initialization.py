"""Initial weights: Table 14's deviations, keyed by (seed, name)."""

import math

import pytest
import torch
from torch import nn

from pipeline.core.rng import key
from trainer.config.initializers import (
    ConstantValue,
    Fill,
    Kaiming,
    Lecun,
    Normal,
    TruncatedNormal,
    Uniform,
    VarianceScaling,
    Xavier,
)
from trainer.model import GPT
from trainer.model.initial_weights import (
    as_variance_scaling,
    find_initializer,
    initialize_matrix,
    narrow_by,
)

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
    output = {name: find_initializer(f"blocks.2.{name}.output.weight", config).std
              for name in ("attention", "feed_forward")}  # fmt: skip
    assert output["attention"] == pytest.approx(0.02 / math.sqrt(2 * LAYERS * 4))
    assert output["feed_forward"] == pytest.approx(0.02 / math.sqrt(2 * LAYERS * 2))


def test_a_given_rule_of_the_last_layers_stays_and_given_cuts_narrow_along(make_config):
    given = TruncatedNormal(std=0.5, a=-1.0, b=1.0)
    config = make_config(**WIDE, mup_base_hidden_size=16, output_layer_initializer=given,
                         initializer=given)  # fmt: skip
    assert find_initializer("blocks.0.attention.output.weight", config) == given
    narrow = find_initializer("blocks.0.attention.qkv.weight", config)
    assert (narrow.std, narrow.a, narrow.b) == (0.25, -0.5, 0.5)
    weight = GPT(config, 1).blocks[0].attention.qkv.weight.detach()
    assert 0.45 < float(weight.abs().max()) <= 0.5


def test_biases_are_zero_and_norms_one(family, make_config):
    for name, parameter in GPT(make_config(family), 1).named_parameters():
        if parameter.ndim == 1:
            assert set(parameter.tolist()) == {0.0 if name.endswith("bias") else 1.0}


OUTPUTS, INPUTS = 300, 200
SCALED = {"name": "variance_scaling", "scale": 0.4}


def drawn(rule):
    tensor = torch.empty(OUTPUTS, INPUTS)
    initialize_matrix(tensor, rule, torch.Generator().manual_seed(1))
    return tensor


@pytest.mark.parametrize(
    ("rule", "std", "bound"),
    [
        (Normal(name="normal", std=0.5), 0.5, None),
        (Uniform(name="uniform", a=-0.1, b=0.1), 0.1 / math.sqrt(3), 0.1),
        (TruncatedNormal(std=0.5), 0.5 * 0.8796, 1.0),
        (VarianceScaling(**SCALED, distribution="normal"), math.sqrt(0.4 / INPUTS), None),
        (VarianceScaling(**SCALED, mode="fan_out", distribution="normal"),
         math.sqrt(0.4 / OUTPUTS), None),
        (VarianceScaling(**SCALED, mode="fan_avg", distribution="uniform"),
         math.sqrt(0.4 / 250), math.sqrt(1.2 / 250)),
        (VarianceScaling(**SCALED), math.sqrt(0.4 / INPUTS) / 0.8796, None),
        (VarianceScaling(name="variance_scaling", scale=150.0, mode="fan_avg"), None, 2.0),
        (Lecun(name="lecun_normal"), math.sqrt(1 / INPUTS) / 0.8796, None),
        (Lecun(name="lecun_uniform"), math.sqrt(1 / INPUTS), math.sqrt(3 / INPUTS)),
        (Xavier(name="xavier_normal", gain=2.0), 2 * math.sqrt(2 / 500), None),
        (Xavier(name="glorot_uniform"), math.sqrt(2 / 500), math.sqrt(6 / 500)),
        (Kaiming(name="kaiming_normal"), math.sqrt(2 / INPUTS), None),
        (Kaiming(name="kaiming_normal", a=1.0, mode="fan_out"), math.sqrt(1 / OUTPUTS), None),
        (Kaiming(name="kaiming_uniform", a=1.0, nonlinearity="relu"),
         math.sqrt(2 / INPUTS), math.sqrt(6 / INPUTS)),
        (Fill(name="zeros"), 0.0, 0.0),
        (Fill(name="ones"), 0.0, 1.0),
        (ConstantValue(name="constant", val=0.25), 0.0, 0.25),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_each_initializer_has_the_deviation_and_bounds_of_its_closed_form(rule, std, bound):
    values = drawn(rule)
    if std is not None:
        assert float(values.std()) == pytest.approx(std, rel=0.02, abs=1e-9)
    largest = float(values.abs().max())
    if bound is None:
        assert largest > 3 * std  # not cut
    else:
        assert 0.99 * bound <= largest <= bound * (1 + 1e-6)


@pytest.mark.parametrize(
    ("rule", "of_torch"),
    [
        (Xavier(name="xavier_normal", gain=2.0), lambda t: nn.init.xavier_normal_(t, 2.0)),
        (Xavier(name="xavier_uniform"), nn.init.xavier_uniform_),
        (Kaiming(name="kaiming_normal", a=0.5), lambda t: nn.init.kaiming_normal_(t, 0.5)),
        (Kaiming(name="kaiming_uniform", mode="fan_out"),
         lambda t: nn.init.kaiming_uniform_(t, mode="fan_out")),
    ],
)  # fmt: skip
def test_those_that_torch_has_have_its_values(rule, of_torch):
    torch.manual_seed(1)
    assert torch.allclose(drawn(rule), of_torch(torch.empty(OUTPUTS, INPUTS)), rtol=1e-5)


@pytest.mark.parametrize(
    "rule",
    [
        TruncatedNormal(std=0.5), Normal(name="normal", mean=1.0), Uniform(name="uniform", a=0.0),
        VarianceScaling(**SCALED), Lecun(name="lecun_uniform"), Xavier(name="xavier_normal"),
        Kaiming(name="kaiming_normal"),
    ],
    ids=lambda rule: rule.name,
)  # fmt: skip
def test_narrowing_divides_the_deviation_around_the_same_mean(rule):
    whole, narrow = drawn(rule), drawn(narrow_by(rule, 4.0))
    assert float(narrow.std()) == pytest.approx(float(whole.std()) / 4, rel=0.02)
    assert float(narrow.mean()) == pytest.approx(float(whole.mean()), abs=0.01)
    assert narrow_by(Fill(name="ones"), 4.0) == Fill(name="ones")


def test_defaults_of_variance_scaling():
    assert as_variance_scaling(Lecun(name="lecun_normal")) == VarianceScaling(
        name="variance_scaling", scale=1.0, mode="fan_in", distribution="truncated_normal"
    )


def test_q_k_and_v_are_matrices_of_their_own(make_config):
    """K and V have fewer outputs than Q: their variance by fan_out is larger."""
    rule = VarianceScaling(**SCALED, mode="fan_out", distribution="normal")
    config = make_config(
        hidden_size=96, num_heads=6, attention_module="multiquery_attention",
        extra_attention_params={"num_kv_groups": 2}, initializer=rule,
    )  # fmt: skip
    weight = GPT(config, 1).blocks[0].attention.qkv.weight.detach()
    q, k, v = weight.split([96, 32, 32])
    assert float(q.std()) == pytest.approx(math.sqrt(0.4 / 96), rel=0.05)
    for part in (k, v):
        assert float(part.std()) == pytest.approx(math.sqrt(0.4 / 32), rel=0.05)
    assert torch.equal(weight, GPT(config, 1).blocks[0].attention.qkv.weight)
