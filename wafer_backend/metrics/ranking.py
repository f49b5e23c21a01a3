"""Precision and recall of the k highest scores of several right classes."""

from typing import Any

import torch

from wafer_backend.metrics.base import Metric, zero


class _AtK(Metric):
    """Counts right classes among the k highest scores. `k`: how many are looked at."""

    hits: torch.Tensor
    total: torch.Tensor

    def __init__(self, k: int, name: str | None = None) -> None:
        super().__init__(name)
        self.k = k

    def reset(self) -> None:
        """Start again."""
        self.register_state("hits", zero())
        self.register_state("total", zero())

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: Any = None,
    ) -> None:
        """Count `labels` (…, classes), 1 for right ones, and scores of that shape; weights (…)."""
        right = (labels > 0).double()
        found = right.gather(-1, predictions.topk(self.k, dim=-1).indices).sum(-1)
        heavy = torch.ones_like(found) if weights is None else weights.double().expand_as(found)
        self.hits += (found * heavy).sum()
        self.total += (self._out_of(right) * heavy).sum()

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        return self.hits / self.total

    def _out_of(self, right: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class PrecisionAtK(_AtK):
    """Right ones among the k highest / all k, over all samples."""

    default_name = "precision_at_k"

    def _out_of(self, right: torch.Tensor) -> torch.Tensor:
        return torch.full_like(right[..., 0], self.k)


class RecallAtK(_AtK):
    """Right ones among the k highest / all right ones, over all samples."""

    default_name = "recall_at_k"

    def _out_of(self, right: torch.Tensor) -> torch.Tensor:
        return right.sum(-1)
