"""config.json of Hugging Face from our `model` section, and back.

A key that would make another model than we can hold is refused by name, never ignored; keys that
change no logits (cache, token ids, initializer) are read over.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.convert.families import FAMILIES
from trainer.convert.family import HfKeys, Json, ModelFamily


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
