"""Causal self-attention: one, some or all heads of K and V; packed rows; cached keys and values;
and where a token is: sinusoids, rotations of Q and K, and biases of ALiBi. Positions are computed
in fp32, without state, once per forward pass.

Packed rows (variable sequence length) hold documents one after the other, each seeing only itself.
`attention_span` (`pipeline.hdf5.format`) counts the tokens after this one in its segment, so it is
0 at a segment's end.

Cached texts of different lengths end in the same column: pads come before the shorter ones, and
every pass adds its N columns to all.

Shapes: B sequences, S tokens, D width of the residual stream, H heads of Q, K heads of K and V, E =
D / H width of a head, R leading units of it that are rotated; C columns of a cache, N of them, the
last ones, of one pass.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig

_LONGEST = 10000.0
"""Ratio of the longest to the shortest wavelength of the fixed positions."""


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Fixed position embeddings, fp32, of the shape of `positions` with `width` units added.

    Unit 2i is sin(p w_i) and unit 2i + 1 cos(p w_i), w_i = 10000 ** (-i / (n - 1)) for i < n =
    width // 2; a last odd unit is 0. Source: Model Zoo (`fixed`), which has it from tensor2tensor;
    "Attention is all you need" has n in the place of n - 1.

    >>> sinusoids(torch.tensor([0]), 5)
    tensor([[0., 1., 0., 1., 0.]])
    """
    count = width // 2
    step = math.log(_LONGEST) / max(count - 1, 1)
    index = torch.arange(count, dtype=torch.float32, device=positions.device)
    angles = positions.unsqueeze(-1) * torch.exp(-step * index)
    pairs = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return F.pad(pairs, (0, width % 2))


@dataclass(frozen=True)
class Rotation:
    """Angles that the leading R units of a head are rotated by. `cos`, `sin`: fp32 (S, R / 2),
    or (B, 1, S, R / 2) where rows have positions of their own. `interleaved`: pairs are
    neighbours (GPT-J), else unit i goes with unit i + R / 2 (NeoX, Llama)."""

    cos: Tensor
    sin: Tensor
    interleaved: bool


def rotation(positions: Tensor, dims: int, theta: float, *, interleaved: bool) -> Rotation:
    """Rotation of `dims` = R units at integer `positions`, (S,) or (B, S). Pair i turns by
    position * theta ** (-2 i / R). Source: RoFormer (arXiv 2104.09864) eq 15."""
    even = torch.arange(0, dims, 2, dtype=torch.float32, device=positions.device)
    angles = positions.unsqueeze(-1) * (1.0 / theta ** (even / dims))
    if positions.ndim == 2:
        angles = angles.unsqueeze(1)
    return Rotation(angles.cos(), angles.sin(), interleaved)


