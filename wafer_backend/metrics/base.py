"""`Metric`, the base class of all metrics, and those that are means: accuracy, perplexity, mean."""

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from wafer_backend.errors import BackendConfigError

_known: "weakref.WeakValueDictionary[str, Metric]" = weakref.WeakValueDictionary()


class Metric(nn.Module):
    """A value over many batches. A subclass registers its state in `reset`, adds to it in
    `update` and returns its value in `compute`.

    Calling the metric updates it and returns its value so far. States are buffers that are not
    saved with the model and keep their dtype when the module is cast.
    """

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
        if name in self._initial:
            getattr(self, name).copy_(tensor)
            return
        self._initial[name] = tensor.detach().clone()
        self.register_buffer(name, tensor.detach().clone(), persistent=persistent)

    def reset(self) -> None:
        """Start again. A subclass calls `register_state` here, or in its constructor."""
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


def get_all_metrics() -> dict[str, Metric]:
    """The metrics there are, by name."""
    return dict(_known)


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
