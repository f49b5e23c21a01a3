"""Lion, Chen et al., arXiv 2302.06675, algorithm 2.

p = p (1 - lr weight_decay) - lr sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g
"""

from typing import Any

import torch

from wafer_backend.optim.optimizer import Params
from wafer_backend.optim.parameterwise import ParameterwiseOptimizer


class Lion(ParameterwiseOptimizer):
    """Signs of a momentum that looks ahead; one buffer for each parameter."""

    fields = ("exp_avg",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _update(self, group: dict[str, Any], p: torch.Tensor, gradient: torch.Tensor) -> None:
        mean, (beta1, beta2) = self.state[p]["exp_avg"], group["betas"]
        direction = (mean * beta1).add_(gradient, alpha=1 - beta1).sign_()
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(direction, alpha=group["lr"])
        mean.mul_(beta2).add_(gradient, alpha=1 - beta2)
