"""The decoder of T5, which reads what an encoder says; and the bias of attention logits that tells
both where tokens are.

A block of it is one of a decoder with attention to the encoder's tokens between its two branches.
Source: T5 (arXiv 1910.10683) section 2.1.

Shapes: B sequences, S tokens of the encoder, T of the decoder, D hidden size, H heads, E width of a
head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.attention import Attention
from trainer.model.forward_pass import Geometry
from trainer.model.layers import FeedForward, make_norm
from trainer.model.positions import relative_buckets


class PositionBias(nn.Module):
    """A bias for every head and bucket of distances, one for all blocks of a stack. `causal`: with
    -inf for later tokens, and all buckets for earlier ones."""

    def __init__(self, config: ModelConfig, *, causal: bool) -> None:
        super().__init__()
        buckets = config.relative_attention_num_buckets
        self.weight = nn.Parameter(torch.empty(buckets, config.num_heads))
        self.causal, self.farthest = causal, config.relative_attention_max_distance

    def forward(self, length: int) -> Tensor:
        """(1, H, S, S) fp32, what is added to the logits of `length` tokens."""
        weight = self.weight
        index_S = torch.arange(length, device=weight.device)
        offset_SS = index_S - index_S.unsqueeze(1)
        buckets_SS = relative_buckets(
            offset_SS, len(weight), self.farthest, both_ways=not self.causal
        )
        bias_HSS = F.embedding(buckets_SS, weight).float().permute(2, 0, 1)
        if self.causal:
            bias_HSS = bias_HSS.masked_fill(offset_SS > 0, float("-inf"))
        return bias_HSS.unsqueeze(0)


class CrossAttention(Attention):
    """Attention of the decoder's tokens to all of the encoder's: rows of Q of its matrix read the
    former, those of K and V the latter."""

    def _projected(self, x_BSD: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor, Tensor]:
        encoded_BSD = geometry.encoded
        assert encoded_BSD is not None, "a decoder block is given what the encoder says"
        weight, bias, rows = self.qkv.weight, self.qkv.bias, self.heads * self.head_width
        q_bias, kv_bias = (None, None) if bias is None else (bias[:rows], bias[rows:])
        q_BSF = self._linear(x_BSD, weight[:rows], q_bias)
        k, v = self._linear(encoded_BSD, weight[rows:], kv_bias).chunk(2, dim=-1)
        return self._split(q_BSF), self._split(k), self._split(v)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.wide:
            x, weight, bias = x.float(), weight.float(), None if bias is None else bias.float()
        return F.linear(x, weight, bias)


class DecoderBlock(nn.Module):
    """x + attention(norm(x)), then x + cross_attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = make_norm(config), Attention(config)
        self.cross_attention_norm = make_norm(config)
        self.cross_attention = CrossAttention(config)
        self.feed_forward_norm, self.feed_forward = make_norm(config), FeedForward(config)
        rate = config.residual_dropout_rate
        self.dropout = nn.Dropout(config.dropout_rate if rate is None else rate)

    def forward(self, x_BTD: Tensor, own: Geometry, across: Geometry) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), own))
        branch_BTD = self.cross_attention(self.cross_attention_norm(x_BTD), across)
        x_BTD = x_BTD + self.dropout(branch_BTD)
        out_BTD: Tensor = x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD)))
        return out_BTD


class Decoder(nn.Module):
    """Blocks that read their own earlier tokens and, through `encoder_norm`, the encoder's."""

    def __init__(self, config: ModelConfig, blocks: int) -> None:
        super().__init__()
        self.encoder_norm = make_norm(config)
        self.position_bias = PositionBias(config, causal=True)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(blocks))
        self.wide = config.precision == "float16"

    def forward(self, x_BTD: Tensor, encoder_x_BSD: Tensor) -> Tensor:
        """Embedded tokens, and what the encoder's last block gives (B, S, D) -> (B, T, D)."""
        mask = self.position_bias(x_BTD.shape[1])
        own = Geometry(mask if self.wide else mask.to(x_BTD.dtype), None)
        across = Geometry(None, None, encoded=self.encoder_norm(encoder_x_BSD))
        for block in self.blocks:
            x_BTD = block(x_BTD, own, across)
        return x_BTD
