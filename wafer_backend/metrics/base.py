"""`Metric`, the base class of all metrics; those that are means: accuracy, perplexity, mean; and
those of classification, of a confusion matrix and of how well scores rank: precision and recall of
the k highest, and the area under the ROC curve.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from wafer_backend.errors import BackendConfigError

_known: "weakref.WeakValueDictionary[str, Metric]" = weakref.WeakValueDictionary()


class Metric(nn.Module):
    """A value over many batches. A subclass registers its state in `reset`, adds to it in
    `update` and returns its value in `compute`.

    Calling the metric updates it and returns its value so far. States are buffers that are not
    saved with the model and keep their dtype when the module is cast. `num_updates`: calls since
    `reset`.
    """

    num_updates: int = 0

    _initial: dict[str, torch.Tensor]
    default_name: ClassVar[str] = "metric"

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self._initial = {}
        self.name = self.default_name if name is None else name
        _known[self.name] = self
        self.reset()

    def register_state(self, name: str, tensor: torch.Tensor, persistent: bool = False) -> None:
        """A state that `reset` starts from; registered again, it is set to that value."""
        self.num_updates = 0
        if name in self._initial:
            getattr(self, name).copy_(tensor)
            return
        self._initial[name] = tensor.detach().clone()
        self.register_buffer(name, tensor.detach().clone(), persistent=persistent)

    def reset(self) -> None:
        """Start again. A subclass calls `register_state` here, or in its constructor."""
        self.num_updates = 0
        for name, value in self._initial.items():
            getattr(self, name).copy_(value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Count a batch in."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    def compute(self) -> torch.Tensor:
        """The value of all that was counted; NaN when nothing was."""
        raise NotImplementedError(f"{type(self).__name__}.compute")

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """`update`, then `compute`."""
        self.num_updates += 1
        self.update(*args, **kwargs)
        return self.compute()

    def __float__(self) -> float:
        return float(self.compute())

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "Metric":
        """Move states to another device but never to another dtype."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, state in before.items():
            moved = getattr(self, name)
            if moved.dtype != state.dtype:
                setattr(self, name, state.to(moved.device))
        return self


def get_all_metrics() -> list[tuple[str, Metric]]:
    """The metrics there are, each after its name."""
    return list(_known.items())


def compute_all_metrics() -> dict[str, torch.Tensor]:
    """The value of each metric there is, by its name, in its state's dtype."""
    return {name: metric.compute() for name, metric in get_all_metrics()}


def zero(*shape: int) -> torch.Tensor:
    """A float64 sum."""
    return torch.zeros(shape, dtype=torch.float64)


def fill_weights(labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Weights in float64 with the shape of the labels; ones when not given."""
    if weights is None:
        return torch.ones_like(labels, dtype=torch.float64)
    return weights.to(torch.float64).expand_as(labels)


def predict_classes(predictions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Predicted classes: `predictions`, or their argmax when they are logits (one more
    dimension, classes last).
    """
    return predictions.argmax(-1) if predictions.dim() == labels.dim() + 1 else predictions


class QuotientMetric(Metric):
    """A quotient of two sums, to which `update` adds what a batch has."""

    part: torch.Tensor
    total: torch.Tensor

    def reset(self) -> None:
        """Start again."""
        self.register_state("part", zero())
        self.register_state("total", zero())

    def add(self, part: torch.Tensor, total: torch.Tensor) -> None:
        """Add all elements of both to the sums."""
        self.part += part.sum()
        self.total += total.sum()

    def compute(self) -> torch.Tensor:
        """part / total."""
        return self.part / self.total


class Accuracy(QuotientMetric):
    """Weight of right predictions / weight of all."""

    default_name = "accuracy"

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: Any = None,
    ) -> None:
        """Count labels and predicted classes (or logits, classes last), with weights."""
        each = fill_weights(labels, weights)
        self.add(each * (predict_classes(predictions, labels) == labels), each)


