"""Norms of the residual stream, of embeddings, and of heads of Q and K."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig


class RMSNorm(nn.Module):
    """x / sqrt(mean(x ** 2) + eps) * weight in fp32, returned as x came (arXiv 1910.07467).
    nn.RMSNorm warns where x is in half precision and the weight, a vector, is not."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        weight_D = self.weight.float()
        return F.rms_norm(x.float(), weight_D.shape, weight_D, self.eps).to(x.dtype)


def make_norm(config: ModelConfig) -> nn.Module:
    """LayerNorm with weight and bias or with a weight alone, or RMSNorm with a weight."""
    return _norm(config.norm_type, config.hidden_size, config.layer_norm_epsilon)


def make_head_norm(config: ModelConfig) -> nn.Module | None:
    """The norm of Q or K, one for all heads, where there is one."""
    kind = config.attention_qk_norm_layer
    if kind is None:
        return None
    return _norm(kind, config.head_size, config.attention_qk_norm_eps)


def _norm(kind: str, width: int, eps: float) -> nn.Module:
    if kind == "rmsnorm":
        return RMSNorm(width, eps)
    return nn.LayerNorm(width, eps=eps, bias=kind == "layernorm")
