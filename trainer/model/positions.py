"""Where a token stands: sinusoids, rotations of Q and K, and biases of ALiBi.

Shapes: B sequences, S tokens, D width of the residual stream, H heads, E width of a head, R leading
units of a head that are rotated. Everything is computed in fp32, without state, once per forward
pass.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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
    return torch.nn.functional.pad(pairs, (0, width % 2))


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
