"""Names of tensors, and that every layout gives back the very bits it was given."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError, InputError
from tests.trainer.convert.models import BASE, FAMILIES, MUP, make, state_of
from trainer.config import ModelConfig
from trainer.config.model_parameters import shapes
from trainer.convert import (
    family_of,
    fold_mup,
    from_hf,
    from_model_zoo,
    to_hf,
    to_model_zoo,
    wrap_tensors,
)
from trainer.convert.gguf_file import check_family
from trainer.model import GPT

BTLM_KEYS = """\
transformer.h.0.attn.c_attn.bias (144,)
transformer.h.0.attn.c_attn.weight (48, 144)
transformer.h.0.attn.c_proj.bias (48,)
transformer.h.0.attn.c_proj.weight (48, 48)
transformer.h.0.ln_1.bias (48,)
transformer.h.0.ln_1.weight (48,)
transformer.h.0.ln_2.bias (48,)
transformer.h.0.ln_2.weight (48,)
transformer.h.0.mlp.c_fc.bias (64,)
transformer.h.0.mlp.c_fc.weight (48, 64)
transformer.h.0.mlp.c_fc2.bias (64,)
transformer.h.0.mlp.c_fc2.weight (48, 64)
transformer.h.0.mlp.c_proj.bias (48,)
transformer.h.0.mlp.c_proj.weight (64, 48)
transformer.ln_f.bias (48,)
transformer.ln_f.weight (48,)
transformer.relative_pe.slopes (4, 1)
transformer.wte.weight (61, 48)
"""
MODEL_ZOO_KEYS = """\
model.embedding_layer.position_embeddings.embed.weight (16, 48)
model.embedding_layer.word_embeddings.weight (61, 48)
model.lm_head.weight (61, 48)
model.ln_f.bias (48,)
model.ln_f.weight (48,)
model.transformer_decoder.layers.0.ffn.ffn.0.linear_layer.bias (64,)
model.transformer_decoder.layers.0.ffn.ffn.0.linear_layer.weight (64, 48)
model.transformer_decoder.layers.0.ffn.ffn.1.linear_layer.bias (48,)
model.transformer_decoder.layers.0.ffn.ffn.1.linear_layer.weight (48, 64)
model.transformer_decoder.layers.0.norm1.bias (48,)
model.transformer_decoder.layers.0.norm1.weight (48,)
model.transformer_decoder.layers.0.norm3.bias (48,)
model.transformer_decoder.layers.0.norm3.weight (48,)
model.transformer_decoder.layers.0.self_attn.proj_k_dense_layer.bias (48,)
model.transformer_decoder.layers.0.self_attn.proj_k_dense_layer.weight (48, 48)
model.transformer_decoder.layers.0.self_attn.proj_output_dense_layer.bias (48,)
model.transformer_decoder.layers.0.self_attn.proj_output_dense_layer.weight (48, 48)
model.transformer_decoder.layers.0.self_attn.proj_q_dense_layer.bias (48,)
model.transformer_decoder.layers.0.self_attn.proj_q_dense_layer.weight (48, 48)
model.transformer_decoder.layers.0.self_attn.proj_v_dense_layer.bias (48,)
model.transformer_decoder.layers.0.self_attn.proj_v_dense_layer.weight (48, 48)
model.transformer_decoder.norm.bias (48,)
model.transformer_decoder.norm.weight (48,)
"""


def listed(tensors) -> list[str]:
    return sorted(f"{name} {tensor.shape}" for name, tensor in tensors.items())


def same(state, model) -> bool:
    own = dict(model.named_parameters())
    return list(own) == list(state) and all(
        torch.equal(state[name].read(), own[name].detach()) for name in own
    )


@pytest.mark.parametrize("family", ["btlm", "jais"])
def test_keys_of_btlm_and_jais(family):
    model, config = make("btlm", num_hidden_layers=1)
    tensors, hf_config = to_hf(state_of(model), config, family)
    assert listed(tensors) == BTLM_KEYS.splitlines()
    assert hf_config["model_type"] == family
    assert hf_config["mup_width_scale"] == pytest.approx(1 / 3)
    assert hf_config["mup_output_alpha"] == pytest.approx(1.0)
    state, back, _ = from_hf(tensors, hf_config)
    assert same(state, model)
    assert back.output_logits_scale == pytest.approx(config.output_logits_scale)
    assert (back.embeddings_scale, back.mup_base_hidden_size) == (10.0, 16)


def test_keys_of_model_zoo():
    model, config = make("gpt2", num_hidden_layers=1)
    assert listed(to_model_zoo(state_of(model), config)) == MODEL_ZOO_KEYS.splitlines()


def test_tensors_have_the_shape_they_say():
    for name in FAMILIES:
        model, config = make(name, **({} if name == "btlm" else MUP))
        made = [to_hf(state_of(model), config, name)[0]]
        if config.moe is None:
            made.append(to_model_zoo(state_of(model), config))
        for tensors in made:
            for key, tensor in tensors.items():
                data = tensor.read()
                assert (tuple(data.shape), data.dtype) == (tensor.shape, tensor.dtype), key


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "btlm"])
def test_there_and_back_is_the_same_bits(family):
    model, config = make(family)
    tensors, hf_config = to_hf(state_of(model), config, family)
    state, back, dropped = from_hf(tensors, hf_config)
    assert same(state, model)
    assert not dropped
    assert shapes(back) == shapes(config)
    assert family_of(back, family).name == family


CONFIGS = st.fixed_dictionaries(
    {
        "position_embedding_type": st.sampled_from(["learned", "fixed", "rotary", "alibi"]),
        "rotary_dim": st.sampled_from([None, 2, 6, 12]),
        "rotary_interleaved": st.booleans(),
        "norm_type": st.sampled_from(["layernorm", "biasless-layernorm", "rmsnorm"]),
        "embedding_layer_norm": st.booleans(),
        "attention_qk_norm_layer": st.sampled_from([None, "layernorm", "rmsnorm"]),
        "attention_inner_dim": st.sampled_from([None, 96]),
        "nonlinearity": st.sampled_from(["gelu", "gelu_new", "swiglu", "geglu"]),
        "parallel_block": st.booleans(),
        "use_untied_layer_norm": st.booleans(),
        "share_embedding_weights": st.booleans(),
        "use_projection_bias_in_attention": st.booleans(),
        "use_ffn_bias": st.booleans(),
        "use_bias_in_output": st.booleans(),
        "num_kv_groups": st.sampled_from([1, 2, 4]),
    }
)


def config_of(options) -> ModelConfig:
    groups = options.pop("num_kv_groups")
    if groups < 4:
        options |= {
            "attention_module": "multiquery_attention",
            "extra_attention_params": {"num_kv_groups": groups},
        }
    if not options["parallel_block"]:
        options["use_untied_layer_norm"] = True
        options["norm_first_sandwich"] = options["use_bias_in_output"]
    if options["position_embedding_type"] != "rotary":
        options |= {"rotary_dim": None, "rotary_interleaved": False}
    return ModelConfig.model_validate({**BASE, **options})


@settings(max_examples=40, deadline=None)
@given(CONFIGS)
def test_any_decoder_goes_through_model_zoo_and_back(options):
    config = config_of(options)
    model = GPT(config, seed=1)
    own = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert list(own.items()) == list(shapes(config).items())
    state, dropped = from_model_zoo(to_model_zoo(state_of(model), config), config)
    assert same(state, model)
    assert not dropped


@settings(max_examples=40, deadline=None)
@given(CONFIGS)
def test_what_a_family_takes_it_gives_back(options):
    config = config_of(options)
    model = GPT(config, seed=1)
    try:
        tensors, hf_config = to_hf(state_of(model), config)
    except ConfigError as error:
        assert "no Hugging Face family" in str(error)  # noqa: PT017 - either outcome is right
        return
    state, back, _ = from_hf(tensors, hf_config)
    again, hf_again = to_hf(state, back, hf_config["model_type"])
    assert hf_again == hf_config
    assert {n: t.read().tolist() for n, t in again.items()} == {
        n: t.read().tolist() for n, t in tensors.items()
    }


def test_older_and_bare_names_are_read():
    """R1.7 to R2.0 call the learned positions differently; some files have no prefix."""
    model, config = make()
    tensors = to_model_zoo(state_of(model), config)
    old = {
        name.removeprefix("model.").replace("position_embeddings.embed.", "position_embeddings."): t
        for name, t in tensors.items()
    }
    assert same(from_model_zoo(old, config)[0], model)
    hf, hf_config = to_hf(state_of(model), config)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in hf.items()}
    masks = wrap_tensors(
        {"h.0.attn.bias": torch.ones(1, 1, 16, 16), "h.0.attn.masked_bias": torch.ones(())}
    )
    assert same(from_hf({**bare, **masks}, hf_config)[0], model)


def test_masked_weights_of_sparse_training_are_zeros():
    model, config = make()
    tensors = dict(to_model_zoo(state_of(model), config))
    name = "model.transformer_decoder.layers.0.ffn.ffn.0.linear_layer.weight"
    data = tensors[name].read().clone()
    data[3, 5] = float("nan")
    masked: dict[str, int] = {}
    state, _ = from_model_zoo({**tensors, **wrap_tensors({name: data})}, config, masked=masked)
    ours = state["blocks.0.feed_forward.input.weight"].read()
    assert float(ours[3, 5]) == 0 and not bool(ours.isnan().any())
    assert masked == {"blocks.0.feed_forward.input.weight": 1}


def test_nan_that_no_mask_explains_is_refused():
    model, config = make()
    name = "model.transformer_decoder.layers.0.norm1.weight"
    broken = wrap_tensors({name: torch.full((48,), float("nan"))})
    state, _ = from_model_zoo({**to_model_zoo(state_of(model), config), **broken}, config)
    with pytest.raises(InputError, match=r"attention_norm\.weight: has NaN"):
        state["blocks.0.attention_norm.weight"].read()


def test_folded_factors_are_those_of_the_paper():
    """P Table 14: wte, wpe x m_emb; final norm x 1 / (m_width m_emb); Q x d_head ** -1/2."""
    model, config = make("gpt2", **MUP)
    folded, plain = fold_mup(state_of(model), config)
    own = dict(model.named_parameters())
    factors = {
        "token_embedding.weight": 10.0, "position_embedding.weight": 10.0,
        "final_norm.weight": 1 / (3 * 10.0), "final_norm.bias": 1 / (3 * 10.0),
    }  # fmt: skip
    for name, parameter in own.items():
        expected = parameter.detach() * factors.get(name, 1.0)
        if "qkv" in name:
            expected = expected.clone()
            expected[:48] *= 12**-0.5
        torch.testing.assert_close(folded[name].read(), expected)
    assert (plain.mup_base_hidden_size, plain.output_logits_scale) == (None, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"position_embedding_type": "alibi"},
            "position_embedding_type is alibi; gpt2 needs learned",
        ),
        ({"norm_type": "rmsnorm"}, "norm_type is rmsnorm"),
        ({"use_bias_in_output": True}, "use_bias_in_output is True"),
    ],
)
def test_a_family_refuses_what_it_cannot_hold(change, message):
    model, config = make("gpt2", **change)
    with pytest.raises(ConfigError, match=message):
        to_hf(state_of(model), config, "gpt2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"activation_function": "mish"}, "activation_function is 'mish'"),
        ({"n_inner": 128}, r"shape \(48, 64\) does not fit the config"),
        ({"n_layer": 3}, r"transformer.h.2.ln_1.weight: missing"),
        ({"n_layer": 1}, r"transformer.h.1.* no parameter .*--drop-unmatched-keys"),
    ],
)
def test_a_config_that_is_not_of_these_tensors_is_refused(change, message):
    model, config = make()
    tensors, hf_config = to_hf(state_of(model), config)
    with pytest.raises((ConfigError, InputError), match=message):
        from_hf(tensors, {**hf_config, **change})


def test_unmatched_tensors_can_be_left_out():
    model, config = make()
    tensors, hf_config = to_hf(state_of(model), config)
    extra = wrap_tensors({"transformer.adapter.weight": torch.ones(2)})
    state, _, dropped = from_hf({**tensors, **extra}, hf_config, drop_unmatched=True)
    assert dropped == ["transformer.adapter.weight"]
    assert same(state, model)


def test_rotary_embeddings_that_are_stretched():
    """In the spelling of transformers 5 or 4; kinds that are not there are refused by name."""
    model, config = make("llama")
    tensors, hf_config = to_hf(state_of(model), config)
    plain = {key: value for key, value in hf_config.items() if key != "rope_parameters"}
    assert from_hf(tensors, plain)[1].rope_theta == 10000.0
    rule = {"type": "linear", "factor": 2.0}
    scaled = from_hf(tensors, {**plain, "rope_scaling": rule})[1]
    assert (scaled.pos_scaling_type, scaled.pos_scaling_factor) == ("linear", 2.0)
    for wrong, expected in [
        ({"rope_type": "longrope", "factor": 2.0}, "type 'longrope' are not supported; expected"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_type": "yarn"}, "factor of rotary embeddings of type yarn is missing"),
        ({"rope_type": "yarn", "factor": 4.0, "mscale": 2.0}, "mscale of rotary embeddings is 2.0"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            from_hf(tensors, {**plain, "rope_parameters": wrong})


def test_mixtures_of_experts_have_no_mdl():
    model, config = make("mixtral")
    for refused in (to_model_zoo, from_model_zoo):
        with pytest.raises(ConfigError, match="mixtures of experts are not converted from and to"):
            refused(state_of(model), config)


def test_bloom_as_its_first_files_have_it():
    """Other keys, and tensors without a prefix."""
    model, config = make("bloom")
    tensors, hf_config = to_hf(state_of(model), config, "bloom")
    spelled = {"hidden_size": "n_embed", "n_layer": "num_hidden_layers",
               "n_head": "num_attention_heads"}  # fmt: skip
    older = {spelled.get(key, key): value for key, value in hf_config.items()}
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    state, back, dropped = from_hf(bare, older)
    assert same(state, model)
    assert (shapes(back), dropped) == (shapes(config), [])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pos_scaling_factor": 2.0}, "scaled rotary positions"),
        ({"attention_inner_dim": 96}, "heads of another width"),
        ({"nonlinearity": "relu"}, "model.nonlinearity is relu"),
    ],
)
def test_what_gguf_cannot_say_is_refused(changes, expected):
    with pytest.raises(ConfigError, match=expected):
        check_family("llama", make("llama", **changes)[1])


WINDOWED, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([FULL, FULL], [False, False]),
        ([WINDOWED, WINDOWED], [True, True]),
        ([WINDOWED, FULL], [True, False]),
        ([FULL, WINDOWED], [False, True]),
        (None, [True, False]),
    ],
)
def test_layers_with_windows(kinds, expected):
    model, config = make("gemma2")
    tensors, hf_config = to_hf(state_of(model), config)
    back = from_hf(tensors, {**hf_config, "layer_types": kinds})[1]
    assert [back.has_window(layer) for layer in range(2)] == expected


def test_windows_in_another_order_are_refused():
    model, config = make("gemma2", num_hidden_layers=3)
    tensors, hf_config = to_hf(state_of(model), config)
    with pytest.raises(ConfigError, match="layer_types is"):
        from_hf(tensors, {**hf_config, "layer_types": [FULL, FULL, WINDOWED]})


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {"attention_sliding_window_length": 4}, "attention_sliding_window_length is 4"),
        (
            "mistral",
            {"attention_sink_tokens": 2},
            "model.attention_sink_tokens is 2; mistral needs",
        ),
        (
            "qwen3",
            {"attention_qk_norm_eps": 0.5},
            "attention_qk_norm_eps is 0.5; qwen3 needs layer",
        ),
        ("llama", {"rotary_dim": 4}, "rotary_dim is 4; llama needs None"),
        ("gpt2", {"attention_inner_dim": 96}, "attention_inner_dim is 96; gpt2 needs None"),
        (
            "mixtral",
            {"moe": {"num_experts": 4, "num_shared_experts": 1}},
            "moe is another mixture of experts; mixtral needs a mixture that weights",
        ),
        ("llama", {"moe": {"num_experts": 4}}, "moe is a mixture .*; llama needs None"),
        ("bloom", {"filter_size": 64}, "filter_size is 64; bloom needs 4 hidden_size"),
    ],
)
def test_what_a_family_cannot_hold_is_refused_by_name(family, changes, expected):
    model, config = make(family, **changes)
    with pytest.raises(ConfigError, match=expected):
        to_hf(state_of(model), config, family)


def test_sliding_windows_are_refused():
    model, config = make("llama")
    tensors, hf_config = to_hf(state_of(model), config)
    with pytest.raises(ConfigError, match="sliding_window is 64"):
        from_hf(tensors, {**hf_config, "sliding_window": 64})
