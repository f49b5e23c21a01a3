"""LAMB, You et al., arXiv 1904.00962, algorithm 2 without bias correction.

m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  u = m / (sqrt(v) + eps) + weight_decay p
p = p - lr * ratio * u,  ratio = min(|p|, 10) / |u|, and 1 where either norm is 0

The bound of 10 on |p| is the paper's scaling function phi as widely used implementations have it.
"""

from typing import Any

import torch

from wafer_backend.optim.optimizer import Params
from wafer_backend.optim.parameterwise import ParameterwiseOptimizer

_LARGEST_NORM = 10.0


class Lamb(ParameterwiseOptimizer):
    """Adam whose update has, per parameter, the norm of the parameter. `adam`: ratio 1."""

    fields = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "adam": adam})

    def _update(self, group: dict[str, Any], p: torch.Tensor, gradient: torch.Tensor) -> None:
        state, (beta1, beta2) = self.state[p], group["betas"]
        mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = mean / (square.sqrt().add_(group["eps"]))
        if group["weight_decay"]:
            update.add_(p, alpha=group["weight_decay"])
        if not group["adam"]:
            norm, update_norm = p.norm().clamp(max=_LARGEST_NORM), update.norm()
            update.mul_(torch.where((norm > 0) & (update_norm > 0), norm / update_norm, 1.0))
        p.sub_(update, alpha=group["lr"])
