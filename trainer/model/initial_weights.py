"""Initial weights, a function of (config, seed, parameter name).

With L layers, sigma the standard deviation of `initializer` and m = m_width (1 without muP),
matrices inside blocks have sigma / sqrt(m), and those that end a residual branch sigma / sqrt(2 L
m), which `output_layer_initializer` replaces; 3 L in a decoder behind an encoder, whose blocks have
three branches. Embeddings, biases of positions and an untied read-out are not scaled.

The distributions are those of Model Zoo's `create_initializer` (`trainer.config.initializers`).
Sources: Cerebras-GPT (arXiv 2304.03208) section 2.3 and, for muP, Table 14.
"""

import math

import torch
from torch import Tensor, nn

from pipeline.core.rng import key
from trainer.config import ModelConfig
from trainer.config import initializers as rules
from trainer.config.model_parameters import fan_in_multiplier, in_block

_CUT_AT_TWO = 0.87962566103423978
"""Standard deviation of a standard normal distribution cut to [-2, 2]."""


def initialize(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Biases 0, norms 1, matrices by their rules, keyed by (seed, parameter name), in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
            else:
                generator = torch.Generator().manual_seed(key(seed, "weights", name) >> 65)
                rule = find_initializer(name, config)
                parts: list[Tensor] = [parameter]
                if isinstance(rule, rules.FanScaled) and name.endswith(".qkv.weight"):
                    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
                    rows = [count * config.head_size for count in heads]
                    parts = list(torch.split(parameter, rows))  # matrices of their own
                for part in parts:
                    initialize_matrix(part, rule, generator)


def find_initializer(name: str, config: ModelConfig) -> rules.Initializer:
    """The distribution that the matrix `name` is drawn from."""
    if "embedding" in name:
        return config.embedding_initializer
    if not in_block(name):
        return config.initializer
    width = fan_in_multiplier(name, config)
    if not name.endswith(".output.weight"):
        return narrow_by(config.initializer, math.sqrt(width))
    depth = 2 * config.num_hidden_layers
    if name.startswith("decoder."):
        depth = 3 * (config.decoder_num_hidden_layers or 0)
    given = config.output_layer_initializer
    return given or narrow_by(config.initializer, math.sqrt(depth * width))


def narrow_by(rule: rules.Initializer, by: float) -> rules.Initializer:
    """The same distribution around the same mean, `by` times as narrow; one value stays."""
    match rule:
        case rules.TruncatedNormal():
            cuts = {
                side: rule.mean + (cut - rule.mean) / by
                for side in ("a", "b")
                if (cut := getattr(rule, side)) is not None
            }
            return rule.model_copy(update={"std": rule.std / by, **cuts})
        case rules.Normal():
            return rule.model_copy(update={"std": rule.std / by})
        case rules.Uniform():
            mean, reach = (rule.a + rule.b) / 2, (rule.b - rule.a) / 2 / by
            return rule.model_copy(update={"a": mean - reach, "b": mean + reach})
        case rules.Fill() | rules.ConstantValue():
            return rule
    scaling = as_variance_scaling(rule)
    return scaling.model_copy(update={"scale": scaling.scale / by**2})


def as_variance_scaling(rule: rules.FanScaled) -> rules.VarianceScaling:
    """What a rule by the shape of the matrix is: its scale, fan and distribution."""
    match rule:
        case rules.VarianceScaling():
            return rule
        case rules.Lecun():
            scale, mode, cut = 1.0, "fan_in", "truncated_normal"
        case rules.Xavier():
            scale, mode, cut = rule.gain**2, "fan_avg", "normal"
        case rules.Kaiming():
            slope = 0.0 if rule.nonlinearity == "relu" else rule.a
            scale, mode, cut = 2 / (1 + slope**2), rule.mode, "normal"
    shape = "uniform" if rule.name.endswith("uniform") else cut
    return rules.VarianceScaling.model_validate(
        {"name": "variance_scaling", "scale": scale, "mode": mode, "distribution": shape}
    )


def initialize_matrix(
    tensor: torch.Tensor, rule: rules.Initializer, generator: torch.Generator
) -> None:
    """Draw a whole matrix (outputs, inputs) in place."""
    match rule:
        case rules.TruncatedNormal():
            low = rule.mean - 2 * rule.std if rule.a is None else rule.a
            high = rule.mean + 2 * rule.std if rule.b is None else rule.b
            nn.init.trunc_normal_(tensor, rule.mean, rule.std, low, high, generator=generator)
        case rules.Normal():
            tensor.normal_(rule.mean, rule.std, generator=generator)
        case rules.Uniform():
            tensor.uniform_(rule.a, rule.b, generator=generator)
        case rules.Fill():
            tensor.fill_(1.0 if rule.name == "ones" else 0.0)
        case rules.ConstantValue():
            tensor.fill_(rule.val)
        case _:
            _fill_by_shape(tensor, as_variance_scaling(rule), generator)


def _fill_by_shape(
    tensor: torch.Tensor, rule: rules.VarianceScaling, generator: torch.Generator
) -> None:
    fan_out, fan_in = tensor.shape
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[rule.mode]
    std = math.sqrt(rule.scale / max(1.0, fan))
    if rule.distribution == "truncated_normal":
        nn.init.trunc_normal_(tensor, 0.0, std / _CUT_AT_TWO, -2.0, 2.0, generator=generator)
    elif rule.distribution == "normal":
        tensor.normal_(0.0, std, generator=generator)
    else:
        bound = math.sqrt(3) * std
        tensor.uniform_(-bound, bound, generator=generator)
