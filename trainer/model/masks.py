"""Which earlier tokens a token attends to: those of its document, those within a sliding window.

Packed rows (variable sequence length) hold documents one after the other, each seeing only itself.
`attention_span` (`pipeline.hdf5.format`) counts the tokens after this one in its segment, so it is
0 at a segment's end.

Cached texts of different lengths end in the same column: pads come before the shorter ones.

A mask is what is added to attention logits: fp32, the bias of ALiBi where there are `alibi_heads`,
else 0; -inf where a query does not attend to a key. It is made once for all layers:
scaled_dot_product_attention makes a boolean one a sum in every layer, and each keeps the result for
backward. It has four dimensions because with three PyTorch takes a slow way that keeps all logits.

Shapes: B sequences, S tokens, H heads of Q, N of the columns of a cache, the last ones, of one
pass.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import ModelConfig
from trainer.model.positions import alibi_bias


@dataclass(frozen=True)
class MaskRule:
    """What a mask is made by. `alibi_heads`: 0 without ALiBi. `window`: last tokens that a token
    attends to, itself included, or None for all; `sinks`: first tokens of a segment that it
    attends to as well. `always`: a mask even where attention could do without."""

    alibi_heads: int = 0
    window: int | None = None
    sinks: int = 0
    always: bool = False

    @classmethod
    def of(cls, config: ModelConfig, *, windowed: bool) -> "MaskRule":
        """That of the layers with a sliding window, or of the others."""
        return cls(
            config.num_heads if config.position_embedding_type == "alibi" else 0,
            config.attention_sliding_window_length if windowed else None,
            config.attention_sink_tokens or 0 if windowed else 0,
            always=config.attention_logit_softcapping is not None,
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
    """The mask for `x_BSD`: (1 or B, 1 or H, S, S). Left out are later tokens, with `span_BS` of
    packed rows other segments, and what is outside a window. `positions`: (S,) or (B, S), places
    in the segment. None where nothing but later tokens is left out."""
    length, device = x_BSD.shape[1], x_BSD.device
    if span_BS is None and not rule.needed(length):
        return None
    index_S = torch.arange(length, device=device)
    distance_SS = index_S.unsqueeze(1) - index_S
    if span_BS is None:
        seen = (distance_SS >= 0).view(1, 1, length, length)
    else:
        seen = segment_mask(span_BS).unsqueeze(1)
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
