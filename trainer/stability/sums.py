"""What is added up over the values of one tensor: pure functions, chunk by chunk.

No copy is made of more than a chunk. Sums are float64 and always taken in the same order, so they
are the same bits for any number of systems and ranks. A table has one row for every parameter and
one column for every field of `Sums`; zeros stand for what was not measured.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 1 << 20
"""Values at a time: 8 MB in float64."""


class Sums(NamedTuple):
    """Of one parameter. Counts of values: `values`; `cast`, that travel in half precision, of them
    `lost` on the way; `gradients` of those, of them `gradient_zeros` and `gradient_lost`;
    `moments`, with AdamW's v; `key_values`, biases of K. Sums: `total` of values, `squares`,
    `moment_total` of v, `key_squares`, and `other_squares` of Q and V biases beside K's.
    """

    values: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    cast: float = 0.0
    lost: float = 0.0
    gradients: float = 0.0
    gradient_zeros: float = 0.0
    gradient_lost: float = 0.0
    moments: float = 0.0
    moment_total: float = 0.0
    key_values: float = 0.0
    key_squares: float = 0.0
    other_squares: float = 0.0


def total(tensor: Tensor) -> float:
    """The sum of all values, in float64."""
    return _added(chunk.double().sum() for chunk in _chunks(tensor))


def squares(tensor: Tensor) -> float:
    """The sum of squares, in float64.

    >>> squares(torch.tensor([3.0, 4.0]))
    25.0
    """
    return _added(chunk.double().square().sum() for chunk in _chunks(tensor))


def zeros(tensor: Tensor) -> int:
    """How many values are exactly zero."""
    return tensor.numel() - int(torch.count_nonzero(tensor))


def count_lost(tensor: Tensor, dtype: torch.dtype) -> int:
    """How many values are not zero, but would be after a cast: underflow.

    >>> count_lost(torch.tensor([0.0, 1e-8, 1e-7, 1.0]), torch.float16)
    1
    """
    if tensor.dtype == dtype:
        return 0
    pairs = ((chunk.count_nonzero(), chunk.to(dtype).count_nonzero()) for chunk in _chunks(tensor))
    return sum(int(before - after) for before, after in pairs)


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    yield from torch.split(tensor.detach().reshape(-1), CHUNK)


def _added(parts: Iterator[Tensor]) -> float:
    """Their sum in order; a device is asked once, not for every chunk."""
    whole = None
    for part in parts:
        whole = part if whole is None else whole + part
    return 0.0 if whole is None else float(whole)
