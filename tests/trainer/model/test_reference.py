"""The decoder against formulas written out in float64, with an explicit softmax, per head."""

import math

import pytest
import torch
from torch import Tensor

from tests.trainer.model.conftest import OPTIONS
from trainer.config import ModelConfig
from trainer.model import GPT


@pytest.fixture(params=OPTIONS)
def family(request: pytest.FixtureRequest) -> str:
    """Of decoders alone; transformers is the reference of encoders."""
    return request.param


def norm(x: Tensor, weights: dict, name: str, config: ModelConfig) -> Tensor:
    return normed(x, weights, name, config.norm_type, config.layer_norm_epsilon)


def normed(x: Tensor, weights: dict, name: str, kind: str, eps: float) -> Tensor:
    if kind == "rmsnorm":
        return x / ((x**2).mean(-1, keepdim=True) + eps).sqrt() * weights[f"{name}.weight"]
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / ((centred**2).mean(-1, keepdim=True) + eps).sqrt()
    bias = weights[f"{name}.bias"] if kind == "layernorm" else 0.0
    return scaled * weights[f"{name}.weight"] + bias


def linear(x: Tensor, weights: dict, name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def activation(x: Tensor, kind: str) -> Tensor:
    if kind == "relu":
        return x.clamp(min=0)
    if kind in ("gelu", "geglu"):
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    if kind in ("gelu_new", "geglu_new"):
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + torch.exp(-x))


def turned(x_E: Tensor, position: int, config: ModelConfig) -> Tensor:
    """One head of one token, its pairs multiplied by exp(i angle)."""
    dims, out = config.rotary_dim or len(x_E), x_E.clone()
    for i in range(dims // 2):
        a, b = (2 * i, 2 * i + 1) if config.rotary_interleaved else (i, i + dims // 2)
        frequency = config.rope_theta ** (-2 * i / dims)
        frequency *= speed(frequency, i, dims, config)
        angle, gain = position * frequency, 1.0
        if config.pos_scaling_type == "yarn":
            gain = 0.1 * math.log(config.pos_scaling_factor) + 1
        pair = complex(x_E[a], x_E[b]) * complex(math.cos(angle), math.sin(angle)) * gain
        out[a], out[b] = pair.real, pair.imag
    return out


def speed(frequency: float, i: int, dims: int, config: ModelConfig) -> float:
    """What is left of the frequency of pair i, for texts pos_scaling_factor times as long."""
    s, args = config.pos_scaling_factor, config.pos_scaling_extra_args
    if s == 1.0:
        return 1.0
    before = args.original_max_position_embeddings
    wavelength = 2 * math.pi / frequency
    if config.pos_scaling_type == "llama3":
        if wavelength < before / args.high_freq_factor:
            return 1.0
        if wavelength > before / args.low_freq_factor:
            return 1 / s
        share = before / wavelength - args.low_freq_factor
        share /= args.high_freq_factor - args.low_freq_factor
        return (1 - share) / s + share
    ends = [
        dims / 2 * math.log(before / (turns * 2 * math.pi)) / math.log(config.rope_theta)
        for turns in (args.beta_fast, args.beta_slow)
    ]
    low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), dims - 1)
    ramp = min(max((i - low) / (high - low), 0.0), 1.0)
    return ramp / s + 1 - ramp


def sees(query: int, key: int, layer: int, config: ModelConfig) -> bool:
    length = config.attention_sliding_window_length
    if length is None or (config.sliding_window_every_other_decoder_layer and layer % 2 == 0):
        return True
    return query - key < length or key < (config.attention_sink_tokens or 0)


SLOPES = [1 / 4, 1 / 16, 1 / 64, 1 / 256]
"""ALiBi's, of four heads."""


def attention(x_SD: Tensor, weights: dict, layer: int, config: ModelConfig) -> Tensor:
    heads, groups, name = config.num_heads, config.num_kv_heads, f"blocks.{layer}.attention"
    width = (config.attention_inner_dim or config.hidden_size) // heads
    rows = linear(x_SD, weights, f"{name}.qkv")
    q, k, v = rows.split([heads * width, groups * width, groups * width], dim=-1)
    scale = {"dot_product": 1.0}.get(config.attention_type, 1 / math.sqrt(width))
    scale = 1 / width if config.scale_qk_dot_by_d else scale
    scale *= config.attention_logits_alpha
    out = torch.zeros(len(x_SD), heads * width, dtype=x_SD.dtype)
    for head in range(heads):
        group = head // (heads // groups)
        part = slice(head * width, (head + 1) * width)
        shared = slice(group * width, (group + 1) * width)
        queries, keys = q[:, part], k[:, shared]
        if (kind := config.attention_qk_norm_layer) is not None:
            eps = config.attention_qk_norm_eps
            queries = normed(queries, weights, f"{name}.query_norm", kind, eps)
            keys = normed(keys, weights, f"{name}.key_norm", kind, eps)
        if config.position_embedding_type == "rotary":
            queries = torch.stack([turned(row, i, config) for i, row in enumerate(queries)])
            keys = torch.stack([turned(row, i, config) for i, row in enumerate(keys)])
        for i in range(len(x_SD)):
            logits = keys[: i + 1] @ queries[i] * scale
            if (cap := config.attention_logit_softcapping) is not None:
                logits = cap * torch.tanh(logits / cap)
            if config.position_embedding_type == "alibi":
                logits = logits - SLOPES[head] * torch.arange(i, -1, -1)
            seen = torch.tensor([sees(i, j, layer, config) for j in range(i + 1)])
            weight = torch.exp(logits - logits.max()) * seen
            out[i, part] = weight / weight.sum() @ v[: i + 1, shared]
    return linear(out, weights, f"{name}.output")


