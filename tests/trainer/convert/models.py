"""Tiny random models of every family, and how a test compares logits."""

from typing import Any

import torch

from trainer.config import ModelConfig
from trainer.convert import State, wrap_tensors
from trainer.model import GPT

BASE: dict[str, Any] = {
    "vocab_size": 61, "max_position_embeddings": 16, "hidden_size": 48, "num_hidden_layers": 2,
    "num_heads": 4, "filter_size": 64,
}  # fmt: skip
MUP: dict[str, Any] = {
    "mup_base_hidden_size": 16, "embeddings_scale": 10.0, "scale_qk_dot_by_d": True,
}  # fmt: skip
NO_BIASES: dict[str, Any] = {
    "use_projection_bias_in_attention": False, "use_ffn_bias_in_attention": False,
    "use_ffn_bias": False,
}  # fmt: skip
GATED: dict[str, Any] = {
    "position_embedding_type": "rotary", "norm_type": "rmsnorm", "nonlinearity": "swiglu",
    "share_embedding_weights": False, **NO_BIASES,
    "attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 2},
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gptj": {
        "position_embedding_type": "rotary", "rotary_dim": 8, "rotary_interleaved": True,
        "parallel_block": True, "use_untied_layer_norm": False, "nonlinearity": "gelu_new",
        "use_projection_bias_in_attention": False, "use_ffn_bias_in_attention": False,
        "share_embedding_weights": False, "use_bias_in_output": True,
    },
    "gpt_neox": {
        "position_embedding_type": "rotary", "rotary_dim": 4, "parallel_block": True,
        "share_embedding_weights": False,
    },
    "llama": GATED,
    "gpt_bigcode": {"attention_module": "multiquery_attention"},
    "falcon": {
        "position_embedding_type": "rotary", "parallel_block": True,
        "use_untied_layer_norm": False, "attention_module": "multiquery_attention", **NO_BIASES,
    },
    "bloom": {
        "position_embedding_type": "alibi", "embedding_layer_norm": True, "filter_size": 192,
        "nonlinearity": "gelu_new",
    },
    "mpt": {
        "position_embedding_type": "alibi", "norm_type": "biasless-layernorm", "filter_size": 192,
        "num_heads": 3, **NO_BIASES,
    },
    "mistral": {
        **GATED, "attention_sliding_window_length": 5, "attention_inner_dim": 32,
        "pos_scaling_factor": 8.0, "pos_scaling_type": "llama3",
        "pos_scaling_extra_args": {"original_max_position_embeddings": 8},
    },
    "mixtral": {
        **GATED, "moe": {"num_experts": 4, "top_k": 2, "load_balancing_loss_coef": 0.02},
    },
    "qwen2": {**GATED, "use_projection_bias_in_attention": True},
    "qwen3": {
        **GATED, "attention_qk_norm_layer": "rmsnorm", "attention_inner_dim": 96,
        "pos_scaling_factor": 4.0, "pos_scaling_type": "yarn",
        "pos_scaling_extra_args": {"original_max_position_embeddings": 16, "beta_fast": 2.0},
    },
    "gemma2": {
        **GATED, "nonlinearity": "geglu_new", "norm_first_sandwich": True,
        "embeddings_scale": 48**0.5, "attention_inner_dim": 64, "attention_logits_alpha": 0.5,
        "attention_logit_softcapping": 5.0, "final_logit_softcapping": 9.0,
        "attention_sliding_window_length": 6, "sliding_window_every_other_decoder_layer": True,
    },
    "btlm": {"position_embedding_type": "alibi", "nonlinearity": "swiglu", **MUP},
}  # fmt: skip

ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {
        "bidirectional": True, "norm_first": False, "embedding_layer_norm": True, "mlm_head": True,
        "use_bias_in_output": True,
    },
}  # fmt: skip
ENCODERS["roberta"] = ENCODERS["bert"]


def make(family: str = "gpt2", **changes: Any) -> tuple[GPT, ModelConfig]:
    """A model whose weights, biases and norms are all random."""
    torch.set_num_threads(1)
    config = ModelConfig.model_validate({**BASE, **(FAMILIES | ENCODERS)[family], **changes})
    model = GPT(config, seed=1).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model, config


def state_of(model: GPT) -> State:
    """Its weights, as the conversions take them."""
    return wrap_tensors(dict(model.named_parameters()))


def with_weights(config: ModelConfig, state: State) -> GPT:
    """A model that has these weights and no others."""
    model = GPT(config, seed=9).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name].read())
    assert {name for name, _ in model.named_parameters()} == set(state)
    return model


def ids(config: ModelConfig) -> torch.Tensor:
    """(2, S) token ids."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, config.max_position_embeddings)
    return torch.randint(0, config.vocab_size, shape, generator=generator)


def logits(model: GPT) -> torch.Tensor:
    """(2, S, V) for `ids`."""
    with torch.no_grad():
        return model.logits(ids(model.config))
