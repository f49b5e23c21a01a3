"""The model families of Hugging Face, and which one can hold a model.

config.json of Hugging Face is made from our `model` section, and read back into it.

A key that would make another model than we can hold is refused by name, never ignored; keys that
change no logits (cache, token ids, initializer) are read over.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.convert.alibi_like import BLOOM, MPT
from trainer.convert.bert_like import BERT, ROBERTA
from trainer.convert.family import HfKeys, Json, ModelFamily
from trainer.convert.gpt_like import BTLM, FALCON, GPT2, GPTJ, JAIS, NEOX, STARCODER
from trainer.convert.llama_like import GEMMA2, LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3
from trainer.convert.t5_like import T5

_ALL = (
    GPT2, GPTJ, NEOX, LLAMA, BTLM, JAIS, STARCODER, FALCON, BLOOM, MPT, MISTRAL, MIXTRAL, QWEN2,
    QWEN3, GEMMA2, BERT, ROBERTA, T5,
)  # fmt: skip
FAMILIES = {family.name: family for family in _ALL}


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


def to_hf_config(config: ModelConfig, family: ModelFamily) -> Json:
    """config.json of a folded config (btlm and jais: any), without token ids and dtype."""
    common = {"architectures": [family.architecture], "model_type": family.name}
    sigma = getattr(config.initializer, "std", 0.02)  # what Hugging Face draws new heads with
    return {**common, **family.write(config), "initializer_range": sigma, "use_cache": True}


def from_hf_config(hf: Mapping[str, Any], place: str) -> tuple[ModelConfig, ModelFamily]:
    """(config, family) of a config.json; `place` names it in errors. Raises ConfigError."""
    family = FAMILIES.get(str(hf.get("model_type")))
    if family is None:
        raise ConfigError(
            f"{place}: model_type is {hf.get('model_type')!r}, expected {', '.join(FAMILIES)}"
        )
    for key, value in family.only.items():
        if hf.get(key, value) != value:
            raise ConfigError(
                f"{place}: {key} is {hf[key]!r}; only {value!r} of {family.name} is supported"
            )
    given = HfKeys({**family.defaults, **hf}, place)
    section = family.read(given)
    rates = {key: section[key] for key in section if key.endswith("_dropout_rate")}
    if len(set(rates.values())) == 1:
        section = {key: value for key, value in section.items() if key not in rates}
        section["dropout_rate"] = next(iter(rates.values()))
    try:
        return ModelConfig.model_validate(section), family
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = "".join(f"{part}: " for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{place}: {key}{message}") from error
