"""LayerNorm and RMSNorm over D, the width of the residual stream."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig


class RMSNorm(nn.Module):
    """x / sqrt(mean(x ** 2) + eps) * weight in fp32, returned as x came (arXiv 1910.07467).

    nn.RMSNorm warns where x is in half precision and the weight, a vector, is not.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        weight_D = self.weight.float()
        return F.rms_norm(x.float(), weight_D.shape, weight_D, self.eps).to(x.dtype)


def make_norm(config: ModelConfig) -> nn.Module:
    """LayerNorm with weight and bias, or RMSNorm with a weight."""
    kind = nn.LayerNorm if config.norm_type == "layernorm" else RMSNorm
    return kind(config.hidden_size, eps=config.layer_norm_epsilon)
