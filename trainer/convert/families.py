"""The model families of Hugging Face: names of tensors, and what models they can hold.

Sources: the modules of `transformers` (GPT2LMHeadModel, GPTJForCausalLM, GPTNeoXForCausalLM,
LlamaForCausalLM), the key names of Model Zoo's BTLM and Jais converters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.config.model_parameters import CheckpointLayout

_GELUS = ("gelu", "gelu_new", "relu")
_ALL_BIASES = ("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias")


_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "embedding_layer_norm": (False,),
    "norm_first_sandwich": (False,),
    "pos_scaling_factor": (1.0,),
    "attention_width": ("hidden_size",),
    "attention_qk_norm_layer": (None,),
    "attention_sliding_window_length": (None,),
    "attention_sink_tokens": (None,),
    "attention_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
}
"""Fields of `ModelConfig` that a family has these values of, unless it says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """One architecture. `holds`: fields of `ModelConfig` and the values it has for them.
    `biases`: biases that it always has, zeros where our model has none. `base`: prefix of all
    tensors but the read-out. `keeps_mup`: muP factors stay factors. `verified`: how well."""

    name: str
    architecture: str
    base: str
    layout: CheckpointLayout
    holds: Mapping[str, tuple[Any, ...]]
    biases: tuple[str, ...] = ()
    grouped: bool = False
    keeps_mup: bool = False
    verified: str = "logits, both ways"
    constants: tuple[str, ...] = field(default=())

    def refusal(self, config: ModelConfig) -> str | None:
        """Why it cannot hold a model of this config, if so."""
        for key, values in self.holds.items():
            value = getattr(config, key)
            if value not in values:
                expected = " or ".join(map(str, values))
                return f"model.{key} is {value}; {self.name} needs {expected}"
        if not self.grouped and config.num_kv_heads != config.num_heads:
            return (
                f"the model has fewer K and V heads ({config.num_kv_heads}) than Q heads; "
                f"{self.name} needs as many"
            )
        return None


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
    holds={
        "position_embedding_type": ("rotary",),
        "norm_type": ("layernorm",),
        "nonlinearity": _GELUS,
        "use_untied_layer_norm": (True,),
        "use_bias_in_output": (False,),
    },
    biases=_ALL_BIASES,
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
    holds={
        "position_embedding_type": ("rotary",),
        "norm_type": ("rmsnorm",),
        "nonlinearity": ("swiglu",),
        "parallel_block": (False,),
        "use_bias_in_output": (False,),
    },
    grouped=True,
)

FAMILIES = {family.name: family for family in (GPT2, GPTJ, NEOX, LLAMA, BTLM, JAIS)}

PLANNED = ("bloom", "falcon", "gemma2", "mistral", "mixtral", "mpt", "qwen2", "starcoder", "t5")
"""Families that Model Zoo converts and this does not yet."""


def family_of(config: ModelConfig, name: str | None = None) -> ModelFamily:
    """The family that a model of this config is exported as, or the wanted one. Raises
    ConfigError naming the field that does not fit."""
    if name is not None:
        refusal = FAMILIES[name].refusal(config)
        if refusal is not None:
            raise ConfigError(f"--model {name} cannot hold this model: {refusal}")
        return FAMILIES[name]
    refusals = []
    for family in FAMILIES.values():
        refusal = family.refusal(config)
        if refusal is None:
            return family
        refusals.append(refusal)
    raise ConfigError(
        f"no Hugging Face family can hold this model: {'; '.join(dict.fromkeys(refusals))}"
    )


def with_biases(config: ModelConfig, family: ModelFamily) -> ModelConfig:
    """The config with every bias that the family always has; those of ours are zeros there."""
    flags = set(family.biases)
    attention = ("use_projection_bias_in_attention", "use_ffn_bias_in_attention")
    if family is LLAMA and any(getattr(config, flag) for flag in attention):
        flags |= set(attention)
    return config.model_copy(update=dict.fromkeys(flags, True))
