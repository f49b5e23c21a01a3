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
class LazyTensor:
    """A tensor of a file, or made of such."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Size of the data."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


State = Mapping[str, LazyTensor]
"""Tensors by name, in file or parameter order."""


def wrap_tensors(tensors: Mapping[str, Tensor]) -> dict[str, LazyTensor]:
    """Tensors that are in memory already.

    >>> wrap_tensors({"x": torch.ones(2, 3)})["x"].shape
    (2, 3)
    """
    return {name: of(tensor) for name, tensor in tensors.items()}


def of(tensor: Tensor) -> LazyTensor:
    """One tensor that is in memory already."""
    detached = tensor.detach()
    return LazyTensor(tuple(detached.shape), detached.dtype, lambda: detached)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> LazyTensor:
    """Zeros."""
    return LazyTensor(shape, dtype, lambda: torch.zeros(shape, dtype=dtype))


def transpose(lazy: LazyTensor) -> LazyTensor:
    """The other way round, if it is a matrix."""
    if len(lazy.shape) != 2:
        return lazy
    return LazyTensor(lazy.shape[::-1], lazy.dtype, lambda: lazy.read().t().contiguous())


def scale(lazy: LazyTensor, factor: float) -> LazyTensor:
    """Times `factor`, rounded once to its dtype."""
    if factor == 1.0:
        return lazy
    return LazyTensor(lazy.shape, lazy.dtype, lambda: _times(lazy.read(), factor))


def _times(tensor: Tensor, factor: float) -> Tensor:
    """The float64 product rounded to the tensor's dtype, some rows at a time."""
    product = torch.empty_like(tensor)
    for start in range(0, len(tensor), _ROWS):
        part = slice(start, start + _ROWS)
        product[part] = tensor[part].to(torch.float64) * factor
    return product


def cast(lazy: LazyTensor, dtype: torch.dtype) -> LazyTensor:
    """In another dtype."""
    if lazy.dtype == dtype:
        return lazy
    return LazyTensor(lazy.shape, dtype, lambda: lazy.read().to(dtype))


def stack_rows(parts: Sequence[LazyTensor]) -> LazyTensor:
    """One under the other."""
    rows = sum(part.shape[0] for part in parts)
    return LazyTensor(
        (rows, *parts[0].shape[1:]),
        parts[0].dtype,
        lambda: torch.cat([part.read() for part in parts]),
    )


def rows(lazy: LazyTensor, start: int, stop: int) -> LazyTensor:
    """Rows start to stop."""
    return LazyTensor(
        (stop - start, *lazy.shape[1:]), lazy.dtype, lambda: lazy.read()[start:stop].contiguous()
    )


def reorder_rows(lazy: LazyTensor, source_R: Tensor) -> LazyTensor:
    """Row i is row source_R[i] (int64) of `lazy`."""
    return LazyTensor(lazy.shape, lazy.dtype, lambda: lazy.read()[source_R])
