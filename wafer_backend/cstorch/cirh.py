"""Two operators of the compiler's dialect that programs call by name: the k highest probabilities,
and a draw from a nucleus of them. There is no compiler here, so these are plain torch.

The nucleus is that of Holtzman et al., arXiv 1904.09751: the fewest of the highest probabilities
whose sum reaches p. A uniform number u in [0, 1) draws by the inverse of their distribution
function. Which of two equal probabilities comes first is ours: the one with the lower index.
"""

from typing import NamedTuple

import torch

from wafer_backend.errors import BackendConfigError

__all__ = ["FusedTopK", "FusedTopP", "HighestProbabilities"]


class HighestProbabilities(NamedTuple):
    """What `FusedTopK` found: `values` descending and their `indices` (int64), both (B, k)."""

    values: torch.Tensor
    indices: torch.Tensor


def FusedTopK(  # noqa: N802
    probabilities: torch.Tensor, k: int, dimension: int = -1, spread: int | None = None
) -> HighestProbabilities:
    """The k highest of `probabilities` (B, V) along dimension 1.

    `spread` places the operator on a wafer and changes no number. Raises BackendConfigError for
    another dimension, and for a k outside 1 … V.
    """
    if probabilities.ndim != 2 or dimension not in (1, -1):
        raise BackendConfigError(
            f"FusedTopK: expected shape (B, V) and dimension 1, got "
            f"{tuple(probabilities.shape)} and {dimension}"
        )
    if not 1 <= k <= probabilities.shape[1]:
        raise BackendConfigError(
            f"FusedTopK: k is {k}, of {probabilities.shape[1]} probabilities; expected 1 to that"
        )
    ordered = torch.sort(probabilities, dim=1, descending=True, stable=True)
    return HighestProbabilities(ordered.values[:, :k], ordered.indices[:, :k])


def FusedTopP(  # noqa: N802
    highest: HighestProbabilities, p: torch.Tensor, u: torch.Tensor, k: torch.Tensor
) -> torch.Tensor:
    """Draw an index (B, 1), int32, from the nucleus of each row of `highest`.

    `p`, `u`, `k`: (B, 1). Of the first k values of a row the nucleus is the shortest run whose sum
    is at least p, all k where none reaches it, and never less than one. Sums are in float32.
    """
    values = highest.values.float()
    place = torch.arange(values.shape[1], device=values.device)
    values = values.masked_fill(place >= k, 0.0)
    sums = values.cumsum(1)
    in_nucleus = (sums - values < p) & (place < k)
    in_nucleus[:, 0] = True
    total = (values * in_nucleus).sum(1, keepdim=True)
    drawn = (sums <= u * total).sum(1, keepdim=True)
    drawn = torch.minimum(drawn, in_nucleus.sum(1, keepdim=True) - 1)
    return highest.indices.gather(1, drawn).int()


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"wafer_backend does not support cirh.{name}: there is no compiler dialect; use torch"
    )
