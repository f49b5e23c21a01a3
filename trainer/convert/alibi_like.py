"""Families of Hugging Face with ALiBi: BLOOM and MPT.

Sources: the modules of `transformers` (BloomForCausalLM, MptForCausalLM).
"""

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.config.model_parameters import CheckpointLayout
from trainer.convert.family import HfKeys, Json, ModelFamily, renamed

_ALL_BIASES = ("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias")
_BLOOM_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "n_layer",
    "num_heads": "n_head",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "residual_dropout_rate": "hidden_dropout",
    "attention_dropout_rate": "attention_dropout",
    "share_embedding_weights": "tie_word_embeddings",
}


def _to_bloom(config: ModelConfig) -> Json:
    return renamed(config, _BLOOM_KEYS) | {"seq_length": config.max_position_embeddings}


_BLOOM_ALIASES = {
    "hidden_size": "n_embed",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
}


def _from_bloom(given: HfKeys) -> Json:
    given = given.aliased(_BLOOM_ALIASES)
    return given.renamed(_BLOOM_KEYS) | {
        "max_position_embeddings": given["seq_length"],
        "filter_size": 4 * given["hidden_size"],
        "nonlinearity": "gelu_new",
        "position_embedding_type": "alibi",
        "embedding_layer_norm": True,
    }


_MPT_KEYS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_seq_len",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_heads": "n_heads",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "residual_dropout_rate": "resid_pdrop",
    "embedding_dropout_rate": "emb_pdrop",
    "share_embedding_weights": "tie_word_embeddings",
}
_MPT_ATTENTION = {
    "attn_type": "multihead_attention", "alibi": True, "alibi_bias_max": 8, "qk_ln": False,
    "clip_qkv": None, "softmax_scale": None, "prefix_lm": False, "attn_uses_sequence_id": False,
}  # fmt: skip
"""The one form of MPT's attention that is supported."""


def _to_mpt(config: ModelConfig) -> Json:
    rate = config.attention_dropout_rate
    rate = config.dropout_rate if rate is None else rate
    return renamed(config, _MPT_KEYS) | {
        "expansion_ratio": 4,
        "no_bias": True,
        "attn_config": {**_MPT_ATTENTION, "attn_pdrop": rate or 0, "model_type": ""},
    }


def _from_mpt(given: HfKeys) -> Json:
    attention = given.get("attn_config") or {}
    for key, value in _MPT_ATTENTION.items():
        if attention.get(key, value) != value:
            raise ConfigError(
                f"{given.place}: attn_config.{key} is {attention[key]!r}; only {value!r} of mpt is "
                "supported"
            )
    return given.renamed(_MPT_KEYS) | {
        "attention_dropout_rate": float(attention.get("attn_pdrop", 0.0)),
        "filter_size": given["expansion_ratio"] * given["d_model"],
        "nonlinearity": "gelu",
        "norm_type": "biasless-layernorm",
        "position_embedding_type": "alibi",
        **dict.fromkeys(_ALL_BIASES, False),
    }


BLOOM = ModelFamily(
    name="bloom",
    architecture="BloomForCausalLM",
    base="transformer.",
    layout=CheckpointLayout(
        names={
            "token_embedding": "transformer.word_embeddings",
            "embedding_norm": "transformer.word_embeddings_layernorm",
            "attention_norm": "input_layernorm",
            "attention.output": "self_attention.dense",
            "feed_forward_norm": "post_attention_layernorm",
            "feed_forward.input": "mlp.dense_h_to_4h",
            "feed_forward.output": "mlp.dense_4h_to_h",
            "final_norm": "transformer.ln_f",
            "read_out": "lm_head",
        },
        block="transformer.h.{n}.",
        qkv=("self_attention.query_key_value",),
        per_head=True,
    ),
    write=_to_bloom,
    read=_from_bloom,
    defaults={
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "seq_length": 2048,
    },
    only={"apply_residual_connection_post_layernorm": False},
    holds={
        "position_embedding_type": ("alibi",),
        "embedding_layer_norm": (True,),
        "norm_type": ("layernorm",),
        "nonlinearity": ("gelu_new",),
        "filter_size": ("4 hidden_size",),
        "parallel_block": (False,),
        "use_bias_in_output": (False,),
    },
    biases=_ALL_BIASES,
)

MPT = ModelFamily(
    name="mpt",
    architecture="MptForCausalLM",
    base="transformer.",
    layout=CheckpointLayout(
        names={
            "token_embedding": "transformer.wte",
            "attention_norm": "norm_1",
            "attention.output": "attn.out_proj",
            "feed_forward_norm": "norm_2",
            "feed_forward.input": "ffn.up_proj",
            "feed_forward.output": "ffn.down_proj",
            "final_norm": "transformer.norm_f",
            "read_out": "lm_head",
        },
        block="transformer.blocks.{n}.",
        qkv=("attn.Wqkv",),
    ),
    write=_to_mpt,
    read=_from_mpt,
    defaults={
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.0,
        "emb_pdrop": 0.0,
        "expansion_ratio": 4,
        "tie_word_embeddings": True,
    },
    only={"no_bias": True, "logit_scale": None},
    holds={
        "position_embedding_type": ("alibi",),
        "norm_type": ("biasless-layernorm",),
        "nonlinearity": ("gelu",),
        "filter_size": ("4 hidden_size",),
        "parallel_block": (False,),
        "use_bias_in_output": (False,),
        **dict.fromkeys(_ALL_BIASES, (False,)),
    },
)
