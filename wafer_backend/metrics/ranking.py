"""How well scores rank: precision and recall of the k highest, and the area under the ROC curve."""

from typing import Any

import torch

from wafer_backend.errors import BackendConfigError
from wafer_backend.metrics.base import Metric, weights_of, zero


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


class AUC(Metric):
    """Area under the ROC curve: how often a right sample has a higher probability than a wrong one;
    ties count half.

    Probabilities are counted on a grid of `num_thresholds` points from 0 to 1 (the nearest one), so
    memory is fixed and sums do not depend on how samples come.
    """

    default_name = "auc"
    right: torch.Tensor
    wrong: torch.Tensor

    def __init__(self, num_thresholds: int = 200, name: str | None = None) -> None:
        if num_thresholds < 2:
            raise BackendConfigError(f"AUC: num_thresholds = {num_thresholds}: expected at least 2")
        self.num_thresholds = num_thresholds
        super().__init__(name)

    def reset(self) -> None:
        """Start again."""
        self.register_state("right", zero(self.num_thresholds))
        self.register_state("wrong", zero(self.num_thresholds))

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: Any = None,
    ) -> None:
        """Count `labels`, above 0 for right samples, and probabilities of that shape in [0, 1]."""
        each, is_right = weights_of(labels, weights).flatten(), (labels > 0).flatten()
        scaled = predictions.double().flatten() * (self.num_thresholds - 1)
        points = scaled.round().long().clamp(0, self.num_thresholds - 1)
        self.right.index_add_(0, points, each * is_right)
        self.wrong.index_add_(0, points, each * ~is_right)

    def compute(self) -> torch.Tensor:
        """Between 0 and 1; NaN until there are right and wrong samples."""
        below = self.wrong.cumsum(0) - self.wrong / 2
        return (self.right * below).sum() / (self.right.sum() * self.wrong.sum())
