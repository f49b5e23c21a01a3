"""Self-attention: one, some or all heads of K and V; norms of Q and K; capped logits.

A token attends to earlier tokens of its document, in an encoder to later ones as well, and within
a sliding window. Packed rows (variable sequence length) hold documents one after the other, each
seeing only itself. `attention_span` (`pipeline.hdf5.format`) counts the tokens after this one in
its segment, so it is 0 at a segment's end.

Cached texts of different lengths end in the same column: pads come before the shorter ones.

A mask is what is added to attention logits: fp32, the bias of ALiBi where there are `alibi_heads`,
else 0; -inf where a query does not attend to a key. It is made once for all layers:
scaled_dot_product_attention makes a boolean one a sum in every layer, and each keeps the result for
backward. It has four dimensions because with three PyTorch takes a slow way that keeps all logits.

Shapes: B sequences, S tokens, D width of the residual stream, H heads of Q, K heads of K and V, E
width of a head, N of the columns of a cache, the last ones, of one pass.
"""

import contextlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.forward_pass import Geometry
from trainer.model.layers import make_head_norm
from trainer.model.positions import alibi_bias, rotate


@dataclass(frozen=True)
class MaskRule:
    """What a mask is made by. `alibi_heads`: 0 without ALiBi. `window`: last tokens that a token
    attends to, itself included, or None for all; `sinks`: first tokens of a segment that it
    attends to as well. `always`: a mask even where attention could do without. `both_ways`: later
    tokens are attended to too."""

    alibi_heads: int = 0
    window: int | None = None
    sinks: int = 0
    always: bool = False
    both_ways: bool = False

    @classmethod
    def of(cls, config: ModelConfig, *, windowed: bool) -> "MaskRule":
        """That of the layers with a sliding window, or of the others."""
        return cls(
            config.num_heads if config.position_embedding_type == "alibi" else 0,
            config.attention_sliding_window_length if windowed else None,
            config.attention_sink_tokens or 0 if windowed else 0,
            always=config.attention_logit_softcapping is not None and not config.bidirectional,
            both_ways=config.bidirectional,
        )

    def needed(self, length: int) -> bool:
        """Whether rows of `length` tokens need one, packed rows and pads apart."""
        return bool(self.alibi_heads) or self.always or self.narrows(length)

    def narrows(self, length: int) -> bool:
        """Whether the window leaves out tokens of such rows."""
        return self.window is not None and self.window < length

    def within(self, distance_SS: Tensor, key_position_S: Tensor) -> Tensor:
        """Whether keys are in the window, by their distance and their place in the segment."""
        assert self.window is not None
        return (distance_SS < self.window) | (key_position_S < self.sinks)


def segment_mask(attention_span_BS: Tensor) -> Tensor:
    """(B, S, S) bool: whether query i attends to key j, which is j <= i <= j + span[j].

    That is earlier tokens of its own segment, and itself. Pads have span 0 and attend to
    themselves alone, so no query is without a key.

    >>> segment_mask(torch.tensor([[1, 0, 0]]))[0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    index_S = torch.arange(attention_span_BS.shape[1], device=attention_span_BS.device)
    distance_SS = index_S.unsqueeze(1) - index_S
    within_BSS = distance_SS <= attention_span_BS.unsqueeze(1)
    return within_BSS & (distance_SS >= 0)


def additive_mask(
    x_BSD: Tensor, span_BS: Tensor | None, positions: Tensor, rule: MaskRule
) -> Tensor | None:
    """The mask for `x_BSD`: (1 or B, 1 or H, S, S). Left out are later tokens, unless the rule is
    for both ways, with `span_BS` of packed rows other segments, and what is outside a window.
    `positions`: (S,) or (B, S), places in the segment. None where nothing but later tokens is left
    out, or nothing at all."""
    length, device = x_BSD.shape[1], x_BSD.device
    if span_BS is None and not rule.needed(length):
        return None
    index_S = torch.arange(length, device=device)
    distance_SS = index_S.unsqueeze(1) - index_S
    if span_BS is None:
        seen = (distance_SS >= 0).view(1, 1, length, length)
    else:
        seen = segment_mask(span_BS).unsqueeze(1)
        if rule.both_ways:
            seen = seen | seen.transpose(-1, -2)
    if rule.narrows(length):
        key_position = positions.view(-1, 1, 1, length)
        seen = seen & rule.within(distance_SS, key_position)
    bias = torch.zeros((), device=device)
    if rule.alibi_heads:
        bias = alibi_bias(length, rule.alibi_heads, device).unsqueeze(0)
    return torch.where(seen, bias, float("-inf"))


def mask_of_next(pads_B: Tensor, first: int, length: int, rule: MaskRule) -> Tensor | None:
    """As `additive_mask`, for the queries of columns first to `length` of texts that begin
    behind `pads_B` columns: (B, 1 or H, N, S). Pads attend to themselves, so that no query is
    without a key. None where `first` alone determines what is left out."""
    device = pads_B.device
    plain = first == 0 or first + 1 == length
    if plain and not (rule.needed(length) or bool(pads_B.any())):
        return None
    key_S = torch.arange(length, device=device)
    query_N1 = key_S[first:, None]
    position_B1S = key_S - pads_B[:, None, None]
    seen_BNS = (key_S < query_N1) & (position_B1S >= 0)
    if rule.narrows(length):
        seen_BNS = seen_BNS & rule.within(query_N1 - key_S, position_B1S)
    seen_BNS = seen_BNS | (key_S == query_N1)
    bias = torch.zeros((), device=device)
    if rule.alibi_heads:
        bias = alibi_bias(length, rule.alibi_heads, device, first)
    return torch.where(seen_BNS.unsqueeze(1), bias, float("-inf"))


class WideLinear(nn.Linear):
    """A linear layer that computes in fp32, also where its weight travels in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Linear, fp32."""
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), self.weight.float(), bias)


class Attention(nn.Module):
    """Self-attention. In float16 everything from the QKV projection to the mixed values
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
        self.causal = not config.bidirectional
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
            is_causal=self.causal and mask is None and q_BHSE.shape[2] == k_BKSE.shape[2],
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