class Perplexity(QuotientMetric):
    """exp(nats per weighted label)."""

    default_name = "perplexity"

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
        each = fill_weights(labels, weights)
        if (loss is None) == (logits is None):
            raise BackendConfigError("Perplexity: give loss (summed over the labels) or logits")
        if logits is not None:
            flat = logits.double().flatten(0, -2)
            nats = F.cross_entropy(flat, labels.flatten().long(), reduction="none")
            self.add(nats * each.flatten(), each)
        elif loss is not None:
            self.add(loss.double(), each)

    def compute(self) -> torch.Tensor:
        """At least 1."""
        return torch.exp(super().compute())


class Mean(QuotientMetric):
    """Weighted mean of values."""

    default_name = "mean"

    def update(
        self, values: torch.Tensor | float, weights: torch.Tensor | None = None, dtype: Any = None
    ) -> None:
        """Count values, with weights of their shape."""
        each = torch.as_tensor(values, dtype=torch.float64, device=self.total.device)
        heavy = fill_weights(each, weights)
        self.add(each * heavy, heavy)


class ConfusionMatrix(Metric):
    """Weights by (label, prediction); labels outside 0 … num_classes - 1 do not count."""

    matrix: torch.Tensor

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        *,
        ignored: Sequence[int] | None = None,
    ) -> None:
        wrong = [each for each in ignored or () if not 0 <= each < num_classes]
        if wrong:
            raise BackendConfigError(
                f"{type(self).__name__}: there is no class {wrong[0]} to ignore; num_classes is "
                f"{num_classes}"
            )
        self.num_classes = num_classes
        self.considered = [each for each in range(num_classes) if each not in (ignored or ())]
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
        """Per class that is considered: right, labelled so, predicted so."""
        counts = self.matrix.diagonal(), self.matrix.sum(1), self.matrix.sum(0)
        right, labelled, predicted = (each[self.considered] for each in counts)
        return right, labelled, predicted


class MeanPerClassAccuracy(ConfusionMatrix):
    """Mean over the classes that occur of right / labelled."""

    default_name = "mean_per_class_accuracy"

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        right, labelled, _ = self._counts()
        return (right / labelled)[labelled > 0].mean()


class MeanIOU(ConfusionMatrix):
    """Mean over the classes that occur, without `ignore_classes`, of intersection / union."""

    default_name = "mean_iou"

    def __init__(
        self,
        num_classes: int,
        ignore_classes: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_classes, name, ignored=ignore_classes)

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        right, labelled, predicted = self._counts()
        union = labelled + predicted - right
        return (right / union)[union > 0].mean()


class Dice(ConfusionMatrix):
    """Mean over the classes that occur, without `ignore_classes`, of 2 · intersection / (labelled +
    predicted)."""

    default_name = "dice"

    def __init__(
        self,
        num_classes: int,
        ignore_classes: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_classes, name, ignored=ignore_classes)

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        right, labelled, predicted = self._counts()
        both = labelled + predicted
        return (2 * right / both)[both > 0].mean()


class FBeta(ConfusionMatrix):
    """(1 + b²) · precision · recall / (b² · precision + recall), "micro" over all labels or
    "macro" as the mean over the classes, of which one that does not occur has 0; both without the
    classes `ignore_labels`. Source: `fbeta_score.py` of Model Zoo R1.8.
    """

    default_name = "fbeta"

    def __init__(
        self,
        num_classes: int,
        beta: float = 1.0,
        average_type: Literal["micro", "macro"] = "micro",
        ignore_labels: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_classes, name, ignored=ignore_labels)
        self.beta = beta
        self.average_type = average_type

    def compute(self) -> torch.Tensor:
        """Between 0 and 1."""
        right, labelled, predicted = self._counts()
        if self.average_type == "micro":
            right, labelled, predicted = right.sum(), labelled.sum(), predicted.sum()
        weight = self.beta**2
        score = (1 + weight) * right / (weight * labelled + predicted)
        return score.nan_to_num(nan=0.0).mean()


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
