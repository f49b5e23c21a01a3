"""Parameters against counted modules, FLOPs against the paper's tables and hand-made sums."""

from decimal import Decimal
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import ModelConfig, model_parameters
from trainer.model import GPT
from wafer_backend.performance_model.calibration import SHAPES, TOKENS, TRAINING_FLOPS
from wafer_backend.performance_model.shape import inference_flops_per_sequence

BOOL = st.booleans()


def gpt2(name: str, **changes: Any) -> ModelConfig:
    """A row of Table 1 as a config."""
    shape = SHAPES[name]
    values = {
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.sequence_length,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_heads": shape.heads,
        "filter_size": shape.filter,
    }
    return ModelConfig(**{**values, **changes})


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    """Any decoder that `model` can say, small."""
    heads = draw(st.sampled_from([1, 2, 4]))
    groups = draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0]))
    values: dict[str, Any] = {
        "vocab_size": draw(st.integers(1, 40)),
        "max_position_embeddings": draw(st.integers(1, 12)),
        "hidden_size": heads * draw(st.sampled_from([2, 4, 6])),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_heads": heads,
        "filter_size": draw(st.integers(1, 30)),
        "position_embedding_type": draw(st.sampled_from(["learned", "fixed", "rotary", "alibi"])),
        "norm_type": draw(st.sampled_from(["layernorm", "biasless-layernorm", "rmsnorm"])),
        "embedding_layer_norm": draw(BOOL),
        "attention_inner_dim": draw(st.sampled_from([None, heads * 2, heads * 8])),
        "attention_qk_norm_layer": draw(st.sampled_from([None, "layernorm", "rmsnorm"])),
        "nonlinearity": draw(st.sampled_from(["gelu", "gelu_new", "relu", "swiglu", "geglu"])),
        "parallel_block": draw(BOOL),
        "share_embedding_weights": draw(BOOL),
        "use_projection_bias_in_attention": draw(BOOL),
        "use_ffn_bias_in_attention": draw(BOOL),
        "use_ffn_bias": draw(BOOL),
        "use_bias_in_output": draw(BOOL),
    }
    if values["parallel_block"]:
        values["use_untied_layer_norm"] = draw(BOOL)
    else:
        values["norm_first_sandwich"] = draw(BOOL)
    if draw(BOOL):
        experts = draw(st.integers(2, 4))
        values["moe"] = {
            "num_experts": experts,
            "top_k": draw(st.integers(1, experts)),
            "num_shared_experts": draw(st.integers(0, 2)),
        }
    if draw(BOOL):
        values["attention_module"] = "multiquery_attention"
        values["extra_attention_params"] = {"num_kv_groups": groups}
    return ModelConfig.model_validate(values)


@settings(max_examples=150, deadline=None)
@given(models())
def test_parameters_are_those_of_the_model(config):
    with torch.device("meta"):
        module = GPT(config, seed=0)
    assert model_parameters.parameter_count(config) == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", SHAPES)
def test_the_family(name):
    config = gpt2(name)
    assert model_parameters.gpt_shape(config) == SHAPES[name]
    v, s, d, layers = 50257, 2048, config.hidden_size, config.num_hidden_layers
    block = 2 * d + 4 * (d * d + d) + 2 * d + 8 * d * d + 5 * d
    assert model_parameters.parameter_count(config) == v * d + d * s + layers * block + 2 * d
    total = model_parameters.count_training_flops(config) * TOKENS[name] / s
    assert Decimal(f"{total:.1e}") == Decimal(f"{TRAINING_FLOPS[name]:.1e}")


@pytest.mark.parametrize(("name", "ratio"), [("111M", 1.79), ("1.3B", 1.36), ("13B", 1.14)])
def test_ratio_to_six_per_parameter_and_token(name, ratio):
    config = gpt2(name)
    six = 6 * model_parameters.parameter_count(config) * 2048
    assert model_parameters.count_training_flops(config) / six == pytest.approx(ratio, abs=0.005)


def inference_flops(config: ModelConfig) -> int:
    return inference_flops_per_sequence(model_parameters.gpt_shape(config))


def test_training_is_three_times_inference_but_for_embeddings():
    config = gpt2("111M")
    embeddings = 2 * 2048 * 50257 * 768 + 2 * 768 * 2048
    once = inference_flops(config)
    assert model_parameters.count_training_flops(config) == 3 * once - embeddings


S, D, F = 2048, 768, 3072


@pytest.mark.parametrize(
    ("changes", "each_layer", "once"),
    [
        ({"position_embedding_type": "fixed"}, 0, 0),
        ({"position_embedding_type": "rotary"}, 3 * S * 2 * D, -2 * D * S),
        ({"position_embedding_type": "rotary", "rotary_dim": 16}, 3 * S * 24 * 16, -2 * D * S),
        ({"position_embedding_type": "alibi"}, S * S * 12, -2 * D * S),
        ({"nonlinearity": "swiglu"}, 2 * S * D * F + (6 - 20) * F * S, 0),
        ({"nonlinearity": "relu"}, -19 * F * S, 0),
        ({"norm_type": "rmsnorm"}, -2 * 3 * S * D, 0),
        ({"parallel_block": True, "use_untied_layer_norm": False}, -7 * S * D, 0),
        (
            {
                "attention_module": "multiquery_attention",
                "extra_attention_params": {"num_kv_groups": 3},
            },
            -2 * S * D * 2 * (D - 3 * 64),
            0,
        ),
        ({"share_embedding_weights": False}, 0, 0),
    ],
)
def test_what_an_option_adds(changes, each_layer, once):
    plain, other = gpt2("111M"), ModelConfig.model_validate({**dict(gpt2("111M")), **changes})
    assert inference_flops(other) - inference_flops(plain) == 10 * each_layer + once
    trained = model_parameters.count_training_flops(other) - model_parameters.count_training_flops(
        plain
    )
    assert trained == 3 * 10 * each_layer + 2 * once