def feed_forward(x: Tensor, weights: dict, name: str, config: ModelConfig) -> Tensor:
    inner = linear(x, weights, f"{name}.input")
    if config.nonlinearity in ("swiglu", "geglu", "geglu_new"):
        inner = activation(linear(x, weights, f"{name}.gate"), config.nonlinearity) * inner
    else:
        inner = activation(inner, config.nonlinearity)
    return linear(inner, weights, f"{name}.output")


def mixture(x_SD: Tensor, weights: dict, name: str, config: ModelConfig) -> Tensor:
    moe = config.moe
    if moe is None:
        return feed_forward(x_SD, weights, name, config)
    out = torch.zeros_like(x_SD)
    for i, x_D in enumerate(x_SD):
        odds = torch.exp(linear(x_D, weights, f"{name}.router"))
        odds = odds / odds.sum()
        best = sorted(range(moe.num_experts), key=lambda e: -float(odds[e]))[: moe.top_k]
        total = sum(odds[e] for e in best) + moe.null_expert_bias
        for e in best:
            out[i] += odds[e] / total * feed_forward(x_D, weights, f"{name}.experts.{e}", config)
        for e in range(moe.num_experts, moe.num_experts + moe.num_shared_experts):
            out[i] += feed_forward(x_D, weights, f"{name}.experts.{e}", config)
    return out


def embedded(ids_S: Tensor, weights: dict, config: ModelConfig) -> Tensor:
    x = weights["token_embedding.weight"][ids_S]
    if config.position_embedding_type == "learned":
        x = x + weights["position_embedding.weight"][: len(ids_S)]
    if config.position_embedding_type == "fixed":
        for p, i in torch.cartesian_prod(torch.arange(len(ids_S)), torch.arange(8)).tolist():
            angle = p / 10000 ** (i / 7)
            x[p, 2 * i] += math.sin(angle)
            x[p, 2 * i + 1] += math.cos(angle)
    if config.embedding_layer_norm:
        x = norm(x, weights, "embedding_norm", config)
    return x * config.embeddings_scale


def reference_logits(ids_S: Tensor, weights: dict, config: ModelConfig) -> Tensor:
    x = embedded(ids_S, weights, config)
    for layer in range(config.num_hidden_layers):
        name = f"blocks.{layer}"
        first = norm(x, weights, f"{name}.attention_norm", config)
        mixed = attention(first, weights, layer, config)
        if config.norm_first_sandwich:
            mixed = norm(mixed, weights, f"{name}.attention_output_norm", config)
        if config.parallel_block and config.use_untied_layer_norm:
            second = norm(x, weights, f"{name}.feed_forward_norm", config)
        elif config.parallel_block:
            second = first
        else:
            second = norm(x + mixed, weights, f"{name}.feed_forward_norm", config)
        out = mixture(second, weights, f"{name}.feed_forward", config)
        if config.norm_first_sandwich:
            out = norm(out, weights, f"{name}.feed_forward_output_norm", config)
        x = x + mixed + out
    logits = linear(norm(x, weights, "final_norm", config), weights, "read_out")
    alpha = config.output_logits_alpha or 1.0
    logits = logits * alpha / (config.hidden_size / (config.mup_base_hidden_size or 16))
    cap = config.final_logit_softcapping
    return logits if cap is None else cap * torch.tanh(logits / cap)


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
    assert ("feed_forward_norm.bias" in names) == (
        family not in ("gptj", "llama", "mistral", "gemma2", "qwen3", "mpt", "mixtral")
    )
    assert ("feed_forward.gate.weight" in names) == (
        family in ("llama", "btlm", "mistral", "gemma2", "qwen3")
    )
    assert ("read_out.weight" in names) == (family in ("gptj", "neox", "llama", "mistral"))
    assert ("attention.key_norm.weight" in names) == (family in ("qwen3", "mpt"))
    assert ("feed_forward.experts.3.output.weight" in names) == ("moe" in OPTIONS[family])
    assert ("attention_output_norm.weight" in names) == (family == "gemma2")
    assert ("embedding_norm.bias" in names) == (family == "bloom")
    rows = model.blocks[0].attention.qkv.weight.shape[0]
    assert rows == {
        "llama": 16 + 2 * 8,
        "mqa": 16 + 2 * 4,
        "mistral": 24 + 2 * 12,
        "gemma2": 16 + 2 * 8,
    }.get(family, 48)


def test_a_token_sees_no_later_one(model, family):
    ids_BS = torch.randint(0, 61, (1, 16), generator=torch.Generator().manual_seed(0))
    changed_BS = ids_BS.clone()
    changed_BS[0, 9] = (changed_BS[0, 9] + 1) % 61
    with torch.no_grad():
        before, after = model.logits(ids_BS), model.logits(changed_BS)
    if "moe" in OPTIONS[family]:  # whose products have as many rows as tokens chose the expert
        torch.testing.assert_close(before[:, :9], after[:, :9])
    else:
        assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(-1).all()


def test_the_performance_model_counts_its_parameters(model):
    assert model.gpt_shape.parameters == sum(p.numel() for p in model.parameters())
