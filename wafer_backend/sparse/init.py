"""The first mask of a parameter.

A method maps (name, parameter, sparsity, seed) to a bool mask of the parameter's shape, true where
a weight is kept.
"""

from collections.abc import Callable, Mapping

import torch

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse.selection import keep_largest, kept_count, uniform

InitMethod = Callable[[str, torch.Tensor, float, int], torch.Tensor]


def random(name: str, parameter: torch.Tensor, sparsity: float, seed: int) -> torch.Tensor:
    """Keep weights uniformly at random."""
    kept = kept_count(sparsity, parameter.numel())
    score = uniform(parameter.shape, seed, name, 0).flatten()
    return keep_largest(score, kept).reshape(parameter.shape)


def topk(name: str, parameter: torch.Tensor, sparsity: float, seed: int) -> torch.Tensor:
    """Keep the weights of the largest magnitude; of equal ones the first."""
    kept = kept_count(sparsity, parameter.numel())
    return keep_largest(parameter.detach().abs().float().flatten(), kept).reshape(parameter.shape)


def from_zeros(name: str, parameter: torch.Tensor, sparsity: float, seed: int) -> torch.Tensor:
    """Keep what is neither 0 nor NaN, whatever the sparsity."""
    weights = parameter.detach()
    return (weights != 0) & ~torch.isnan(weights)


def checkerboard(name: str, parameter: torch.Tensor, sparsity: float, seed: int) -> torch.Tensor:
    """Keep weights at even distances along rows that are walked to and fro.

    At 50 % that is a checkerboard.
    """
    n, columns = parameter.numel(), parameter.shape[-1]
    kept = kept_count(sparsity, n)
    position = torch.arange(n, dtype=torch.int64)
    keep_RC = ((position + 1) * kept // n > position * kept // n).reshape(-1, columns)
    keep_RC[1::2] = keep_RC[1::2].flip(1)
    return keep_RC.reshape(parameter.shape)


def from_masks(masks: Mapping[str, torch.Tensor]) -> InitMethod:
    """Keep what is true in `masks`, by parameter name; a parameter without a mask stays whole."""

    def given(name: str, parameter: torch.Tensor, sparsity: float, seed: int) -> torch.Tensor:
        return masks.get(name, torch.ones(parameter.shape, dtype=torch.bool))

    return given


_METHODS: dict[str, InitMethod] = {
    "random": random,
    "topk": topk,
    "from_zeros": from_zeros,
    "checkerboard": checkerboard,
}


def make_init_method(method: str | InitMethod) -> InitMethod:
    """A method by name, or a callable as it is."""
    if callable(method):
        return method
    if method not in _METHODS:
        raise BackendConfigError(
            f"unknown init_method {method!r}{did_you_mean_or_all(method, _METHODS)}"
        )
    return _METHODS[method]
