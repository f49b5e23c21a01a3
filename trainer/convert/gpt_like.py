"""Families of Hugging Face with LayerNorm and plain feed-forward layers: GPT-2, GPT-J, GPT-NeoX,
Falcon 7B and StarCoder; and Cerebras' BTLM and Jais, which have ALiBi, SwiGLU and muP.

Sources: the modules of `transformers` (GPT2LMHeadModel, GPTJForCausalLM, GPTNeoXForCausalLM,
GPTBigCodeForCausalLM, FalconForCausalLM), the key names of Model Zoo's BTLM and Jais
converters.
"""

from dataclasses import replace

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.config.model_parameters import CheckpointLayout
from trainer.convert.family import (
    HfKeys,
    Json,
    ModelFamily,
    read_rope,
    read_scaled_rope,
    renamed,
    write_rope,
)

_GELUS = ("gelu", "gelu_new", "relu")
_ALL_BIASES = ("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias")
_GPT2_KEYS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_heads": "n_head",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "residual_dropout_rate": "resid_pdrop",
    "embedding_dropout_rate": "embd_pdrop",
    "attention_dropout_rate": "attn_pdrop",
    "share_embedding_weights": "tie_word_embeddings",
}
_NEOX_KEYS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "filter_size": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "residual_dropout_rate": "hidden_dropout",
    "attention_dropout_rate": "attention_dropout",
    "share_embedding_weights": "tie_word_embeddings",
}


def _to_gpt2(config: ModelConfig) -> Json:
    return renamed(config, _GPT2_KEYS) | {
        "n_inner": config.filter_size,
        "activation_function": config.nonlinearity,
    }


def _to_gptj(config: ModelConfig) -> Json:
    return _to_gpt2(config) | {
        "rotary": True,
        "rotary_dim": config.rotary_dim or config.head_size,
    }


def _to_swiglu_gpt2(config: ModelConfig) -> Json:
    return _to_gpt2(config) | {
        "position_embedding_type": "alibi",
        "mup_width_scale": 1 / config.m_width,
        "mup_output_alpha": config.output_logits_scale / (1 / config.m_width),
        "mup_embeddings_scale": config.embeddings_scale,
        "mup_scale_qk_dot_by_d": config.scale_qk_dot_by_d,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }


def _to_gpt_neox(config: ModelConfig) -> Json:
    share = (config.rotary_dim or config.head_size) / config.head_size
    rotary: Json = {"rope_theta": config.rope_theta, "rope_type": "default"}
    return renamed(config, _NEOX_KEYS) | {
        "hidden_act": config.nonlinearity,
        "use_parallel_residual": config.parallel_block,
        "attention_bias": True,
        "rotary_pct": share,
        "rotary_emb_base": config.rope_theta,
        "rope_parameters": {**rotary, "partial_rotary_factor": share},
    }


def _from_gpt2(given: HfKeys) -> Json:
    return given.renamed(_GPT2_KEYS) | {
        "filter_size": given.get("n_inner") or 4 * given["n_embd"],
        "nonlinearity": given.activation("activation_function"),
    }


def _from_gptj(given: HfKeys) -> Json:
    return _from_gpt2(given) | {
        "position_embedding_type": "rotary",
        "rotary_dim": given["rotary_dim"],
        "rotary_interleaved": True,
        "parallel_block": True,
        "use_untied_layer_norm": False,
        "use_projection_bias_in_attention": False,
        "use_ffn_bias_in_attention": False,
        "use_bias_in_output": True,
    }


def _from_gpt_neox(given: HfKeys) -> Json:
    head = given["hidden_size"] // given["num_attention_heads"]
    theta, share = read_rope(given, "rotary_emb_base", given["rotary_pct"])
    rotated = int(head * share)
    if rotated % 2:
        raise ConfigError(
            f"{given.place}: rotary_pct {share:g} of a head of {head} units is {rotated}; expected "
            "an even number of units, which are rotated in pairs"
        )
    bias = given["attention_bias"]
    return given.renamed(_NEOX_KEYS) | {
        "nonlinearity": given.activation("hidden_act"),
        "position_embedding_type": "rotary",
        "rotary_dim": rotated,
        "rope_theta": theta,
        "parallel_block": given["use_parallel_residual"],
        "use_projection_bias_in_attention": bias,
        "use_ffn_bias_in_attention": bias,
    }


