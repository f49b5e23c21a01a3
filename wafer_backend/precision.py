"""Number formats: which weights travel in half precision, and what the wafer computes in.

Masters, gradient sums and optimizer state are fp32. In "bfloat16" and "float16" a weight of two or
more dimensions is cast in MemoryX before it travels; a vector (bias, norm) stays fp32. Leaves then
run under autocast without its weight cache, which finds matrices in half already and so makes no
copy of them. Gradients arrive in the format of the copy and are fp32 before anything is added.
"""

import contextlib
from typing import Literal

import torch

Precision = Literal["float32", "bfloat16", "float16"]

_HALF: dict[Precision, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_HALVES = frozenset(_HALF.values())


def streamed_dtype(parameter: torch.Tensor, precision: Precision) -> torch.dtype:
    """The format a weight travels in.

    >>> streamed_dtype(torch.zeros(2, 2), "bfloat16"), streamed_dtype(torch.zeros(2), "bfloat16")
    (torch.bfloat16, torch.float32)
    """
    casts = precision in _HALF and parameter.ndim >= 2 and parameter.dtype == torch.float32
    return _HALF[precision] if casts else parameter.dtype


def use_precision(
    precision: Precision, device: torch.device
) -> contextlib.AbstractContextManager[None]:
    """What forward runs under; an autocast around the call does not reach inside."""
    dtype = _HALF.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)


def widen(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as it is added up: half precision becomes fp32, anything else stays."""
    return gradient.float() if gradient.dtype in _HALVES else gradient
