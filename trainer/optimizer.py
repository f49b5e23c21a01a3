"""AdamW over the parameters in MemoryX: ordinary PyTorch, decay on matrices only."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainer.config import ModelConfig, OptimizerConfig
from trainer.model.mup import fan_in_multiplier, in_block


def build(
    parameters: Mapping[str, nn.Parameter],
    config: OptimizerConfig,
    model: ModelConfig,
    *,
    fused: bool = False,
) -> torch.optim.AdamW:
    """AdamW with decoupled weight decay on parameters of two or more dimensions, none on 1-D ones.

    A parameter group learns at `adjust_learning_rate` times the learning rate, which is set before
    every step by whoever applies it; with muP, matrices inside blocks learn at less. `fused` is
    faster and gives other bits, so it is a property of a run.
    """
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    trained = [(name, p) for name, p in parameters.items() if p.requires_grad]
    for decays in (True, False):
        for name, parameter in trained:
            if (parameter.ndim >= 2) is decays:
                factor = learning_rate_factor(name, config, model) if decays else 1.0
                groups.setdefault((decays, factor), []).append(parameter)
    return torch.optim.AdamW(
        [_group(members, decays, factor, config) for (decays, factor), members in groups.items()],
        lr=0.0,
        betas=config.betas,
        eps=config.eps,
        fused=fused or None,
    )


def learning_rate_factor(name: str, config: OptimizerConfig, model: ModelConfig) -> float:
    """Factor on the learning rate of the matrix `name`.

    Inside blocks `adjust_learning_rate: {decoder_kernel: ...}`, by default 1 / m_width (P Table
    14), which is 1 without muP; elsewhere 1.
    """
    if not in_block(name):
        return 1.0
    given = config.adjust_learning_rate.get("decoder_kernel")
    if given is not None:
        return given
    return 1.0 / fan_in_multiplier(name, model)


def _group(
    members: list[nn.Parameter], decays: bool, factor: float, config: OptimizerConfig
) -> dict[str, Any]:
    decay = config.weight_decay if decays else 0.0
    return {"params": members, "weight_decay": decay, "adjust_learning_rate": factor}
