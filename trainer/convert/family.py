"""What a model family of Hugging Face is: names of tensors, which models it can hold, and its
config.json from our `model` section and back.

Rotary positions are read in the spelling of transformers 4 or 5.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.config.model_parameters import CheckpointLayout

Json = dict[str, Any]

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
"""Activations of Hugging Face, and ours."""

_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "bidirectional": (False,),
    "decoder_num_hidden_layers": (None,),
    "norm_first": (True,),
    "mlm_head": (False,),
    "embedding_layer_norm": (False,),
    "norm_first_sandwich": (False,),
    "pos_scaling_factor": (1.0,),
    "attention_inner_dim": (None,),
    "attention_qk_norm_layer": (None,),
    "attention_sliding_window_length": (None,),
    "attention_sink_tokens": (None,),
    "attention_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "moe": (None,),
}
"""Fields of `ModelConfig` that a family has these values of, unless it says otherwise."""


READ_OUT_OF_T5 = "1 / sqrt(hidden_size) of a tied read-out, else 1"


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """One architecture.

    `write`: keys of its config.json from a config that it can hold; `read`: our `model` section
    from its keys. `defaults`: keys that a config.json may lack. `only`: keys whose other values
    make a model that we do not have. `holds`: fields of `ModelConfig` and the values it has for
    them. `takes`: fields of which it has every value. `biases`: biases that it always has, zeros
    where our model has none; `attention_biases_together`: those of attention are all there or none.
    `base`: prefix of all tensors but the read-out. `keeps_mup`: muP factors stay factors.
    `scales_embeddings`: embeddings are multiplied by sqrt(hidden_size). `scales_attention`: it has
    a factor for attention logits. `offset_norms`: gains of norms are stored less 1. `verified`: how
    well. `gated_layout`: of models whose feed-forward layers are gated, None for `layout`.
    `constants`: tensors of it that no parameter is. `copies`: tensors that are written
    under a second name too. `segments`: the matrix of the embeddings of segments and its rows, of
    which we have the first alone, in the positions. `positions_before`: rows of the matrix of
    positions that no token of a row has, before the others.
    """

    name: str
    architecture: str
    base: str
    layout: CheckpointLayout
    write: Callable[[ModelConfig], Json]
    read: Callable[["HfKeys"], Json]
    defaults: Mapping[str, Any]
    only: Mapping[str, Any] = field(default_factory=dict)
    holds: Mapping[str, tuple[Any, ...]]
    takes: tuple[str, ...] = ()
    biases: tuple[str, ...] = ()
    attention_biases_together: bool = False
    grouped: bool = False
    keeps_mup: bool = False
    scales_embeddings: bool = False
    scales_attention: bool = False
    offset_norms: bool = False
    verified: str = "logits, both ways"
    gated_layout: CheckpointLayout | None = None
    constants: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    segments: tuple[str, int] | None = None
    positions_before: int = 0

    def layout_of(self, config: ModelConfig) -> CheckpointLayout:
        """How it stores a model of this config."""
        return self.gated_layout if self.gated_layout and config.is_gated else self.layout

    def refusal(self, config: ModelConfig) -> str | None:
        """Why it cannot hold a model of this config, if so."""
        for key, values in {**_PLAIN, **self.holds}.items():
            value = _value(config, key)
            if key not in self.takes and value not in values:
                expected = " or ".join(map(str, values))
                return f"model.{key} is {value}; {self.name} needs {expected}"
        if not self.grouped and config.num_kv_heads != config.num_heads:
            return (
                f"the model has fewer K and V heads ({config.num_kv_heads}) than Q heads; "
                f"{self.name} needs as many"
            )
        return None


def _value(config: ModelConfig, key: str) -> Any:
    """The value of a field, or what it equals."""
    value = getattr(config, key)
    if key == "attention_qk_norm_eps" and value == config.layer_norm_epsilon:
        return "layer_norm_epsilon"
    if key == "moe" and value is not None:
        plain = value.expert_weighting_normalization and not value.null_expert_bias
        if plain and not value.num_shared_experts:
            return "a mixture that weights chosen experts alone"
        return "another mixture of experts"
    if key == "output_logits_scale" and config.decoder_num_hidden_layers is not None:
        expected = config.hidden_size**-0.5 if config.share_embedding_weights else 1.0
        return READ_OUT_OF_T5 if math.isclose(value, expected) else value
    if key == "rotary_dim" and value == config.head_size:
        return None
    if key == "attention_inner_dim" and value == config.hidden_size:
        return None
    if key == "filter_size" and value == 4 * config.hidden_size:
        return "4 hidden_size"
    return value


class HfKeys:
    """Keys of a config.json; a missing one is an error that names it."""

    def __init__(self, values: Json, place: str) -> None:
        self._values, self.place = values, place

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise ConfigError(f"{self.place}: {key} is missing")
        return self._values[key]

    def get(self, key: str) -> Any:
        """None for a missing key."""
        return self._values.get(key)

    def aliased(self, aliases: Mapping[str, str]) -> "HfKeys":
        """With keys that some files spell otherwise: key -> the other spelling."""
        found = {
            key: self._values[other] for key, other in aliases.items() if other in self._values
        }
        return HfKeys({**found, **self._values}, self.place)

    def renamed(self, keys: Mapping[str, str]) -> Json:
        """Our names and their values; epsilons and rates as floats."""
        values = {ours: self[theirs] for ours, theirs in keys.items()}
        floats = [key for key in values if key.endswith(("_rate", "epsilon"))]
        return values | {key: float(values[key]) for key in floats}

    def activation(self, key: str) -> str:
        """Our name of an activation."""
        if self[key] not in ACTIVATIONS:
            raise ConfigError(
                f"{self.place}: {key} is {self[key]!r}, expected {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[self[key]]


def renamed(config: ModelConfig, keys: Mapping[str, str]) -> Json:
    """Their names, and our values."""
    values: Json = {}
    for ours, theirs in keys.items():
        value = getattr(config, ours)
        if value is None and ours.endswith("dropout_rate"):
            value = config.dropout_rate
        values[theirs] = value
    return values


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
