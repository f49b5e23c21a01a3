"""The model families of Hugging Face, and which one can hold a model."""

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.convert.alibi_like import BLOOM, MPT
from trainer.convert.family import ModelFamily
from trainer.convert.gpt_like import BTLM, FALCON, GPT2, GPTJ, JAIS, NEOX, STARCODER
from trainer.convert.llama_like import GEMMA2, LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3

_ALL = (
    GPT2, GPTJ, NEOX, LLAMA, BTLM, JAIS, STARCODER, FALCON, BLOOM, MPT, MISTRAL, MIXTRAL, QWEN2,
    QWEN3, GEMMA2,
)  # fmt: skip
FAMILIES = {family.name: family for family in _ALL}

PLANNED = ("t5",)
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
    if family.attention_biases_together and any(getattr(config, flag) for flag in attention):
        flags |= set(attention)
    return config.model_copy(update=dict.fromkeys(flags, True))
