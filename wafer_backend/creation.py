"""Tensors on the current backend's device, and to and from NumPy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wafer_backend.backends import current_torch_device

Shape = Sequence[int] | torch.Size


def full(shape: Shape, value: complex, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of one value."""
    return torch.full(tuple(shape), value, dtype=dtype, device=current_torch_device())


def full_like(
    other: torch.Tensor, value: complex, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A tensor of one value, of another's shape, dtype (unless given) and device."""
    return torch.full_like(other, value, dtype=dtype)


def ones(shape: Shape, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of ones."""
    return torch.ones(tuple(shape), dtype=dtype, device=current_torch_device())


def ones_like(other: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Ones of another's shape, dtype (unless given) and device."""
    return torch.ones_like(other, dtype=dtype)


def zeros(shape: Shape, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of zeros."""
    return torch.zeros(tuple(shape), dtype=dtype, device=current_torch_device())


def zeros_like(other: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Zeros of another's shape, dtype (unless given) and device."""
    return torch.zeros_like(other, dtype=dtype)


def tensor(data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of given values."""
    return torch.tensor(data, dtype=dtype, device=current_torch_device())


def make_constant(value: torch.Tensor) -> torch.Tensor:
    """The same values on the current device, outside of any graph."""
    return value.detach().to(current_torch_device())


def to_numpy(value: torch.Tensor) -> npt.NDArray[Any]:
    """A host array of the same values; bfloat16, which NumPy lacks, becomes float32.

    >>> to_numpy(torch.tensor([1.5], dtype=torch.bfloat16)).dtype
    dtype('float32')
    """
    host = value.detach().cpu()
    return host.float().numpy() if host.dtype == torch.bfloat16 else host.numpy()


def from_numpy(array: npt.ArrayLike) -> torch.Tensor:
    """A host tensor over a copy of an array."""
    return torch.from_numpy(np.array(array))
