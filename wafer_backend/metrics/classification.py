"""Metrics of classification: of a confusion matrix, and of how well scores rank.

The latter are precision and recall of the k highest, and the area under the ROC curve.
"""

from typing import Any, Literal

import torch

from wafer_backend.errors import BackendConfigError
from wafer_backend.metrics.base import Metric, QuotientMetric, fill_weights, predict_classes, zero


class ConfusionMatrix(Metric):
    """Weights by (label, prediction); labels outside 0 … num_classes - 1 do not count."""

    matrix: torch.Tensor

    def __init__(self, num_classes: int, name: str | None = None) -> None:
        self.num_classes = num_classes
        super().__init__(name)

    def reset(self) -> None:
        """Start again."""
        self.register_state("matrix", zero(self.num_classes, self.num_classes))

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: Any = None,
    ) -> None:
        """Count labels and predicted classes (or logits, classes last), with weights."""
        each = fill_weights(labels, weights)
        valid = (labels >= 0) & (labels < self.num_classes)
        cells = labels[valid].long() * self.num_classes
        cells = cells + predict_classes(predictions, labels)[valid].long()
        self.matrix.view(-1).index_put_((cells,), each[valid], accumulate=True)

    def _counts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Per class: right, labelled so, predicted so."""
        return self.matrix.diagonal(), self.matrix.sum(1), self.matrix.sum(0)


class MeanPerClassAccuracy(ConfusionMatrix):
    """Mean over the classes that occur of right / labelled."""

    default_name = "mean_per_class_accuracy"

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        right, labelled, _ = self._counts()
        return (right / labelled)[labelled > 0].mean()


class MeanIOU(ConfusionMatrix):
    """Mean over the classes that occur of intersection / union."""

    default_name = "mean_iou"

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        right, labelled, predicted = self._counts()
        union = labelled + predicted - right
        return (right / union)[union > 0].mean()


class Dice(ConfusionMatrix):
    """Mean over the classes that occur of 2 · intersection / (labelled + predicted)."""

    default_name = "dice"

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        right, labelled, predicted = self._counts()
        both = labelled + predicted
        return (2 * right / both)[both > 0].mean()


class FBeta(ConfusionMatrix):
    """(1 + b²) · precision · recall / (b² · precision + recall), "micro" over all labels or
    "macro" as the mean over the classes that occur.
    """

    default_name = "fbeta"

    def __init__(
        self,
        num_classes: int,
        beta: float = 1.0,
        average_type: Literal["micro", "macro"] = "micro",
        name: str | None = None,
    ) -> None:
        super().__init__(num_classes, name)
        self.beta = beta
        self.average_type = average_type

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        right, labelled, predicted = self._counts()
        if self.average_type == "micro":
            right, labelled, predicted = right.sum(), labelled.sum(), predicted.sum()
        weight = self.beta**2
        below = weight * labelled + predicted
        return ((1 + weight) * right / below)[below > 0].mean()


class _AtK(QuotientMetric):
    """Counts right classes among the k highest scores. `k`: how many are looked at."""

    def __init__(self, k: int, name: str | None = None) -> None:
        super().__init__(name)
        self.k = k

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: Any = None,
    ) -> None:
        """Count `labels` (…, classes), 1 for right ones, and scores of that shape; weights (…)."""
        right = (labels > 0).double()
        hits = right.gather(-1, predictions.topk(self.k, dim=-1).indices).sum(-1)
        heavy = torch.ones_like(hits) if weights is None else weights.double().expand_as(hits)
        self.add(hits * heavy, self._count_possible(right) * heavy)

    def _count_possible(self, right: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class PrecisionAtK(_AtK):
    """Right ones among the k highest / all k, over all samples."""

    default_name = "precision_at_k"

    def _count_possible(self, right: torch.Tensor) -> torch.Tensor:
        return torch.full_like(right[..., 0], self.k)


class RecallAtK(_AtK):
    """Right ones among the k highest / all right ones, over all samples."""

    default_name = "recall_at_k"

    def _count_possible(self, right: torch.Tensor) -> torch.Tensor:
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
        each, is_right = fill_weights(labels, weights).flatten(), (labels > 0).flatten()
        scaled = predictions.double().flatten() * (self.num_thresholds - 1)
        points = scaled.round().long().clamp(0, self.num_thresholds - 1)
        self.right.index_add_(0, points, each * is_right)
        self.wrong.index_add_(0, points, each * ~is_right)

    def compute(self) -> torch.Tensor:
        """Between 0 and 1; NaN until there are right and wrong samples."""
        below = self.wrong.cumsum(0) - self.wrong / 2
        return (self.right * below).sum() / (self.right.sum() * self.wrong.sum())
