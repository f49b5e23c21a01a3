"""Causal self-attention: one, some or all heads of K and V; norms of Q and K; capped logits.

Shapes: B sequences, S tokens, D width of the residual stream, H heads of Q, K heads of K and V, E
width of a head.
"""

import contextlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.forward_pass import Geometry
from trainer.model.norms import make_head_norm
from trainer.model.positions import rotate


class WideLinear(nn.Linear):
    """A linear layer that computes in fp32, also where its weight travels in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Linear, fp32."""
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), self.weight.float(), bias)


class Attention(nn.Module):
    """Causal self-attention. In float16 everything from the QKV projection to the mixed values
    is fp32, forward and backward: there the gradient of the softmax, and what follows from it
    for QK^T and the Q and K projections, underflows (Cerebras-GPT, arXiv 2304.03208, section
    A.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        width, self.head_width = config.hidden_size, config.head_size
        rate = config.attention_dropout_rate
        self.dropout_rate = config.dropout_rate if rate is None else rate
        self.scale = logits_scale(config)
        self.cap = config.attention_logit_softcapping
        self.wide = config.precision == "float16"
        kind = WideLinear if self.wide else nn.Linear
        rows = (self.heads + 2 * self.kv_heads) * self.head_width
        self.qkv = kind(width, rows, bias=config.use_projection_bias_in_attention)
        self.query_norm, self.key_norm = make_head_norm(config), make_head_norm(config)
        inner, bias = config.attention_width, config.use_ffn_bias_in_attention
        self.output = nn.Linear(inner, width, bias=bias)

    def forward(self, x_BSD: Tensor, geometry: Geometry) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        with self._precision(x_BSD.device):
            q_BHSE, k_BKSE, v_BKSE = self._projected(x_BSD, geometry)
            if geometry.past is not None:
                k_BKSE, v_BKSE = geometry.past.extended(k_BKSE, v_BKSE)
            mixed_BHSE = self._mix(q_BHSE, k_BKSE, v_BKSE, geometry.mask)
        out: Tensor = self.output(mixed_BHSE.transpose(1, 2).flatten(2))
        return out

    def _projected(self, x_BSD: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor, Tensor]:
        """Q (B, H, S, E), K and V (B, K, S, E)."""
        rows = [heads * self.head_width for heads in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (self._split(x) for x in self.qkv(x_BSD).split(rows, dim=-1))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if geometry.rotation is not None:
            q, k = rotate(q, geometry.rotation), rotate(k, geometry.rotation)
        return q, k, v

    def _mix(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, mask: Tensor | None) -> Tensor:
        if self.cap is not None:
            return self._mix_capped(q_BHSE, k_BKSE, v_BKSE, mask, self.cap)
        return F.scaled_dot_product_attention(
            q_BHSE,
            k_BKSE,
            v_BKSE,
            attn_mask=mask,
            dropout_p=self.dropout_rate if self.training else 0.0,
            is_causal=mask is None and q_BHSE.shape[2] == k_BKSE.shape[2],
            scale=self.scale,
            enable_gqa=self.kv_heads < self.heads,
        )

    def _mix_capped(
        self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, mask: Tensor | None, cap: float
    ) -> Tensor:
        """With logits that are cap * tanh(logits / cap), which no fused attention has. The softmax
        is fp32. Source: Gemma 2 (arXiv 2408.00118) section 2."""
        shared = self.heads // self.kv_heads
        k_BHSE, v_BHSE = (x.repeat_interleave(shared, dim=1) for x in (k_BKSE, v_BKSE))
        scale = self.head_width**-0.5 if self.scale is None else self.scale
        logits = (q_BHSE @ k_BHSE.transpose(-1, -2)).float() * scale
        logits = cap * torch.tanh(logits / cap)
        weights = logits if mask is None else logits + mask
        weights = F.dropout(weights.softmax(-1), self.dropout_rate, self.training)
        return weights.to(v_BHSE.dtype) @ v_BHSE

    def _split(self, x: Tensor) -> Tensor:
        batch, length, rows = x.shape
        return x.view(batch, length, rows // self.head_width, self.head_width).transpose(1, 2)

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        if self.wide:
            return torch.autocast(device.type, enabled=False)
        return contextlib.nullcontext()


def logits_scale(config: ModelConfig) -> float | None:
    """Factor on Q K^T: 1 / E with scale_qk_dot_by_d (muP), 1 for dot_product, 1 / sqrt(E) else,
    times attention_logits_alpha; None: 1 / sqrt(E)."""
    alpha = config.attention_logits_alpha
    if config.attention_type == "dot_product":
        return alpha
    if config.scale_qk_dot_by_d:
        return alpha / config.head_size
    return None if alpha == 1.0 else alpha * config.head_size**-0.5