def _from_swiglu_gpt2(given: HfKeys) -> Json:
    scale = float(given["mup_width_scale"])
    section = given.renamed(_GPT2_KEYS) | {
        "filter_size": given.get("n_inner") or 4 * given["n_embd"],
        "nonlinearity": "swiglu",
        "position_embedding_type": "alibi",
        "embeddings_scale": float(given["mup_embeddings_scale"]),
        "output_logits_scale": float(given["mup_output_alpha"]) * scale,
        "scale_qk_dot_by_d": bool(given["mup_scale_qk_dot_by_d"]),
    }
    if scale != 1.0:
        section["mup_base_hidden_size"] = round(given["n_embd"] * scale)
    return section


def _to_starcoder(config: ModelConfig) -> Json:
    return _to_gpt2(config) | {"multi_query": True, "scale_attn_weights": True}


def _from_starcoder(given: HfKeys) -> Json:
    return _from_gpt2(given) | {"attention_module": "multiquery_attention"}


_FALCON_KEYS = {key: theirs for key, theirs in _NEOX_KEYS.items() if key != "filter_size"}
_FALCON_KEYS["layer_norm_epsilon"] = "layer_norm_epsilon"
_FALCON_ONLY: Json = {
    "new_decoder_architecture": False,
    "multi_query": True,
    "parallel_attn": True,
    "alibi": False,
    "bias": False,
}
"""The one form of Falcon that is supported, that of 7B."""


def _to_falcon(config: ModelConfig) -> Json:
    return renamed(config, _FALCON_KEYS) | {
        **_FALCON_ONLY,
        "ffn_hidden_size": config.filter_size,
        "activation": config.nonlinearity,
        "num_kv_heads": 1,
        **write_rope(config),
    }


def _from_falcon(given: HfKeys) -> Json:
    return given.renamed(_FALCON_KEYS) | {
        "filter_size": given.get("ffn_hidden_size") or 4 * given["hidden_size"],
        "nonlinearity": given.activation("activation"),
        "position_embedding_type": "rotary",
        **read_scaled_rope(given),
        "attention_module": "multiquery_attention",
        "parallel_block": True,
        "use_untied_layer_norm": False,
        **dict.fromkeys(_ALL_BIASES, False),
    }


_GPT2_DEFAULTS: Json = {
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "tie_word_embeddings": True,
    "activation_function": "gelu_new",
    "n_inner": None,
}
_GPT2_BLOCK = {
    "attention_norm": "ln_1",
    "attention.output": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.input": "mlp.c_fc",
    "feed_forward.output": "mlp.c_proj",
}
_GPT2_STEM = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "read_out": "lm_head",
}
_MASKS = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)

