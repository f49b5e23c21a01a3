"""Initial weights: a function of (config, seed, parameter name) and nothing else.

Source: Cerebras-GPT (arXiv 2304.03208) section 2.3 and Table 14. With L layers, sigma the standard
deviation of `initializer` and m = m_width (1 without muP), matrices inside blocks have sigma /
sqrt(m), and those that end a residual branch sigma / sqrt(2 L m), which `output_layer_initializer`
replaces. Embeddings and an untied read-out are not scaled. The distributions are those of Model
Zoo's `create_initializer`; `trainer.config.initializers` says what each is.
"""

import math

import torch
from torch import nn

from pipeline.core.rng import key
from trainer.config import (
    ConstantValue,
    Fill,
    Initializer,
    Kaiming,
    Lecun,
    ModelConfig,
    Normal,
    TruncatedNormal,
    Uniform,
    VarianceScaling,
    Xavier,
)
from trainer.config.initializers import FanScaled
from trainer.model.mup import fan_in_multiplier, in_block

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
                _draw(parameter, name, config, generator)


def _draw(
    parameter: torch.Tensor, name: str, config: ModelConfig, generator: torch.Generator
) -> None:
    """Fill a matrix; where its shape matters, Q, K and V are matrices of their own."""
    rule, parts = rule_of(name, config), [parameter]
    if isinstance(rule, FanScaled) and name.endswith(".qkv.weight"):
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        parts = list(torch.split(parameter, [count * config.head_size for count in heads]))
    for part in parts:
        fill(part, rule, generator)


def rule_of(name: str, config: ModelConfig) -> Initializer:
    """The distribution that the matrix `name` is drawn from."""
    if "embedding" in name:
        return config.embedding_initializer
    if not in_block(name):
        return config.initializer
    width = fan_in_multiplier(name, config)
    if not name.endswith(".output.weight"):
        return narrow_by(config.initializer, math.sqrt(width))
    depth = 2 * config.num_hidden_layers
    given = config.output_layer_initializer
    return given or narrow_by(config.initializer, math.sqrt(depth * width))


def narrow_by(rule: Initializer, by: float) -> Initializer:
    """The same distribution around the same mean, `by` times as narrow; one value stays."""
    match rule:
        case TruncatedNormal():
            cuts = {
                side: rule.mean + (cut - rule.mean) / by
                for side in ("a", "b")
                if (cut := getattr(rule, side)) is not None
            }
            return rule.model_copy(update={"std": rule.std / by, **cuts})
        case Normal():
            return rule.model_copy(update={"std": rule.std / by})
        case Uniform():
            mean, reach = (rule.a + rule.b) / 2, (rule.b - rule.a) / 2 / by
            return rule.model_copy(update={"a": mean - reach, "b": mean + reach})
        case Fill() | ConstantValue():
            return rule
    scaling = as_variance_scaling(rule)
    return scaling.model_copy(update={"scale": scaling.scale / by**2})


def as_variance_scaling(rule: FanScaled) -> VarianceScaling:
    """What a rule by the shape of the matrix is: its scale, fan and distribution."""
    match rule:
        case VarianceScaling():
            return rule
        case Lecun():
            scale, mode, cut = 1.0, "fan_in", "truncated_normal"
        case Xavier():
            scale, mode, cut = rule.gain**2, "fan_avg", "normal"
        case Kaiming():
            slope = 0.0 if rule.nonlinearity == "relu" else rule.a
            scale, mode, cut = 2 / (1 + slope**2), rule.mode, "normal"
    shape = "uniform" if rule.name.endswith("uniform") else cut
    return VarianceScaling.model_validate(
        {"name": "variance_scaling", "scale": scale, "mode": mode, "distribution": shape}
    )


def fill(tensor: torch.Tensor, rule: Initializer, generator: torch.Generator) -> None:
    """Draw a whole matrix (outputs, inputs) in place."""
    match rule:
        case TruncatedNormal():
            low = rule.mean - 2 * rule.std if rule.a is None else rule.a
            high = rule.mean + 2 * rule.std if rule.b is None else rule.b
            nn.init.trunc_normal_(tensor, rule.mean, rule.std, low, high, generator=generator)
        case Normal():
            tensor.normal_(rule.mean, rule.std, generator=generator)
        case Uniform():
            tensor.uniform_(rule.a, rule.b, generator=generator)
        case Fill():
            tensor.fill_(1.0 if rule.name == "ones" else 0.0)
        case ConstantValue():
            tensor.fill_(rule.val)
        case _:
            _fill_by_shape(tensor, as_variance_scaling(rule), generator)


def _fill_by_shape(tensor: torch.Tensor, rule: VarianceScaling, generator: torch.Generator) -> None:
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
