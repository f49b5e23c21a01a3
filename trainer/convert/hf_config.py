"""config.json of Hugging Face from our `model` section, and back.

A key that would make another model than we can hold is refused by name, never ignored; keys that
change no logits (cache, token ids, initializer) are read over.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.convert.families import FAMILIES, ModelFamily

Json = dict[str, Any]

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
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
_LLAMA_KEYS = {
    **{key: _NEOX_KEYS[key] for key in list(_NEOX_KEYS)[:6]},
    "layer_norm_epsilon": "rms_norm_eps",
    "attention_dropout_rate": "attention_dropout",
    "share_embedding_weights": "tie_word_embeddings",
}
_DEFAULTS: dict[str, Json] = {
    "gpt2": {
        "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "tie_word_embeddings": True, "activation_function": "gelu_new", "n_inner": None,
    },
    "gptj": {
        "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "tie_word_embeddings": False, "activation_function": "gelu_new", "n_inner": None,
        "rotary_dim": 64,
    },
    "gpt_neox": {
        "layer_norm_eps": 1e-5, "hidden_dropout": 0.0, "attention_dropout": 0.0,
        "tie_word_embeddings": False, "hidden_act": "gelu", "use_parallel_residual": True,
        "attention_bias": True, "rotary_pct": 0.25, "rotary_emb_base": 10000.0,
    },
    "llama": {
        "rms_norm_eps": 1e-6, "attention_dropout": 0.0, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False, "rope_theta": 10000.0,
    },
}  # fmt: skip
_SWIGLU_DEFAULTS = {
    **_DEFAULTS["gpt2"],
    "mup_width_scale": 1.0,
    "mup_output_alpha": 1.0,
    "mup_embeddings_scale": 1.0,
    "mup_scale_qk_dot_by_d": False,
}
_DEFAULTS |= {"btlm": _SWIGLU_DEFAULTS, "jais": _SWIGLU_DEFAULTS}
_ONLY: dict[str, Json] = {
    "gpt2": {
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    "gptj": {"rotary": True},
    "llama": {"hidden_act": "silu", "sliding_window": None},
    "btlm": {
        "activation_function": "swiglu", "position_embedding_type": "alibi",
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "alibi_scaling": None,
    },
}  # fmt: skip
_ONLY["jais"] = _ONLY["btlm"]
"""Keys whose other values make a model that we do not have."""


def to_hf_config(config: ModelConfig, family: ModelFamily) -> Json:
    """config.json of a folded config (btlm and jais: any), without token ids and dtype."""
    head = config.hidden_size // config.num_heads
    common = {"architectures": [family.architecture], "model_type": family.name}
    rotary: Json = {"rope_theta": config.rope_theta}
    if family.name in ("gpt2", "gptj", "btlm", "jais"):
        specific = _renamed(config, _GPT2_KEYS) | {"n_inner": config.filter_size}
        activation = "swiglu" if family.keeps_mup else config.nonlinearity
        specific["activation_function"] = activation
        if family.name == "gptj":
            specific |= {"rotary": True, "rotary_dim": config.rotary_dim or head}
        elif family.keeps_mup:
            specific |= {
                "position_embedding_type": "alibi",
                "mup_width_scale": 1 / config.m_width,
                "mup_output_alpha": config.output_logits_scale / (1 / config.m_width),
                "mup_embeddings_scale": config.embeddings_scale,
                "mup_scale_qk_dot_by_d": config.scale_qk_dot_by_d,
                "scale_attn_weights": True,
                "scale_attn_by_inverse_layer_idx": False,
            }
    elif family.name == "gpt_neox":
        share = (config.rotary_dim or head) / head
        specific = _renamed(config, _NEOX_KEYS) | {
            "hidden_act": config.nonlinearity,
            "use_parallel_residual": config.parallel_block,
            "attention_bias": True,
            "rotary_pct": share,
            "rotary_emb_base": config.rope_theta,
            "rope_parameters": {**rotary, "rope_type": "default", "partial_rotary_factor": share},
        }
    else:
        specific = _renamed(config, _LLAMA_KEYS) | {
            "hidden_act": "silu",
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": head,
            "attention_bias": config.use_projection_bias_in_attention,
            "mlp_bias": config.use_ffn_bias,
            **rotary,
            "rope_parameters": {**rotary, "rope_type": "default"},
        }
    sigma = getattr(config.initializer, "std", 0.02)  # what Hugging Face draws new heads with
    return {**common, **specific, "initializer_range": sigma, "use_cache": True}


def from_hf_config(hf: Mapping[str, Any], place: str) -> tuple[ModelConfig, ModelFamily]:
    """(config, family) of a config.json; `place` names it in errors. Raises ConfigError."""
    family = FAMILIES.get(str(hf.get("model_type")))
    if family is None:
        raise ConfigError(
            f"{place}: model_type is {hf.get('model_type')!r}, expected {', '.join(FAMILIES)}"
        )
    for key, value in _ONLY.get(family.name, {}).items():
        if hf.get(key, value) != value:
            raise ConfigError(
                f"{place}: {key} is {hf[key]!r}; only {value!r} of {family.name} is supported"
            )
    given = _ConfigKeys({**_DEFAULTS[family.name], **hf}, place)
    section = _READERS[family.name](given)
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


class _ConfigKeys:
    """Keys of a config.json; a missing one is an error that names it."""

    def __init__(self, values: Json, place: str) -> None:
        self._values, self.place = values, place

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise ConfigError(f"{self.place}: {key} is missing")
        return self._values[key]

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def renamed(self, keys: Mapping[str, str]) -> Json:
        """Our names and their values; epsilons and rates as floats."""
        values = {ours: self[theirs] for ours, theirs in keys.items()}
        floats = [key for key in values if key.endswith(("_rate", "epsilon"))]
        return values | {key: float(values[key]) for key in floats}

    def activation(self, key: str) -> str:
        if self[key] not in _ACTIVATIONS:
            raise ConfigError(
                f"{self.place}: {key} is {self[key]!r}, expected {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[self[key]]


def _from_gpt2(given: _ConfigKeys) -> Json:
    return given.renamed(_GPT2_KEYS) | {
        "filter_size": given.get("n_inner") or 4 * given["n_embd"],
        "nonlinearity": given.activation("activation_function"),
    }


def _from_gptj(given: _ConfigKeys) -> Json:
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


def _from_gpt_neox(given: _ConfigKeys) -> Json:
    head = given["hidden_size"] // given["num_attention_heads"]
    theta, share = _rope(given, "rotary_emb_base", given["rotary_pct"])
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


def _from_llama(given: _ConfigKeys) -> Json:
    heads, width = given["num_attention_heads"], given["hidden_size"]
    kv_heads = given.get("num_key_value_heads") or heads
    if (given.get("head_dim") or width // heads) != width // heads:
        raise ConfigError(
            f"{given.place}: head_dim is {given['head_dim']}, expected hidden_size / "
            f"num_attention_heads = {width // heads}"
        )
    theta, share = _rope(given, "rope_theta", 1.0)
    section = given.renamed(_LLAMA_KEYS) | {
        "nonlinearity": "swiglu",
        "norm_type": "rmsnorm",
        "position_embedding_type": "rotary",
        "rotary_dim": int(width // heads * share),
        "rope_theta": theta,
        "use_projection_bias_in_attention": given["attention_bias"],
        "use_ffn_bias_in_attention": given["attention_bias"],
        "use_ffn_bias": given["mlp_bias"],
    }
    if kv_heads != heads:
        section["attention_module"] = "multiquery_attention"
        section["extra_attention_params"] = {"num_kv_groups": kv_heads}
    return section


def _from_swiglu_gpt2(given: _ConfigKeys) -> Json:
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


_READERS: dict[str, Callable[[_ConfigKeys], Json]] = {
    "gpt2": _from_gpt2,
    "gptj": _from_gptj,
    "gpt_neox": _from_gpt_neox,
    "llama": _from_llama,
    "btlm": _from_swiglu_gpt2,
    "jais": _from_swiglu_gpt2,
}


def _rope(given: _ConfigKeys, theta_key: str, share: float) -> tuple[float, float]:
    """(theta, rotated share of a head), in the spelling of transformers 4 or 5."""
    parameters = given.get("rope_parameters") or given.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise ConfigError(
            f"{given.place}: rotary embeddings of type {kind!r} are not supported, only the default"
        )
    theta = parameters.get("rope_theta", given[theta_key])
    return float(theta), float(parameters.get("partial_rotary_factor", share))


def _renamed(config: ModelConfig, keys: Mapping[str, str]) -> Json:
    values: Json = {}
    for ours, theirs in keys.items():
        value = getattr(config, ours)
        if value is None and ours.endswith("dropout_rate"):
            value = config.dropout_rate
        values[theirs] = value
    return values
