"""Families of Hugging Face with RMSNorm, rotary positions and gated feed-forward layers: Llama,
Mistral, Mixtral, Qwen 2 and 3, Gemma 2.

Sources: the modules of `transformers` (LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM,
Qwen2ForCausalLM, Qwen3ForCausalLM, Gemma2ForCausalLM).
"""

import math
from dataclasses import replace

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.config.model_parameters import CheckpointLayout
from trainer.convert.family import HfKeys, Json, ModelFamily, read_scaled_rope, renamed, write_rope
from trainer.model.attention import logits_scale

_KEYS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "filter_size": "intermediate_size",
    "layer_norm_epsilon": "rms_norm_eps",
    "attention_dropout_rate": "attention_dropout",
    "share_embedding_weights": "tie_word_embeddings",
}
_DEFAULTS: Json = {
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": 10000.0,
}
_NO_BIASES = dict.fromkeys(
    ("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias"), False
)


def _write(config: ModelConfig) -> Json:
    return renamed(config, _KEYS) | {
        "hidden_act": "silu",
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        **write_rope(config),
    }


def _read(given: HfKeys) -> Json:
    """What all have, without biases."""
    heads, width = given["num_attention_heads"], given["hidden_size"]
    kv_heads, head = given.get("num_key_value_heads") or heads, given.get("head_dim")
    section = given.renamed(_KEYS) | {
        "nonlinearity": "swiglu",
        "norm_type": "rmsnorm",
        "position_embedding_type": "rotary",
        **read_scaled_rope(given),
        **_NO_BIASES,
    }
    if head and head * heads != width:
        section["attention_inner_dim"] = head * heads
    if kv_heads != heads:
        section["attention_module"] = "multiquery_attention"
        section["extra_attention_params"] = {"num_kv_groups": kv_heads}
    return section


def _to_llama(config: ModelConfig) -> Json:
    return _write(config) | {
        "attention_bias": config.use_projection_bias_in_attention,
        "mlp_bias": config.use_ffn_bias,
    }


def _from_llama(given: HfKeys) -> Json:
    return _read(given) | {
        "use_projection_bias_in_attention": given["attention_bias"],
        "use_ffn_bias_in_attention": given["attention_bias"],
        "use_ffn_bias": given["mlp_bias"],
    }


def _to_mistral(config: ModelConfig) -> Json:
    return _write(config) | {"sliding_window": config.attention_sliding_window_length}


def _from_mistral(given: HfKeys) -> Json:
    return _read(given) | {"attention_sliding_window_length": given.get("sliding_window")}


def _to_qwen2(config: ModelConfig) -> Json:
    return _write(config) | {"use_sliding_window": False}


def _from_qwen2(given: HfKeys) -> Json:
    return _read(given) | {"use_projection_bias_in_attention": True}


def _to_qwen3(config: ModelConfig) -> Json:
    bias = config.use_projection_bias_in_attention
    return _write(config) | {"use_sliding_window": False, "attention_bias": bias}


def _from_qwen3(given: HfKeys) -> Json:
    bias, eps = given["attention_bias"], float(given["rms_norm_eps"])
    return _read(given) | {
        "use_projection_bias_in_attention": bias,
        "use_ffn_bias_in_attention": bias,
        "attention_qk_norm_layer": "rmsnorm",
        "attention_qk_norm_eps": eps,
    }


def _to_mixtral(config: ModelConfig) -> Json:
    assert config.moe is not None  # the family holds no others
    return _write(config) | {
        "num_local_experts": config.moe.num_experts,
        "num_experts_per_tok": config.moe.top_k,
        "router_aux_loss_coef": config.moe.load_balancing_loss_coef,
        "sliding_window": config.attention_sliding_window_length,
    }


