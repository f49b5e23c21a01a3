"""Rotary positions in a config.json, in the spelling of transformers 4 or 5."""

from typing import Any

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.convert.family import HfKeys, Json

_ARGUMENTS = {
    "linear": (),
    "llama3": ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow"),
}
"""Kinds of scaling that both have, and their arguments, which have the same names in both."""

_ONLY: Json = {"attention_factor": None, "mscale": None, "mscale_all_dim": None, "truncate": True}
"""Keys whose other values make another YaRN."""


def write_rope(config: ModelConfig) -> Json:
    """rope_theta, rope_parameters and, where positions are scaled, rope_scaling."""
    theta: Json = {"rope_theta": config.rope_theta}
    if config.pos_scaling_factor == 1.0:
        return {**theta, "rope_parameters": {**theta, "rope_type": "default"}}
    kind, args = config.pos_scaling_type, config.pos_scaling_extra_args
    scaling: Json = {"rope_type": kind, "factor": config.pos_scaling_factor}
    scaling |= {key: getattr(args, key) for key in _ARGUMENTS[kind]}
    return {**theta, "rope_parameters": {**theta, **scaling}, "rope_scaling": {**theta, **scaling}}


def read_rope(given: HfKeys, theta_key: str, share: float) -> tuple[float, float]:
    """(theta, rotated share of a head) where nothing is scaled. Raises ConfigError."""
    parameters = _parameters(given)
    if (kind := _kind(parameters)) != "default":
        raise ConfigError(
            f"{given.place}: rotary embeddings of type {kind!r} are not supported, only the default"
        )
    theta = parameters.get("rope_theta", given[theta_key])
    return float(theta), float(parameters.get("partial_rotary_factor", share))


def read_scaled_rope(given: HfKeys) -> Json:
    """Our keys of theta and of scaled positions. Raises ConfigError for another kind, and for
    heads that are rotated in part."""
    parameters = _parameters(given)
    if (share := parameters.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ConfigError(
            f"{given.place}: partial_rotary_factor is {share}; only 1.0 (whole heads) is supported"
        )
    section: Json = {"rope_theta": float(parameters.get("rope_theta", given["rope_theta"]))}
    if (kind := _kind(parameters)) == "default":
        return section
    if kind not in _ARGUMENTS:
        expected = ", ".join(("default", *_ARGUMENTS))
        raise ConfigError(
            f"{given.place}: rotary embeddings of type {kind!r} are not supported; expected one of "
            f"{expected}"
        )
    if parameters.get("factor") is None:
        raise ConfigError(f"{given.place}: factor of rotary embeddings of type {kind} is missing")
    for key, value in _ONLY.items():
        if parameters.get(key, value) != value:
            raise ConfigError(
                f"{given.place}: {key} of rotary embeddings is {parameters[key]!r}; only {value!r} "
                "is supported"
            )
    args = {key: parameters[key] for key in _ARGUMENTS[kind] if parameters.get(key) is not None}
    if kind != "linear":
        args.setdefault("original_max_position_embeddings", given["max_position_embeddings"])
    return section | {
        "pos_scaling_type": kind,
        "pos_scaling_factor": float(parameters["factor"]),
        "pos_scaling_extra_args": {
            key: value if key.startswith("original") else float(value)
            for key, value in args.items()
        },
    }


def _parameters(given: HfKeys) -> dict[str, Any]:
    return given.get("rope_parameters") or given.get("rope_scaling") or {}


def _kind(parameters: dict[str, Any]) -> str:
    return str(parameters.get("rope_type", parameters.get("type", "default")))
