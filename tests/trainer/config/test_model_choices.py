"""What a decoder can be, and one clear sentence on what it cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.core.errors import ConfigError
from trainer.config import AdamWConfig, ModelConfig, load_params

SHAPE = {
    "vocab_size": 61, "max_position_embeddings": 16, "hidden_size": 48, "num_hidden_layers": 2,
    "num_heads": 6, "filter_size": 96,
}  # fmt: skip
ROTARY = {"position_embedding_type": "rotary"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"num_heads": 5}, "hidden_size 48 is not a multiple of num_heads 5"),
        (
            {"position_embedding_type": "rotary", "rotary_dim": 10},
            "rotary_dim 10 is larger than a head: hidden_size / num_heads = 8",
        ),
        ({"position_embedding_type": "rotary", "rotary_dim": 3}, "rotary_dim 3 is odd"),
        ({"position_embedding_type": "rotary", "num_heads": 16}, "rotary_dim 3 is odd"),
        (
            {"position_embedding_type": "fixed", "hidden_size": 45, "num_heads": 5},
            "hidden_size 45 is odd",
        ),
        (
            {
                "attention_module": "multiquery_attention",
                "extra_attention_params": {"num_kv_groups": 4},
            },
            "num_heads 6 is not a multiple of num_kv_groups 4",
        ),
        (
            {"extra_attention_params": {"num_kv_groups": 2}},
            "num_kv_groups 2 needs attention_module: multiquery_attention",
        ),
        (
            {"attention_type": "dot_product", "scale_qk_dot_by_d": True},
            "scale_qk_dot_by_d: true needs attention_type: scaled_dot_product",
        ),
        ({"use_untied_layer_norm": False}, "use_untied_layer_norm: false needs parallel_block"),
        ({"output_logits_alpha": 2.0}, "output_logits_alpha is for muP only: give mup_base_h"),
        ({"mup_base_filter_size": 2.0}, "mup_base_filter_size is for muP"),
        ({"position_embedding_type": "none"}, "'fixed', 'rotary', 'alibi' or 'relative'"),
        ({"nonlinearity": "silu"}, "'swiglu', 'geglu' or 'geglu_new'"),
        ({"norm_type": "batchnorm1d"}, "'layernorm', 'biasless-layernorm' or 'rmsnorm'"),
        ({"attention_inner_dim": 20}, "attention_inner_dim 20 is not a multiple of num_heads 6"),
        (
            {"position_embedding_type": "rotary", "rotary_dim": 4, "attention_inner_dim": 12},
            "rotary_dim 4 is larger than a head: attention_inner_dim / num_heads = 2",
        ),
        ({"pos_scaling_factor": 2.0}, "pos_scaling_factor 2 needs position_embedding_type: rotary"),
        (
            {"pos_scaling_factor": 8.0, "pos_scaling_type": "llama3", **ROTARY},
            "pos_scaling_type: llama3 needs pos_scaling_extra_args",
        ),
        (
            {
                "pos_scaling_factor": 8.0,
                "pos_scaling_type": "llama3",
                **ROTARY,
                "pos_scaling_extra_args": {
                    "original_max_position_embeddings": 8,
                    "low_freq_factor": 4.0,
                },
            },
            "low_freq_factor 4 must be below high_freq_factor 4",
        ),
        ({"attention_sink_tokens": 1}, "attention_sink_tokens needs attention_sliding_window_le"),
        (
            {"sliding_window_every_other_decoder_layer": True},
            "sliding_window_every_other_decoder_layer needs attention_sliding_window_length",
        ),
        (
            {"norm_first_sandwich": True, "parallel_block": True},
            "norm_first_sandwich: true needs parallel_block: false",
        ),
    ],
)
def test_what_cannot_be(fields, expected):
    with pytest.raises(ValidationError, match=expected):
        ModelConfig(**{**SHAPE, **fields})


def test_heads_of_keys_and_values():
    assert ModelConfig(**SHAPE).num_kv_heads == 6
    queries = {"attention_module": "multiquery_attention"}
    assert ModelConfig(**SHAPE, **queries).num_kv_heads == 1
    groups = {"extra_attention_params": {"num_kv_groups": 3}}
    assert ModelConfig(**SHAPE, **queries, **groups).num_kv_heads == 3


@given(base=st.integers(1, 96), alpha=st.none() | st.floats(0.1, 10))
def test_mup_follows_from_the_base_width(base, alpha):
    """P Table 14: logits alpha / m_width, attention 1 / d_head."""
    model = ModelConfig(**SHAPE, mup_base_hidden_size=base, output_logits_alpha=alpha)
    assert model.m_width == 48 / base
    assert model.output_logits_scale == pytest.approx((alpha or 1.0) / model.m_width)
    assert model.scale_qk_dot_by_d


def test_given_values_stand_over_those_of_mup():
    given = {"output_logits_scale": 0.5, "scale_qk_dot_by_d": False}
    model = ModelConfig(**SHAPE, mup_base_hidden_size=24, **given)
    assert (model.output_logits_scale, model.scale_qk_dot_by_d) == (0.5, False)


def test_without_mup_nothing_is_scaled():
    model = ModelConfig(**SHAPE)
    assert (model.m_width, model.output_logits_scale, model.embeddings_scale) == (1.0, 1.0, 1.0)
    assert not model.scale_qk_dot_by_d


@pytest.mark.parametrize(
    ("groups", "expected"), [({"embedding": 0.5}, "no group"), ({"decoder_kernel": 0.0}, "above 0")]
)
def test_groups_of_learning_rates(groups, expected):
    with pytest.raises(ValidationError, match=expected):
        AdamWConfig(learning_rate=0.1, adjust_learning_rate=groups)


def test_keys_that_contradict_one_another_are_one_short_line(trainer):
    """Without the section's whole content, which the keys are named of."""
    model = {"position_embedding_type": "rotary", "rotary_dim": 3}
    path = trainer.configure("odd.yaml", model=model)
    with pytest.raises(ConfigError) as caught:
        load_params(path)
    place, _, message = str(caught.value).partition(": ")
    assert place.startswith(f"{path}:")
    assert (
        message
        == "model: rotary_dim 3 is odd; expected an even number, because units are rotated in pairs"
    )
