"""The coordinator: the schedule of a global step and the global gradient norm; no big tensors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from wafer_backend import tree
from wafer_backend.activation_worker import ActivationWorker
from wafer_backend.errors import StepError
from wafer_backend.memoryx import MemoryX
from wafer_backend.partial import Partial
from wafer_backend.swarmx import SwarmX
from wafer_backend.wafer import Wafer

LossScaling = Literal["num_tokens", "batch_size"]


@dataclass(frozen=True)
class LossRule:
    """What the summed gradient is divided by, once, after reduction.

    `num_tokens`: D = counted labels of the global batch. `batch_size`: D = B / loss_weight.
    """

    scaling: LossScaling = "num_tokens"
    weight: float = 1.0

    def divisor(self, n_counted: int, batch_size: int) -> float:
        """D of one global batch."""
        return float(n_counted) if self.scaling == "num_tokens" else batch_size / self.weight


@dataclass(frozen=True)
class StepResult:
    """One finished global step.

    `loss`: nats per counted label (float64 quotient of `loss_sum` and `n_counted`); `grad_norm`:
    global 2-norm before clipping; `leaves_per_csx`: leaves each CS-2 ran, in system order.
    """

    loss: float
    loss_sum: float
    n_counted: int
    grad_norm: float
    leaves_per_csx: tuple[int, ...]


class Coordinator:
    """Runs global steps over its wafers; all state that outlives a step is in MemoryX."""

    def __init__(
        self,
        memoryx: MemoryX,
        swarmx: SwarmX,
        wafers: Sequence[Wafer],
        worker: ActivationWorker,
        rule: LossRule,
    ) -> None:
        self._memoryx = memoryx
        self._swarmx = swarmx
        self._wafers = wafers
        self._worker = worker
        self._rule = rule

    def train_step(
        self,
        batch: Any,
        micro_batch_size: int,
        *,
        step: int,
        learning_rate: float,
        max_gradient_norm: float | None,
        between_leaves: Callable[[], None],
    ) -> StepResult:
        """Forward, backward, reduce, clip, update; an exception leaves the weights as they were."""
        try:
            spans = self._begin(self._worker.load(batch, micro_batch_size), len(self._wafers))
            self._run(spans, between_leaves, lambda w, k, part: w.train_leaf(step, k, part))
            total = self._swarmx.total()
            loss = self._mean_loss(total, step)
            self._memoryx.deliver(
                total, self._rule.divisor(total.n_counted, self._worker.batch_size)
            )
            norm = self._global_norm(step)
            if max_gradient_norm is not None:
                self._clip(norm, max_gradient_norm)
            self._memoryx.apply(learning_rate)
        finally:
            self._memoryx.drop_gradients()
            self._swarmx.abandon()
        counts = tuple(len(span) for span in spans)
        return StepResult(loss, total.loss_sum, total.n_counted, float(norm), counts)

    def evaluate(
        self, batch: Any, micro_batch_size: int, between_leaves: Callable[[], None]
    ) -> tuple[float, int]:
        """(loss sum in nats, counted labels) of one batch, without a graph.

        A batch with fewer leaves than there are wafers leaves the rest idle.
        """
        try:
            leaves = self._worker.load(batch, micro_batch_size)
            spans = self._begin(leaves, min(leaves, len(self._wafers)))
            self._run(spans, between_leaves, lambda w, k, part: w.evaluate_leaf(k, part))
            total = self._swarmx.total()
        finally:
            self._memoryx.drop_gradients()
            self._swarmx.abandon()
        return total.loss_sum, total.n_counted

    def _begin(self, leaves: int, systems: int) -> list[range]:
        spans = tree.spans(systems, leaves)
        self._memoryx.begin_step(spans, leaves)
        self._swarmx.begin_step(leaves)
        return spans

    def _run(
        self,
        spans: list[range],
        between_leaves: Callable[[], None],
        run_leaf: Callable[[Wafer, int, Any], None],
    ) -> None:
        for wafer, span in zip(self._wafers, spans, strict=False):
            with wafer.loaded():
                for leaf in span:
                    run_leaf(wafer, leaf, self._worker.leaf(leaf))
                    between_leaves()

    def _mean_loss(self, total: Partial, step: int) -> float:
        if total.n_counted == 0:
            raise StepError(
                f"step {step}: no label of the global batch counts (D = 0): every loss mask is zero"
            )
        loss = total.loss_sum / total.n_counted
        if not math.isfinite(loss):
            raise StepError(
                f"step {step}: the loss is {loss}; weights are those after step {step - 1}"
            )
        return loss

    def _global_norm(self, step: int) -> torch.Tensor:
        """Norm of the per-tensor norms stacked in parameter order, after division by D (0-d)."""
        norm: torch.Tensor = torch.linalg.vector_norm(self._memoryx.gradient_norms())
        if not bool(torch.isfinite(norm)):
            raise StepError(
                f"step {step}: the gradient norm is {float(norm)}; "
                f"weights are those after step {step - 1}"
            )
        return norm

    def _clip(self, norm: torch.Tensor, limit: float) -> None:
        """Scale gradients to norm <= limit, as torch.nn.utils.clip_grad_norm_ does."""
        factor = limit / (norm + 1e-6)
        self._memoryx.scale_gradients(torch.clamp(factor, max=1.0))
