"""muP is Table 14; conversion of configs there and back."""

import math

import pytest
import torch

from pipeline.core.errors import ConfigError
from trainer.config import AdamWConfig
from trainer.config.model_parameters import to_mup, to_sp
from trainer.model import GPT, optimizer
from trainer.model.initial_weights import find_initializer

PAPER_111M = {"vocab_size": 50257, "max_position_embeddings": 2048, "hidden_size": 768,
              "num_hidden_layers": 10, "num_heads": 12, "filter_size": 3072}  # fmt: skip


def test_the_papers_111m_in_mup(make_config):
    config = to_mup(make_config(**PAPER_111M))
    assert config.m_width == 3
    assert config.output_logits_scale == pytest.approx(1 / 3)
    assert (config.embeddings_scale, config.scale_qk_dot_by_d) == (10.0, True)
    assert find_initializer("token_embedding.weight", config).std == 0.08
    for layer in ("attention.qkv", "feed_forward.input"):
        std = find_initializer(f"blocks.0.{layer}.weight", config).std
        assert std == pytest.approx(0.08 / math.sqrt(3))
    for layer in ("attention.output", "feed_forward.output"):
        std = find_initializer(f"blocks.0.{layer}.weight", config).std
        assert std == pytest.approx(0.08 / math.sqrt(2 * 3 * 10))


def test_a_config_comes_back_from_mup(family, make_config):
    config = make_config(family)
    plain = to_sp(config).model_copy(update={"attention_type": "scaled_dot_product"})
    if config.bidirectional:
        with pytest.raises(ConfigError, match="bidirectional is true: muP"):
            to_mup(plain)
        return
    assert to_sp(to_mup(plain, base_width=8)) == plain
    assert plain.m_width == plain.embeddings_scale == plain.output_logits_scale == 1
    kept = ("position_embedding_type", "nonlinearity", "num_kv_heads", "parallel_block")
    assert all(getattr(plain, name) == getattr(config, name) for name in kept)


def test_a_model_in_mup_is_not_converted_again(make_config):
    with pytest.raises(ConfigError, match=r"mup_base_hidden_size is 8: .* has muP already"):
        to_mup(make_config("btlm"))
    with pytest.raises(ConfigError, match="attention_type is dot_product"):
        to_mup(make_config("mqa"))


def test_mup_is_sp_with_factors_on_embeddings_queries_and_the_last_norm(make_config):
    """The folding by which muP weights become those of a plain GPT-2."""
    config = make_config(mup_base_hidden_size=4, scale_qk_dot_by_d=True, embeddings_scale=10.0)
    mup, plain = GPT(config, 1), GPT(to_sp(config), 2)
    state = {name: tensor.clone() for name, tensor in mup.state_dict().items()}
    for name in ("token_embedding", "position_embedding"):
        state[f"{name}.weight"] *= 10
    state["read_out.weight"] = state["token_embedding.weight"]
    for part in ("weight", "bias"):
        state[f"final_norm.{part}"] /= 4 * 10
        for layer in range(2):
            state[f"blocks.{layer}.attention.qkv.{part}"][:16] *= 4**-0.5
    plain.load_state_dict(state)
    ids_BS = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(mup.logits(ids_BS), plain.logits(ids_BS), rtol=1e-5, atol=1e-5)


def test_kernels_of_blocks_learn_at_a_width_th(make_config):
    config = make_config("llama", hidden_size=64, mup_base_hidden_size=16)
    parameters = dict(GPT(config, 1).named_parameters())
    adam = optimizer.build_optimizer(parameters, AdamWConfig(learning_rate=0.1), config)
    factors = {
        id(p): group["adjust_learning_rate"] for group in adam.param_groups for p in group["params"]
    }
    for name, parameter in parameters.items():
        kernel = name.startswith("blocks.") and parameter.ndim == 2
        assert factors[id(parameter)] == (0.25 if kernel else 1.0), name
