"""Metrics of a confusion matrix."""

from typing import Any, Literal

import torch

from wafer_backend.metrics.base import Metric, classes_of, weights_of, zero


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
        each = weights_of(labels, weights)
        valid = (labels >= 0) & (labels < self.num_classes)
        cells = labels[valid].long() * self.num_classes
        cells = cells + classes_of(predictions, labels)[valid].long()
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
