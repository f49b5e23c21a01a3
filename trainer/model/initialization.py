"""Initial weights: a function of (config, seed, parameter name) and nothing else.

Source: Cerebras-GPT (arXiv 2304.03208) section 2.3 and Table 14. With L layers, sigma the standard
deviation of `initializer` and m = m_width (1 without muP), matrices inside blocks have sigma /
sqrt(m), and those that end a residual branch sigma / sqrt(2 L m), which `output_layer_initializer`
replaces. Embeddings and an untied read-out are not scaled.
"""

import math

import torch
from torch import nn

from pipeline.core.rng import key
from trainer.config import ModelConfig, TruncatedNormal
from trainer.model.mup import fan_in_multiplier, in_block


def initialize(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Biases 0, norms 1, matrices truncated normal keyed by (seed, parameter name), in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
            else:
                _fill(parameter, rule_of(name, config), seed, name)


def rule_of(name: str, config: ModelConfig) -> TruncatedNormal:
    """The distribution that the matrix `name` is drawn from."""
    if "embedding" in name:
        return config.embedding_initializer
    if not in_block(name):
        return config.initializer
    width = fan_in_multiplier(name, config)
    if not name.endswith(".output.weight"):
        return _narrowed(config.initializer, math.sqrt(width))
    depth = 2 * config.num_hidden_layers
    given = config.output_layer_initializer
    return given or _narrowed(config.initializer, math.sqrt(depth * width))


def _narrowed(rule: TruncatedNormal, by: float) -> TruncatedNormal:
    """The same distribution around the same mean, `by` times as narrow."""
    cuts = {
        side: rule.mean + (cut - rule.mean) / by
        for side in ("a", "b")
        if (cut := getattr(rule, side)) is not None
    }
    return rule.model_copy(update={"std": rule.std / by, **cuts})


def _fill(parameter: nn.Parameter, rule: TruncatedNormal, seed: int, name: str) -> None:
    generator = torch.Generator().manual_seed(key(seed, "weights", name) >> 65)
    low = rule.mean - 2 * rule.std if rule.a is None else rule.a
    high = rule.mean + 2 * rule.std if rule.b is None else rule.b
    nn.init.trunc_normal_(parameter, rule.mean, rule.std, low, high, generator=generator)
