"""The decoder against formulas written out in float64, with an explicit softmax, per head."""

import math

import pytest
import torch
from torch import Tensor

from trainer.config import ModelConfig
from trainer.model import GPT


def norm(x: Tensor, weights: dict, name: str, config: ModelConfig) -> Tensor:
    if config.norm_type == "rmsnorm":
        scale = (x**2).mean(-1, keepdim=True) + config.layer_norm_epsilon
        return x / scale.sqrt() * weights[f"{name}.weight"]
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred**2).mean(-1, keepdim=True) + config.layer_norm_epsilon
    return centred / scale.sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Tensor, weights: dict, name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def activation(x: Tensor, kind: str) -> Tensor:
    if kind == "relu":
        return x.clamp(min=0)
    if kind == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    if kind == "gelu_new":
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + torch.exp(-x))


def turned(x_E: Tensor, position: int, config: ModelConfig) -> Tensor:
    """One head of one token, its pairs multiplied by exp(i angle)."""
    dims, out = config.rotary_dim or len(x_E), x_E.clone()
    for i in range(dims // 2):
        a, b = (2 * i, 2 * i + 1) if config.rotary_interleaved else (i, i + dims // 2)
        angle = position * config.rope_theta ** (-2 * i / dims)
        pair = complex(x_E[a], x_E[b]) * complex(math.cos(angle), math.sin(angle))
        out[a], out[b] = pair.real, pair.imag
    return out


SLOPES = [1 / 4, 1 / 16, 1 / 64, 1 / 256]
"""ALiBi's, of four heads."""


def attention(x_SD: Tensor, weights: dict, name: str, config: ModelConfig) -> Tensor:
    heads, groups = config.num_heads, config.num_kv_heads
    width = config.hidden_size // heads
    rows = linear(x_SD, weights, f"{name}.qkv")
    q, k, v = rows.split([heads * width, groups * width, groups * width], dim=-1)
    scale = {"dot_product": 1.0}.get(config.attention_type, 1 / math.sqrt(width))
    scale = 1 / width if config.scale_qk_dot_by_d else scale
    out = torch.zeros(len(x_SD), heads * width, dtype=x_SD.dtype)
    for head in range(heads):
        group = head // (heads // groups)
        part = slice(head * width, (head + 1) * width)
        shared = slice(group * width, (group + 1) * width)
        queries, keys = q[:, part], k[:, shared]
        if config.position_embedding_type == "rotary":
            queries = torch.stack([turned(row, i, config) for i, row in enumerate(queries)])
            keys = torch.stack([turned(row, i, config) for i, row in enumerate(keys)])
        for i in range(len(x_SD)):
            logits = keys[: i + 1] @ queries[i] * scale
            if config.position_embedding_type == "alibi":
                logits = logits - SLOPES[head] * torch.arange(i, -1, -1)
            weight = torch.exp(logits - logits.max())
            out[i, part] = weight / weight.sum() @ v[: i + 1, shared]
    return linear(out, weights, f"{name}.output")


def feed_forward(x: Tensor, weights: dict, name: str, config: ModelConfig) -> Tensor:
    inner = linear(x, weights, f"{name}.input")
    if config.nonlinearity == "swiglu":
        inner = activation(linear(x, weights, f"{name}.gate"), "silu") * inner
    else:
        inner = activation(inner, config.nonlinearity)
    return linear(inner, weights, f"{name}.output")


def embedded(ids_S: Tensor, weights: dict, config: ModelConfig) -> Tensor:
    x = weights["token_embedding.weight"][ids_S]
    if config.position_embedding_type == "learned":
        x = x + weights["position_embedding.weight"][: len(ids_S)]
    if config.position_embedding_type == "fixed":
        for p, i in torch.cartesian_prod(torch.arange(len(ids_S)), torch.arange(8)).tolist():
            angle = p / 10000 ** (i / 7)
            x[p, 2 * i] += math.sin(angle)
            x[p, 2 * i + 1] += math.cos(angle)
    return x * config.embeddings_scale


def reference_logits(ids_S: Tensor, weights: dict, config: ModelConfig) -> Tensor:
    x = embedded(ids_S, weights, config)
    for layer in range(config.num_hidden_layers):
        name = f"blocks.{layer}"
        first = norm(x, weights, f"{name}.attention_norm", config)
        mixed = attention(first, weights, f"{name}.attention", config)
        if config.parallel_block and config.use_untied_layer_norm:
            second = norm(x, weights, f"{name}.feed_forward_norm", config)
        elif config.parallel_block:
            second = first
        else:
            second = norm(x + mixed, weights, f"{name}.feed_forward_norm", config)
        x = x + mixed + feed_forward(second, weights, f"{name}.feed_forward", config)
    logits = linear(norm(x, weights, "final_norm", config), weights, "read_out")
    alpha = config.output_logits_alpha or 1.0
    return logits * alpha / (config.hidden_size / (config.mup_base_hidden_size or 16))


@pytest.fixture
def model(family, make_config):
    """A model whose weights are all random, biases and norms too, and larger than usual."""
    made = GPT(make_config(family), 1)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.3 + (1.0 if "norm.weight" in name else 0.0))
    return made


def test_logits_are_those_of_the_formulas(model):
    config = model.config
    ids_BS = torch.randint(0, 61, (2, 11), generator=torch.Generator().manual_seed(0))
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    expected = torch.stack([reference_logits(ids_S, weights, config) for ids_S in ids_BS])
    with torch.no_grad():
        found = model.logits(ids_BS)
    assert float(expected.abs().max()) > 1
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


def test_parameters_are_named_as_checkpoints_name_them(model, family):
    names = {name.removeprefix("blocks.1.") for name, _ in model.named_parameters()}
    assert ("position_embedding.weight" in names) == (family == "gpt2")
    assert ("feed_forward_norm.weight" in names) == (family != "gptj")
    assert ("feed_forward_norm.bias" in names) == (family not in ("gptj", "llama"))
    assert ("feed_forward.gate.weight" in names) == (family in ("llama", "btlm"))
    assert ("read_out.weight" in names) == (family in ("gptj", "neox", "llama"))
    rows = model.blocks[0].attention.qkv.weight.shape[0]
    assert rows == {"llama": 16 + 2 * 8, "mqa": 16 + 2 * 4}.get(family, 48)


def test_a_token_sees_no_later_one(model):
    ids_BS = torch.randint(0, 61, (1, 16), generator=torch.Generator().manual_seed(0))
    changed_BS = ids_BS.clone()
    changed_BS[0, 9] = (changed_BS[0, 9] + 1) % 61
    with torch.no_grad():
        before, after = model.logits(ids_BS), model.logits(changed_BS)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(-1).all()


def test_the_performance_model_counts_its_parameters(model):
    assert model.gpt_shape.parameters == sum(p.numel() for p in model.parameters())
