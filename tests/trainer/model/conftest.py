"""A tiny decoder config, and packed rows."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.config import ModelConfig

VOCABULARY, LENGTH = 61, 16

OPTIONS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "fixed": {"position_embedding_type": "fixed", "nonlinearity": "relu"},
    "gptj": {
        "position_embedding_type": "rotary",
        "rotary_dim": 2,
        "rotary_interleaved": True,
        "parallel_block": True,
        "use_untied_layer_norm": False,
        "nonlinearity": "gelu_new",
        "share_embedding_weights": False,
        "use_bias_in_output": True,
        "use_projection_bias_in_attention": False,
        "use_ffn_bias_in_attention": False,
    },
    "neox": {
        "position_embedding_type": "rotary",
        "rotary_dim": 2,
        "parallel_block": True,
        "share_embedding_weights": False,
    },
    "llama": {
        "position_embedding_type": "rotary",
        "norm_type": "rmsnorm",
        "nonlinearity": "swiglu",
        "attention_module": "multiquery_attention",
        "extra_attention_params": {"num_kv_groups": 2},
        "share_embedding_weights": False,
        "use_projection_bias_in_attention": False,
        "use_ffn_bias_in_attention": False,
        "use_ffn_bias": False,
    },
    "btlm": {
        "position_embedding_type": "alibi",
        "nonlinearity": "swiglu",
        "mup_base_hidden_size": 8,
        "scale_qk_dot_by_d": True,
        "embeddings_scale": 14.6,
        "output_logits_alpha": 2.2,
    },
    "mistral": {
        "position_embedding_type": "rotary",
        "norm_type": "rmsnorm",
        "nonlinearity": "swiglu",
        "attention_inner_dim": 24,
        "attention_module": "multiquery_attention",
        "extra_attention_params": {"num_kv_groups": 2},
        "attention_sliding_window_length": 4,
        "pos_scaling_factor": 8.0,
        "pos_scaling_type": "llama3",
        "pos_scaling_extra_args": {"original_max_position_embeddings": 64},
        "share_embedding_weights": False,
        "use_ffn_bias": False,
    },
    "gemma2": {
        "position_embedding_type": "rotary",
        "norm_type": "rmsnorm",
        "norm_first_sandwich": True,
        "nonlinearity": "geglu_new",
        "embeddings_scale": 4.0,
        "attention_logit_softcapping": 5.0,
        "attention_logits_alpha": 0.7,
        "attention_module": "multiquery_attention",
        "extra_attention_params": {"num_kv_groups": 2},
        "attention_sliding_window_length": 5,
        "attention_sink_tokens": 2,
        "sliding_window_every_other_decoder_layer": True,
        "final_logit_softcapping": 3.0,
        "use_ffn_bias": False,
    },
    "qwen3": {
        "position_embedding_type": "rotary",
        "norm_type": "rmsnorm",
        "nonlinearity": "geglu",
        "attention_qk_norm_layer": "rmsnorm",
        "attention_qk_norm_eps": 1e-3,
        "pos_scaling_factor": 4.0,
        "pos_scaling_type": "yarn",
        "pos_scaling_extra_args": {"original_max_position_embeddings": 16, "beta_fast": 2.0},
    },
    "bloom": {
        "position_embedding_type": "alibi",
        "embedding_layer_norm": True,
        "embeddings_scale": 2.0,
        "nonlinearity": "gelu_new",
    },
    "mpt": {
        "position_embedding_type": "alibi",
        "norm_type": "biasless-layernorm",
        "attention_qk_norm_layer": "layernorm",
        "attention_sliding_window_length": 6,
    },
    "mixtral": {
        "position_embedding_type": "rotary",
        "norm_type": "rmsnorm",
        "nonlinearity": "swiglu",
        "moe": {"num_experts": 4, "top_k": 2, "load_balancing_loss_coef": 0.1},
        "use_ffn_bias": False,
    },
    "shared expert": {
        "position_embedding_type": "alibi",
        "moe": {
            "num_experts": 3,
            "num_shared_experts": 1,
            "null_expert_bias": 1.1,
            "load_balancing_loss_coef": 0.01,
        },
    },
    "mqa": {
        "attention_module": "multiquery_attention",
        "attention_type": "dot_product",
        "position_embedding_type": "alibi",
    },
}
"""Between them every option of the decoder family, by the model that has them."""

ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {
        "bidirectional": True,
        "norm_first": False,
        "embedding_layer_norm": True,
        "mlm_head": True,
        "use_bias_in_output": True,
    },
}


def tiny_config(name: str = "gpt2", **changes: Any) -> ModelConfig:
    base = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "hidden_size": 16,
            "num_hidden_layers": 2, "num_heads": 4, "filter_size": 24}  # fmt: skip
    return ModelConfig(**{**base, **(OPTIONS | ENCODERS)[name], **changes})


def packed_rows(segments_of_rows: Sequence[Sequence[int]], seed: int = 0) -> dict[str, Tensor]:
    """A batch of packed rows: for every row the lengths of its segments; what is left is padded."""
    shape = (len(segments_of_rows), LENGTH)
    names = ("attention_mask", "attention_span", "position_ids")
    batch = {name: torch.zeros(shape, dtype=torch.long) for name in names}
    for row, segments in enumerate(segments_of_rows):
        start = 0
        for n in segments:
            inside = slice(start, start + n)
            batch["attention_mask"][row, inside] = 1
            batch["attention_span"][row, inside] = torch.arange(n - 1, -1, -1)
            batch["position_ids"][row, inside] = torch.arange(n)
            start += n
    generator = torch.Generator().manual_seed(seed)
    for name in ("input_ids", "labels"):
        tokens = torch.randint(1, VOCABULARY, shape, generator=generator)
        batch[name] = tokens * batch["attention_mask"]
    return batch


@pytest.fixture
def make_config() -> Callable[..., ModelConfig]:
    return tiny_config


@pytest.fixture
def make_packed() -> Callable[..., dict[str, Tensor]]:
    return packed_rows


@pytest.fixture(params=OPTIONS | ENCODERS)
def family(request: pytest.FixtureRequest) -> str:
    """The name of every kind of decoder and encoder, one after the other."""
    return request.param


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
