"""An encoder with a decoder behind it: what sees what, its parameters and FLOPs, and what it cannot
have.

What it computes is compared with transformers in tests/trainer/convert/test_encoder_decoder.py.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig, load_params
from trainer.config.model_parameters import (
    count_training_flops,
    gpt_shape,
    parameter_count,
    shapes,
)
from trainer.model import GPT
from trainer.stability.measure import KINDS, find_kind
from wafer_backend.performance_model.shape import inference_flops_per_sequence, list_layers

T5 = {
    "vocab_size": 61, "max_position_embeddings": 16, "tgt_max_position_embeddings": 7,
    "hidden_size": 16, "num_hidden_layers": 2, "decoder_num_hidden_layers": 3, "num_heads": 2,
    "filter_size": 32, "bidirectional": True, "position_embedding_type": "relative",
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
}  # fmt: skip
V1_0 = {
    "norm_type": "rmsnorm", "nonlinearity": "relu", "attention_type": "dot_product",
    "use_projection_bias_in_attention": False, "use_ffn_bias_in_attention": False,
    "use_ffn_bias": False,
}  # fmt: skip
V1_1 = V1_0 | {"nonlinearity": "geglu_new", "share_embedding_weights": False}


def config(values=(), **changes) -> ModelConfig:
    return ModelConfig.model_validate({**T5, **dict(values), **changes})


def ids(length: int) -> torch.Tensor:
    return torch.randint(0, 61, (1, length), generator=torch.Generator().manual_seed(2))


def moved(model: GPT, changed: torch.Tensor, told: torch.Tensor) -> list[bool]:
    """Whose logits are others than those of the unchanged texts."""
    with torch.no_grad():
        before = model.logits(ids(16), decoder_input_ids_BT=ids(7))
        after = model.logits(changed, decoder_input_ids_BT=told)
    return ((after - before).abs().amax(-1)[0] > 0).tolist()


@settings(max_examples=40, deadline=None)
@given(
    values=st.sampled_from([{}, V1_0, V1_1]),
    tied=st.booleans(),
    biases=st.booleans(),
    inner=st.sampled_from([None, 8]),
    kv_heads=st.sampled_from([1, 2]),
)
def test_parameters_are_those_of_the_formulas(values, tied, biases, inner, kv_heads):
    made = config(
        values, share_embedding_weights=tied, use_bias_in_output=biases, use_ffn_bias=biases,
        attention_inner_dim=inner, attention_module="multiquery_attention",
        extra_attention_params={"num_kv_groups": kv_heads},
    )  # fmt: skip
    with torch.device("meta"):
        model = GPT(made, 1)
    found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert found == shapes(made)
    assert list(found) == list(shapes(made))
    count = sum(p.numel() for p in model.parameters())
    assert parameter_count(made) == count
    layers = list_layers(gpt_shape(made))
    assert sum(layer.count * layer.parameters for layer in layers) == count
    assert {find_kind(name) for name in found} <= set(KINDS)


@pytest.mark.parametrize("values", [{}, V1_0, V1_1], ids=["plain", "v1.0", "v1.1"])
def test_the_decoder_sees_all_of_the_encoder_and_its_own_earlier_tokens(values):
    model = GPT(config(values), 1).eval()
    for place in (0, 9, 15):
        changed = ids(16)
        changed[0, place] = (changed[0, place] + 1) % 61
        assert moved(model, changed, ids(7)) == [True] * 7
    for place in (0, 3, 6):
        changed = ids(7)
        changed[0, place] = (changed[0, place] + 1) % 61
        assert moved(model, ids(16), changed) == [False] * place + [True] * (7 - place)


def test_a_tied_read_out_is_over_the_root_of_the_width_unless_told_otherwise():
    assert config().output_logits_scale == 16**-0.5
    assert config(output_logits_scale=1.0).output_logits_scale == 1.0
    assert config(V1_1).output_logits_scale == 1.0
    assert ModelConfig(**dict(config())) == config()


def test_flops_are_those_of_a_hand_made_sum():
    s, t, d, f, v, heads = 16, 7, 16, 32, 61, 2

    def attention(queries: int, keys: int) -> int:
        logits = queries * keys
        return 2 * d * d * (2 * queries + 2 * keys) + logits * d * (2 + 3 + 1 + 2)

    def own(n: int, norms: int) -> int:
        return attention(n, n) + n * n * heads + 4 * n * d * f + f * n + norms * 4 * n * d

    blocks = 2 * own(s, 2) + 3 * (own(t, 3) + attention(t, s))
    embeddings, read_out = 2 * (s + t) * v * d, 2 * t * v * d
    made = config(V1_0)
    assert inference_flops_per_sequence(gpt_shape(made)) == embeddings + blocks + read_out
    assert count_training_flops(made) == 2 * embeddings + 3 * (blocks + read_out)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"decoder_num_hidden_layers": None}, "relative needs decoder_num_hidden_layers"),
        ({"tgt_max_position_embeddings": None}, "needs tgt_max_position_embeddings"),
        ({"bidirectional": False}, "decoder_num_hidden_layers needs bidirectional: true"),
        ({"position_embedding_type": "rotary"}, "needs position_embedding_type: relative"),
        ({"position_embedding_type": "alibi"}, "needs other positions than alibi"),
        ({"norm_first": False, "mlm_head": True}, "needs norm_first: true"),
        ({"parallel_block": True}, "needs parallel_block: false"),
        ({"embedding_layer_norm": True}, "needs embedding_layer_norm: false"),
        ({"moe": {"num_experts": 2}}, "needs moe: null"),
        ({"attention_sliding_window_length": 4}, "attention_sliding_window_length: null"),
        ({"mup_base_hidden_size": 8}, "needs mup_base_hidden_size: null"),
        ({"relative_attention_max_distance": 4}, "must be above half of relative_attention_num"),
    ],
)
def test_what_it_cannot_have_is_refused(changes, expected):
    with pytest.raises(ValidationError, match=expected):
        config(**changes)


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (T5, None, "expected .*corrupt_spans.*: with model.decoder_num_hidden_layers"),
        (T5, "mask_tokens", "expected .*corrupt_spans.*: with model.decoder_num_hidden_layers"),
        ({}, "corrupt_spans", "corrupt_spans is for encoders: set .*decoder_num_hidden_layers"),
        ({"bidirectional": True}, "corrupt_spans", "expected .*mask_tokens"),
    ],
)
def test_a_model_and_its_task_need_each_other(model, given, expected):
    keys = ("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers",
            "num_heads", "filter_size")  # fmt: skip
    values = {"train_input": {"batch_size": 8}, "optimizer": {"learning_rate": 0.1},
              "model": {key: T5[key] for key in keys} | model}  # fmt: skip
    if given is not None:
        values["train_input"]["data_transforms"] = [{"name": given}]
    with pytest.raises(ConfigError, match=f"train_input.data_transforms: {expected}"):
        load_params(values)