GPT2 = ModelFamily(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    base="transformer.",
    layout=CheckpointLayout(
        names=_GPT2_STEM | _GPT2_BLOCK,
        block="transformer.h.{n}.",
        qkv=("attn.c_attn",),
        conv1d=True,
        ignored=_MASKS,
    ),
    write=_to_gpt2,
    read=_from_gpt2,
    defaults=_GPT2_DEFAULTS,
    only={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    holds={
        "position_embedding_type": ("learned",),
        "norm_type": ("layernorm",),
        "nonlinearity": _GELUS,
        "parallel_block": (False,),
        "use_bias_in_output": (False,),
    },
    biases=_ALL_BIASES,
)

BTLM = ModelFamily(
    name="btlm",
    architecture="BTLMLMHeadModel",
    base="transformer.",
    layout=CheckpointLayout(
        names=_GPT2_STEM | _GPT2_BLOCK | {"feed_forward.gate": "mlp.c_fc2"},
        block="transformer.h.{n}.",
        qkv=("attn.c_attn",),
        conv1d=True,
        ignored=(*_MASKS, r"transformer\.relative_pe\.slopes"),
    ),
    write=_to_swiglu_gpt2,
    read=_from_swiglu_gpt2,
    defaults={
        **_GPT2_DEFAULTS,
        "mup_width_scale": 1.0,
        "mup_output_alpha": 1.0,
        "mup_embeddings_scale": 1.0,
        "mup_scale_qk_dot_by_d": False,
    },
    only={
        "activation_function": "swiglu",
        "position_embedding_type": "alibi",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "alibi_scaling": None,
    },
    holds={
        "position_embedding_type": ("alibi",),
        "norm_type": ("layernorm",),
        "nonlinearity": ("swiglu",),
        "parallel_block": (False,),
        "use_bias_in_output": (False,),
        "attention_type": ("scaled_dot_product",),
    },
    biases=_ALL_BIASES,
    keeps_mup=True,
    verified="key list only",
    constants=("transformer.relative_pe.slopes",),
)
JAIS = replace(BTLM, name="jais", architecture="JAISLMHeadModel")

GPTJ = ModelFamily(
    name="gptj",
    architecture="GPTJForCausalLM",
    base="transformer.",
    layout=CheckpointLayout(
        names={
            "token_embedding": "transformer.wte",
            "attention_norm": "ln_1",
            "attention.output": "attn.out_proj",
            "feed_forward.input": "mlp.fc_in",
            "feed_forward.output": "mlp.fc_out",
            "final_norm": "transformer.ln_f",
            "read_out": "lm_head",
        },
        block="transformer.h.{n}.",
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        interleaved=True,
        ignored=(*_MASKS, r"transformer\.h\.\d+\.attn\.embed_positions"),
    ),
    write=_to_gptj,
    read=_from_gptj,
    defaults={
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": False,
        "activation_function": "gelu_new",
        "n_inner": None,
        "rotary_dim": 64,
    },
    only={"rotary": True},
    holds={
        "position_embedding_type": ("rotary",),
        "rope_theta": (10000.0,),
        "norm_type": ("layernorm",),
        "nonlinearity": _GELUS,
        "parallel_block": (True,),
        "use_untied_layer_norm": (False,),
        "use_projection_bias_in_attention": (False,),
        "use_ffn_bias_in_attention": (False,),
    },
    biases=("use_ffn_bias", "use_bias_in_output"),
)

NEOX = ModelFamily(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    base="gpt_neox.",
    layout=CheckpointLayout(
        names={
            "token_embedding": "gpt_neox.embed_in",
            "attention_norm": "input_layernorm",
            "attention.output": "attention.dense",
            "feed_forward_norm": "post_attention_layernorm",
            "feed_forward.input": "mlp.dense_h_to_4h",
            "feed_forward.output": "mlp.dense_4h_to_h",
            "final_norm": "gpt_neox.final_layer_norm",
            "read_out": "embed_out",
        },
        block="gpt_neox.layers.{n}.",
        qkv=("attention.query_key_value",),
        per_head=True,
        ignored=(
            r"gpt_neox\.layers\.\d+\.attention\.(masked_)?bias",
            r"gpt_neox\.layers\.\d+\.attention\.rotary_emb\.inv_freq",
        ),
        aliases=(("embed_out.weight", "lm_head.weight"),),
    ),
    write=_to_gpt_neox,
    read=_from_gpt_neox,
    defaults={
        "layer_norm_eps": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "hidden_act": "gelu",
        "use_parallel_residual": True,
        "attention_bias": True,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000.0,
    },
    holds={
        "position_embedding_type": ("rotary",),
        "norm_type": ("layernorm",),
        "nonlinearity": _GELUS,
        "use_untied_layer_norm": (True,),
        "use_bias_in_output": (False,),
    },
    biases=_ALL_BIASES,
)

STARCODER = ModelFamily(
    name="gpt_bigcode",
    architecture="GPTBigCodeForCausalLM",
    base="transformer.",
    layout=replace(GPT2.layout, conv1d=False),
    write=_to_starcoder,
    read=_from_starcoder,
    defaults={**_GPT2_DEFAULTS, "activation_function": "gelu_pytorch_tanh", "multi_query": True},
    only={"multi_query": True, "scale_attn_weights": True, "add_cross_attention": False},
    holds={**GPT2.holds, "num_kv_heads": (1,)},
    biases=_ALL_BIASES,
    grouped=True,
)


FALCON = ModelFamily(
    name="falcon",
    architecture="FalconForCausalLM",
    base="transformer.",
    layout=CheckpointLayout(
        names={
            "token_embedding": "transformer.word_embeddings",
            "attention_norm": "input_layernorm",
            "attention.output": "self_attention.dense",
            "feed_forward.input": "mlp.dense_h_to_4h",
            "feed_forward.output": "mlp.dense_4h_to_h",
            "final_norm": "transformer.ln_f",
            "read_out": "lm_head",
        },
        block="transformer.h.{n}.",
        qkv=("self_attention.query_key_value",),
    ),
    write=_to_falcon,
    read=_from_falcon,
    defaults={
        **_FALCON_ONLY,
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "activation": "gelu",
        "rope_theta": 10000.0,
    },
    only=_FALCON_ONLY,
    holds={
        "position_embedding_type": ("rotary",),
        "rotary_dim": (None,),
        "num_kv_heads": (1,),
        "norm_type": ("layernorm",),
        "nonlinearity": _GELUS,
        "parallel_block": (True,),
        "use_untied_layer_norm": (False,),
        "use_bias_in_output": (False,),
        **dict.fromkeys(_ALL_BIASES, (False,)),
    },
    takes=("pos_scaling_factor",),
    grouped=True,
)
