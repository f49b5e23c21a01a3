"""Accuracy, perplexity and mean."""

from typing import Any

import torch
from torch.nn import functional as F

from wafer_backend.errors import BackendConfigError
from wafer_backend.metrics.base import Metric, classes_of, weights_of, zero


class Accuracy(Metric):
    """Weight of right predictions / weight of all."""

    default_name = "accuracy"
    right: torch.Tensor
    total: torch.Tensor

    def reset(self) -> None:
        """Start again."""
        self.register_state("right", zero())
        self.register_state("total", zero())

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: Any = None,
    ) -> None:
        """Count labels and predicted classes (or logits, classes last), with weights."""
        each = weights_of(labels, weights)
        self.right += (each * (classes_of(predictions, labels) == labels)).sum()
        self.total += each.sum()

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        return self.right / self.total


class Perplexity(Metric):
    """exp(nats per weighted label)."""

    default_name = "perplexity"
    loss_sum: torch.Tensor
    total: torch.Tensor

    def reset(self) -> None:
        """Start again."""
        self.register_state("loss_sum", zero())
        self.register_state("total", zero())

    def update(
        self,
        labels: torch.Tensor,
        loss: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        dtype: Any = None,
        *,
        logits: torch.Tensor | None = None,
    ) -> None:
        """Count labels with the `loss` in nats summed over them (weighted), or with `logits`."""
        each = weights_of(labels, weights)
        if (loss is None) == (logits is None):
            raise BackendConfigError("Perplexity: give loss (summed over the labels) or logits")
        if logits is not None:
            nats = F.cross_entropy(
                logits.double().flatten(0, -2), labels.flatten().long(), reduction="none"
            )
            self.loss_sum += (nats * each.flatten()).sum()
        elif loss is not None:
            self.loss_sum += loss.double().sum()
        self.total += each.sum()

    def compute(self) -> torch.Tensor:
        """At least 1."""
        return torch.exp(self.loss_sum / self.total)


class Mean(Metric):
    """Weighted mean of values."""

    default_name = "mean"
    value_sum: torch.Tensor
    total: torch.Tensor

    def reset(self) -> None:
        """Start again."""
        self.register_state("value_sum", zero())
        self.register_state("total", zero())

    def update(
        self, values: torch.Tensor | float, weights: torch.Tensor | None = None, dtype: Any = None
    ) -> None:
        """Count values, with weights of their shape."""
        each = torch.as_tensor(values, dtype=torch.float64, device=self.total.device)
        heavy = weights_of(each, weights)
        self.value_sum += (each * heavy).sum()
        self.total += heavy.sum()

    def compute(self) -> torch.Tensor:
        """The mean."""
        return self.value_sum / self.total