def rotate(x_BHSE: Tensor, by: Rotation) -> Tensor:
    """Rotate the leading units of every head in fp32; shape and dtype stay."""
    dims = 2 * by.cos.shape[-1]
    turned, rest = x_BHSE[..., :dims].float(), x_BHSE[..., dims:]
    if by.interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    pair = (first * by.cos - second * by.sin, second * by.cos + first * by.sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if by.interleaved else torch.cat(pair, dim=-1)
    return torch.cat((turned.to(x_BHSE.dtype), rest), dim=-1)


def alibi_slopes(heads: int) -> list[float]:
    """Slope of every head: 2 ** (-8 i / n) for i = 1 ... n, n heads, n a power of two.

    Else those of the next smaller power, then every other one of its double. Source: ALiBi (arXiv
    2108.12409) section 3, and its authors' code for other counts.

    >>> alibi_slopes(4), alibi_slopes(3)
    ([0.25, 0.0625, 0.015625, 0.00390625], [0.0625, 0.00390625, 0.25])
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-8 * i / (2 * power)) for i in range(1, 2 * power, 2)]
    return slopes + between[: heads - power]


def alibi_bias(length: int, heads: int, device: torch.device, first: int = 0) -> Tensor:
    """(H, S, S) fp32: -slope * (i - j) for query i and key j <= i; keys after it are not masked.
    With `first`, (H, S - first, S): for the queries from there on. Distances within a segment of
    a packed row are those of its columns, so VSL needs nothing more."""
    index_S = torch.arange(length, device=device)
    distance_SS = (index_S[first:].unsqueeze(1) - index_S).to(torch.float32)
    slopes_H = torch.tensor(alibi_slopes(heads), dtype=torch.float32, device=device)
    return -slopes_H[:, None, None] * distance_SS


@dataclass
class LayerCache:
    """Of one layer: `keys`, rotated already, and `values`, (B, K, C, E) fp32, of which the first
    `filled` columns are those of tokens."""

    keys: Tensor
    values: Tensor
    filled: int = 0

    def extended(self, k_BKNE: Tensor, v_BKNE: Tensor) -> tuple[Tensor, Tensor]:
        """Take up N columns, which there must be room for; all keys and all values so far."""
        first, self.filled = self.filled, self.filled + k_BKNE.shape[2]
        self.keys[:, :, first : self.filled] = k_BKNE
        self.values[:, :, first : self.filled] = v_BKNE
        return self.keys[:, :, : self.filled], self.values[:, :, : self.filled]


@dataclass
class KVCache:
    """Of all `layers`, in order. `pads`: (B,) int64, columns before the first token of every
    text."""

    layers: list[LayerCache]
    pads: Tensor

    @classmethod
    def empty(
        cls, config: ModelConfig, pads: Sequence[int], columns: int, device: torch.device
    ) -> "KVCache":
        """Room for C = `columns` columns, pads included."""
        shape = len(pads), config.num_kv_heads, columns, config.head_size
        layers = [
            LayerCache(torch.empty(shape, device=device), torch.empty(shape, device=device))
            for _ in range(config.num_hidden_layers)
        ]
        return cls(layers, torch.tensor(pads, dtype=torch.int64, device=device))

    @property
    def filled(self) -> int:
        """Columns that are taken up."""
        return self.layers[0].filled

    def only(self, texts: Sequence[int]) -> "KVCache":
        """A copy with these texts alone, by their places in B."""
        index = torch.tensor(texts, dtype=torch.int64, device=self.pads.device)
        layers = [LayerCache(c.keys[index], c.values[index], c.filled) for c in self.layers]
        return KVCache(layers, self.pads[index])


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


@dataclass(frozen=True)
class Geometry:
    """What all layers of one forward pass share. `mask`: see `additive_mask`; None: every token
    attends to itself and all earlier ones. `rotation`: of Q and K, or None. `past`: what the
    layer has seen before, never in training."""

    mask: Tensor | None
    rotation: Rotation | None
    past: LayerCache | None = None


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
        width, self.heads, self.kv_heads = config.hidden_size, config.num_heads, config.num_kv_heads
        self.head_width = width // self.heads
        rate = config.attention_dropout_rate
        self.dropout_rate = config.dropout_rate if rate is None else rate
        self.scale = logits_scale(config)
        self.wide = config.precision == "float16"
        kind = WideLinear if self.wide else nn.Linear
        rows = (self.heads + 2 * self.kv_heads) * self.head_width
        self.qkv = kind(width, rows, bias=config.use_projection_bias_in_attention)
        self.output = nn.Linear(width, width, bias=config.use_ffn_bias_in_attention)

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
        if geometry.rotation is not None:
            q, k = rotate(q, geometry.rotation), rotate(k, geometry.rotation)
        return q, k, v

    def _mix(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, mask: Tensor | None) -> Tensor:
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

    def _split(self, x: Tensor) -> Tensor:
        batch, length, rows = x.shape
        return x.view(batch, length, rows // self.head_width, self.head_width).transpose(1, 2)

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        if self.wide:
            return torch.autocast(device.type, enabled=False)
        return contextlib.nullcontext()


def additive_mask(x_BSD: Tensor, span_BS: Tensor | None, alibi_heads: int) -> Tensor | None:
    """What is added to the attention logits of `x_BSD`: fp32 (B, 1, S, S) or (1 or B, H, S, S).

    The bias of ALiBi where there are `alibi_heads`, else 0; -inf where a query does not attend to a
    key: to later tokens and, with `span_BS` of packed rows, to other segments. None where nothing
    but later tokens are left out.

    The boolean mask is made a sum here, once for all layers: scaled_dot_product_attention does the
    same with it in every layer, and each keeps the result for backward. It has four dimensions
    because with three PyTorch takes a slow way that keeps all logits.
    """
    length, device = x_BSD.shape[1], x_BSD.device
    if span_BS is None and not alibi_heads:
        return None
    if span_BS is None:
        seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    else:
        seen = segment_mask(span_BS).unsqueeze(1)
    bias = torch.zeros((), device=device)
    if alibi_heads:
        bias = alibi_bias(length, alibi_heads, device).unsqueeze(0)
    return torch.where(seen, bias, float("-inf"))


def mask_of_next(pads_B: Tensor, first: int, length: int, alibi_heads: int) -> Tensor | None:
    """As `additive_mask`, for the queries of columns first to `length` of texts that begin
    behind `pads_B` columns: fp32 (B, 1 or H, N, S). Pads attend to themselves, so that no query
    is without a key. None where `first` alone determines what is left out."""
    device = pads_B.device
    if not (alibi_heads or bool(pads_B.any())) and (first == 0 or first + 1 == length):
        return None
    key_S = torch.arange(length, device=device)
    query_N1 = key_S[first:, None]
    inside_B1S = key_S >= pads_B[:, None, None]
    seen_BNS = ((key_S < query_N1) & inside_B1S) | (key_S == query_N1)
    bias = torch.zeros((), device=device)
    if alibi_heads:
        bias = alibi_bias(length, alibi_heads, device, first)
    return torch.where(seen_BNS.unsqueeze(1), bias, float("-inf"))


def logits_scale(config: ModelConfig) -> float | None:
    """Factor on Q K^T: 1 / E with scale_qk_dot_by_d (muP), 1 for dot_product; None: 1 / sqrt(E)."""
    if config.attention_type == "dot_product":
        return 1.0
    return config.num_heads / config.hidden_size if config.scale_qk_dot_by_d else None
