"""AdamW over the parameters in MemoryX: ordinary PyTorch, decay on matrices only."""

from collections.abc import Mapping

import torch
from torch import nn

from trainer.config import OptimizerConfig


def build(
    parameters: Mapping[str, nn.Parameter], config: OptimizerConfig, *, fused: bool = False
) -> torch.optim.AdamW:
    """AdamW with decoupled weight decay on parameters of two or more dimensions, none on 1-D ones.

    The learning rate is set before every step by whoever applies it. `fused` is faster and gives
    other bits, so it is a property of a run.
    """
    trained = [p for p in parameters.values() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=0.0,
        betas=config.betas,
        eps=config.eps,
        fused=fused or None,
    )