def _from_mixtral(given: HfKeys) -> Json:
    moe: Json = {
        "num_experts": given["num_local_experts"],
        "top_k": given["num_experts_per_tok"],
        "load_balancing_loss_coef": float(given["router_aux_loss_coef"]),
    }
    return _read(given) | {
        "attention_sliding_window_length": given.get("sliding_window"),
        "moe": moe,
    }


_GEGLUS = {"geglu": "gelu", "geglu_new": "gelu_pytorch_tanh"}
_FULL, _WINDOWED = "full_attention", "sliding_attention"


def _to_gemma2(config: ModelConfig) -> Json:
    scale = logits_scale(config) or config.head_size**-0.5
    layers = range(config.num_hidden_layers)
    activation = _GEGLUS[config.nonlinearity]
    written = _write(config)
    del written["hidden_act"]
    return written | {
        "hidden_activation": activation,
        "attention_bias": config.use_projection_bias_in_attention,
        "query_pre_attn_scalar": max(1, round(scale**-2)),
        "attn_logit_softcapping": config.attention_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
        "sliding_window": config.attention_sliding_window_length,
        "layer_types": [_WINDOWED if config.has_window(layer) else _FULL for layer in layers],
    }


def _from_gemma2(given: HfKeys) -> Json:
    activation = given.get("hidden_activation") or "gelu_pytorch_tanh"
    kinds = {theirs: ours for ours, theirs in _GEGLUS.items()}
    if activation not in kinds:
        raise ConfigError(
            f"{given.place}: hidden_activation is {activation!r}, expected {' or '.join(kinds)}"
        )
    section = _read(given) | {
        "nonlinearity": kinds[activation],
        "norm_first_sandwich": True,
        "embeddings_scale": math.sqrt(given["hidden_size"]),
        "use_projection_bias_in_attention": given["attention_bias"],
        "use_ffn_bias_in_attention": given["attention_bias"],
        **_windows(given),
    }
    for ours, theirs in (
        ("attention_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ):
        cap = given[theirs]
        section[ours] = None if cap is None else float(cap)
    alpha = math.sqrt(given["head_dim"] / given["query_pre_attn_scalar"])
    section["attention_logits_alpha"] = 1.0 if math.isclose(alpha, 1.0) else alpha
    return section


def _windows(given: HfKeys) -> Json:
    """Our keys of sliding windows, from the kind of every layer; by default every other one has a
    window, the first one too."""
    count, window = given["num_hidden_layers"], given.get("sliding_window")
    both = {"sliding_window_first": (_WINDOWED, _FULL), "full_attention_first": (_FULL, _WINDOWED)}
    default = [both["sliding_window_first"][layer % 2] for layer in range(count)]
    kinds = given.get("layer_types") or default
    if window is None or kinds == [_FULL] * count:
        return {}
    if kinds == [_WINDOWED] * count:
        return {"attention_sliding_window_length": window}
    for pattern, pair in both.items():
        if kinds == [pair[layer % 2] for layer in range(count)]:
            return {
                "attention_sliding_window_length": window,
                "sliding_window_every_other_decoder_layer": True,
                "sliding_window_every_other_decoder_layer_pattern": pattern,
            }
    raise ConfigError(
        f"{given.place}: layer_types is {kinds}; expected {_WINDOWED} in every layer, in every "
        "other one, or in none"
    )


LLAMA = ModelFamily(
    name="llama",
    architecture="LlamaForCausalLM",
    base="model.",
    layout=CheckpointLayout(
        names={
            "token_embedding": "model.embed_tokens",
            "attention_norm": "input_layernorm",
            "attention.output": "self_attn.o_proj",
            "feed_forward_norm": "post_attention_layernorm",
            "feed_forward.input": "mlp.up_proj",
            "feed_forward.gate": "mlp.gate_proj",
            "feed_forward.output": "mlp.down_proj",
            "final_norm": "model.norm",
            "read_out": "lm_head",
        },
        block="model.layers.{n}.",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    ),
    write=_to_llama,
    read=_from_llama,
    defaults=_DEFAULTS,
    only={"hidden_act": "silu", "sliding_window": None},
    holds={
        "position_embedding_type": ("rotary",),
        "rotary_dim": (None,),
        "norm_type": ("rmsnorm",),
        "nonlinearity": ("swiglu",),
        "parallel_block": (False,),
        "use_bias_in_output": (False,),
    },
    takes=("pos_scaling_factor", "attention_inner_dim"),
    attention_biases_together=True,
    grouped=True,
)

MISTRAL = replace(
    LLAMA,
    name="mistral",
    architecture="MistralForCausalLM",
    write=_to_mistral,
    read=_from_mistral,
    defaults={**_DEFAULTS, "sliding_window": 4096, "num_key_value_heads": 8},
    only={"hidden_act": "silu"},
    holds={
        **LLAMA.holds,
        "sliding_window_every_other_decoder_layer": (False,),
        **{key: (value,) for key, value in _NO_BIASES.items()},
    },
    takes=(*LLAMA.takes, "attention_sliding_window_length"),
)

MIXTRAL = replace(
    MISTRAL,
    name="mixtral",
    architecture="MixtralForCausalLM",
    layout=replace(
        LLAMA.layout,
        names={
            **LLAMA.layout.names,
            "feed_forward.router": "block_sparse_moe.gate",
            "feed_forward.experts.input": "block_sparse_moe.experts.{e}.w3",
            "feed_forward.experts.gate": "block_sparse_moe.experts.{e}.w1",
            "feed_forward.experts.output": "block_sparse_moe.experts.{e}.w2",
        },
    ),
    write=_to_mixtral,
    read=_from_mixtral,
    defaults={
        **_DEFAULTS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
    },
    holds={**MISTRAL.holds, "moe": ("a mixture that weights chosen experts alone",)},
)

QWEN2 = replace(
    LLAMA,
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    write=_to_qwen2,
    read=_from_qwen2,
    only={"hidden_act": "silu", "use_sliding_window": False},
    holds={
        **LLAMA.holds,
        "use_ffn_bias_in_attention": (False,),
        "use_ffn_bias": (False,),
    },
    takes=("pos_scaling_factor",),
    biases=("use_projection_bias_in_attention",),
    attention_biases_together=False,
)

QWEN3 = replace(
    LLAMA,
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    layout=replace(
        LLAMA.layout,
        names={
            **LLAMA.layout.names,
            "attention.query_norm": "self_attn.q_norm",
            "attention.key_norm": "self_attn.k_norm",
        },
    ),
    write=_to_qwen3,
    read=_from_qwen3,
    defaults={**_DEFAULTS, "head_dim": 128, "num_key_value_heads": 32},
    only={"hidden_act": "silu", "use_sliding_window": False},
    holds={
        **LLAMA.holds,
        "attention_qk_norm_layer": ("rmsnorm",),
        "attention_qk_norm_eps": ("layer_norm_epsilon",),
        "use_ffn_bias": (False,),
    },
)

GEMMA2 = replace(
    LLAMA,
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    layout=replace(
        LLAMA.layout,
        names={
            **LLAMA.layout.names,
            "attention_output_norm": "post_attention_layernorm",
            "feed_forward_norm": "pre_feedforward_layernorm",
            "feed_forward_output_norm": "post_feedforward_layernorm",
        },
    ),
    write=_to_gemma2,
    read=_from_gemma2,
    defaults={
        **_DEFAULTS,
        "tie_word_embeddings": True,
        "head_dim": 256,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    only={},
    holds={
        **LLAMA.holds,
        "nonlinearity": tuple(_GEGLUS),
        "norm_first_sandwich": (True,),
        "use_ffn_bias": (False,),
    },
    takes=(
        *LLAMA.takes,
        "attention_sliding_window_length",
        "attention_logit_softcapping",
        "final_logit_softcapping",
    ),
    scales_embeddings=True,
    scales_attention=True,
    offset_norms=True,
)
