"""Where a token is: sinusoids, rotations of Q and K, also slowed down for texts longer than a model
was trained with, biases of ALiBi, and buckets of distances. Computed in fp32, without state, once
per forward pass.

Shapes: B sequences, S tokens, H heads of Q, E width of a head, R leading units of it that are
rotated.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

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


def rotation(positions: Tensor, config: ModelConfig) -> Rotation:
    """Rotation at integer `positions`, (S,) or (B, S). Pair i turns by position * frequency i."""
    frequencies, gain = rotary_frequencies(config, positions.device)
    angles = positions.unsqueeze(-1) * frequencies
    if positions.ndim == 2:
        angles = angles.unsqueeze(1)
    cos, sin = angles.cos(), angles.sin()
    if gain != 1.0:
        cos, sin = cos * gain, sin * gain
    return Rotation(cos, sin, config.rotary_interleaved)


def rotary_frequencies(config: ModelConfig, device: torch.device) -> tuple[Tensor, float]:
    """(R / 2,) fp32 radians per position, theta ** (-2 i / R) for pair i, and the factor for the
    rotated units. Source: RoFormer (arXiv 2104.09864) eq 15.

    With a `pos_scaling_factor`: linear, all are divided by it (arXiv 2306.15595); llama3, only
    those of long wavelengths (Llama 3.1's own rule); yarn, only those that turn seldom, and the
    factor is 0.1 ln(pos_scaling_factor) + 1 (arXiv 2309.00071).
    """
    dims = config.rotary_dim or config.head_size
    even = torch.arange(0, dims, 2, dtype=torch.float32, device=device)
    frequencies, factor = 1.0 / config.rope_theta ** (even / dims), config.pos_scaling_factor
    if factor == 1.0:
        return frequencies, 1.0
    if config.pos_scaling_type == "linear":
        return frequencies / factor, 1.0
    if config.pos_scaling_type == "llama3":
        kept, gain = _kept_by_llama3(frequencies, config), 1.0
    else:
        kept, gain = _kept_by_yarn(even / 2, dims, config), 0.1 * math.log(factor) + 1
    return frequencies * kept + frequencies / factor * (1 - kept), gain


def _kept_by_llama3(frequencies: Tensor, config: ModelConfig) -> Tensor:
    """What is kept of every frequency, from 0 to 1 in the number of turns within the old MSL."""
    args = config.pos_scaling_extra_args
    turns = (args.original_max_position_embeddings or 1) * frequencies / (2 * math.pi)
    share = (turns - args.low_freq_factor) / (args.high_freq_factor - args.low_freq_factor)
    return share.clamp(0, 1)


def _kept_by_yarn(index: Tensor, dims: int, config: ModelConfig) -> Tensor:
    """What is kept of every frequency, from 1 to 0 in the index between whole pairs."""
    args = config.pos_scaling_extra_args

    def pair_that_turns(times: float) -> float:
        within = (args.original_max_position_embeddings or 1) / (times * 2 * math.pi)
        return dims * math.log(within) / (2 * math.log(config.rope_theta))

    first = max(math.floor(pair_that_turns(args.beta_fast)), 0)
    last = min(math.ceil(pair_that_turns(args.beta_slow)), dims - 1)
    return 1 - ((index - first) / max(last - first, 0.001)).clamp(0, 1)


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


def relative_buckets(offsets: Tensor, buckets: int, farthest: int, *, both_ways: bool) -> Tensor:
    """Bucket of every offset, int64: place of the key less place of the query.

    With `both_ways` later keys have the second half of the buckets, else all are for earlier keys,
    and a later one is in bucket 0. Of those for one direction the first half are of one distance
    each, the others of ranges that grow like powers; from `farthest` on all are in the last one.
    Source: T5 (arXiv 1910.10683) section 2.1, and its authors' code.

    >>> relative_buckets(torch.tensor([1, 0, -1, -7, -9, -200]), 8, 16, both_ways=True).tolist()
    [5, 0, 1, 3, 3, 3]
    >>> relative_buckets(torch.tensor([1, 0, -1, -7, -9, -200]), 8, 16, both_ways=False).tolist()
    [0, 0, 1, 5, 6, 7]
    """
    first = torch.zeros_like(offsets)
    if both_ways:
        buckets //= 2
        first = (offsets > 0) * buckets
        distances = offsets.abs()
    else:
        distances = (-offsets).clamp(min=0)
    exact = buckets // 2
    powers = torch.log(distances.clamp(min=1).float() / exact) / math.log(farthest / exact)
    ranges = (exact + (powers * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(distances < exact, distances, ranges)


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
