"""A tensor that is not read yet: shape and dtype are known, `read` gives the data.

Conversions work on dicts of these, so one tensor at a time is in memory however large the model is.
Reading keeps nothing; reading twice reads twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ROWS = 1024


@dataclass(frozen=True)
class Lazy:
    """A tensor of a file, or made of such."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Size of the data."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


State = Mapping[str, Lazy]
"""Tensors by name, in file or parameter order."""


def held(tensors: Mapping[str, Tensor]) -> dict[str, Lazy]:
    """Tensors that are in memory already.

    >>> held({"x": torch.ones(2, 3)})["x"].shape
    (2, 3)
    """
    return {name: of(tensor) for name, tensor in tensors.items()}


def of(tensor: Tensor) -> Lazy:
    """One tensor that is in memory already."""
    detached = tensor.detach()
    return Lazy(tuple(detached.shape), detached.dtype, lambda: detached)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Lazy:
    """Zeros."""
    return Lazy(shape, dtype, lambda: torch.zeros(shape, dtype=dtype))


def transposed(lazy: Lazy) -> Lazy:
    """The other way round, if it is a matrix."""
    if len(lazy.shape) != 2:
        return lazy
    return Lazy(lazy.shape[::-1], lazy.dtype, lambda: lazy.read().t().contiguous())


def scaled(lazy: Lazy, factor: float) -> Lazy:
    """Times `factor`, rounded once to its dtype."""
    if factor == 1.0:
        return lazy
    return Lazy(lazy.shape, lazy.dtype, lambda: _times(lazy.read(), factor))


def _times(tensor: Tensor, factor: float) -> Tensor:
    """The float64 product rounded to the tensor's dtype, some rows at a time."""
    product = torch.empty_like(tensor)
    for start in range(0, len(tensor), _ROWS):
        part = slice(start, start + _ROWS)
        product[part] = tensor[part].to(torch.float64) * factor
    return product


def cast(lazy: Lazy, dtype: torch.dtype) -> Lazy:
    """In another dtype."""
    if lazy.dtype == dtype:
        return lazy
    return Lazy(lazy.shape, dtype, lambda: lazy.read().to(dtype))


def joined(parts: Sequence[Lazy]) -> Lazy:
    """One under the other."""
    rows = sum(part.shape[0] for part in parts)
    return Lazy(
        (rows, *parts[0].shape[1:]),
        parts[0].dtype,
        lambda: torch.cat([part.read() for part in parts]),
    )


def rows(lazy: Lazy, start: int, stop: int) -> Lazy:
    """Rows start to stop."""
    return Lazy(
        (stop - start, *lazy.shape[1:]), lazy.dtype, lambda: lazy.read()[start:stop].contiguous()
    )


def reordered(lazy: Lazy, source_R: Tensor) -> Lazy:
    """Row i is row source_R[i] (int64) of `lazy`."""
    return Lazy(lazy.shape, lazy.dtype, lambda: lazy.read()[source_R])
