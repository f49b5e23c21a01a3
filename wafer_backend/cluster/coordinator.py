"""The coordinator: the schedule of a global step and the global gradient norm; no big tensors."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wafer_backend.cluster import tree
from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.outputs import (
    GlobalLoss,
    GlobalOutput,
    LeafLoss,
    LossReduction,
    LossRule,
    OtherPath,
    check_counted,
    check_finite,
    check_same_kind,
    join_outputs,
    leaf_loss,
)
from wafer_backend.cluster.precision import LossScale
from wafer_backend.cluster.transport import ClusterTransport
from wafer_backend.cluster.tree import Partial
from wafer_backend.cluster.wafer import ActivationWorker, GlobalBatch, Leaf, Wafer
from wafer_backend.errors import StepError
from wafer_backend.streaming.attachment import Buffers, Snapshot

__all__ = ["BackwardResult", "Coordinator", "ForwardResult", "LossRule", "StepResult"]

BetweenLeaves = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One finished global step.

    `loss`: nats per counted label (float64 quotient of `loss_sum` and `n_counted`); `grad_norm`:
    global 2-norm before clipping; `leaves_per_csx`: leaves each CS-2 ran, in system order;
    `loss_scale`: what the backward pass was scaled by; `skipped`: fp16 only, the gradient was not
    finite and nothing was updated.
    """

    loss: float
    loss_sum: float
    n_counted: int
    grad_norm: float
    leaves_per_csx: tuple[int, ...]
    loss_scale: float = 1.0
    skipped: bool = False


@dataclass(frozen=True)
class BackwardResult:
    """Forward and backward of a global batch: its loss; what was summed waits in the transport.

    Gradients are those of `scale` times the loss sum.
    """

    loss: GlobalLoss
    scale: float
    leaves_per_csx: tuple[int, ...]


@dataclass(frozen=True)
class ForwardResult:
    """Forward of a global batch: its output, and the buffers that each leaf saw."""

    output: GlobalOutput
    buffers: Mapping[int, Snapshot]


@dataclass(kw_only=True)
class Coordinator:
    """Runs global steps over its wafers; all state that outlives a step is in MemoryX."""

    memoryx: MemoryX
    transport: ClusterTransport
    wafers: Sequence[Wafer]
    worker: ActivationWorker
    buffers: Buffers
    rule: LossRule
    reduction: LossReduction
    threads: int

    def train_step(
        self,
        batch: GlobalBatch,
        *,
        step: int,
        learning_rate: float,
        max_gradient_norm: float | None,
        between_leaves: BetweenLeaves,
        scaler: LossScale | None,
    ) -> StepResult:
        """Forward, backward, reduce, clip, update; an exception leaves the weights as they were."""
        scale = 1.0 if scaler is None else scaler.scale
        with (
            self.buffers.restored_on_error(),
            self._gradients_dropped(),
            self.reduced(batch, step, scale, between_leaves, strict=True) as reduced,
        ):
            check_finite("loss", reduced.loss.mean, step)
            norm = self._deliver(reduced.loss.divisor(self.rule) * scale)
            if scaler is None:
                check_finite("gradient norm", float(norm), step)
            finite = bool(torch.isfinite(norm))
            if finite:
                limit, factor = max_gradient_norm, None
                if limit is not None:  # as torch.nn.utils.clip_grad_norm_ does
                    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
                self.transport.update(learning_rate, factor)
        if scaler is not None:
            scaler.update(finite)
        return StepResult(
            loss=reduced.loss.mean,
            loss_sum=reduced.loss.loss_sum,
            n_counted=reduced.loss.n_counted,
            grad_norm=float(norm),
            leaves_per_csx=reduced.leaves_per_csx,
            loss_scale=scale,
            skipped=not finite,
        )

    def evaluate(self, batch: GlobalBatch, between_leaves: BetweenLeaves) -> tuple[float, int]:
        """(loss sum in nats, counted labels) of one batch, without a graph.

        A batch with fewer leaves than there are wafers leaves the rest idle.
        """

        def run_leaf(wafer: Wafer, leaf: Leaf) -> None:
            wafer.evaluate(leaf)
            between_leaves()

        with self._reducing(self._spans(batch, idle=True), batch.leaves) as spans:
            self._run(batch, spans, 0, run_leaf)
            return self.transport.sums()

    @contextlib.contextmanager
    def reduced(
        self,
        batch: GlobalBatch,
        step: int,
        scale: float,
        between_leaves: BetweenLeaves,
        *,
        strict: bool,
    ) -> Iterator[BackwardResult]:
        """Forward and at once backward of every leaf (path a); inside, the transport has the sums.

        Raises OtherPath, unless `strict`, when the module returns no loss for the first leaf.
        """
        losses: list[LeafLoss] = []

        def run_leaf(wafer: Wafer, leaf: Leaf) -> None:
            loss = wafer.train(leaf, scale, strict=strict)
            check_same_kind([*losses[:1], loss], step)
            losses.append(loss)
            between_leaves()

        with self._reducing(self._spans(batch), batch.leaves) as spans:
            self._run(batch, spans, step, run_leaf)
            loss_sum, n_counted = self.transport.sums()
            check_counted(n_counted, step)
            global_loss = GlobalLoss(loss_sum, n_counted, batch.batch_size, losses[0])
            yield BackwardResult(global_loss, scale, tuple(len(span) for span in spans))

    def total(self) -> Partial:
        """The sums over all leaves with their gradients, inside `reduced`."""
        return self.transport.total()

    def forward(self, batch: GlobalBatch, step: int, *, learns: bool) -> ForwardResult:
        """Forward of every leaf without a graph; wafers may be idle unless it `learns`.

        Raises OtherPath when it `learns` and the module returns a loss.
        """
        seen: dict[int, Snapshot] = {}
        ran: dict[int, Any] = {}

        def run_leaf(wafer: Wafer, leaf: Leaf) -> None:
            if learns:
                seen[leaf.index] = self.buffers.snapshot()
            ran[leaf.index] = output = wafer.forward(leaf)
            if learns and leaf_loss(output, leaf.samples, self.reduction) is not None:
                raise OtherPath

        self._run(batch, self._spans(batch, idle=not learns), step, run_leaf)
        outputs = self.transport.gather(ran)
        samples = [len(batch.samples(leaf)) for leaf in range(batch.leaves)]
        loss = leaf_loss(outputs[0], samples[0], self.reduction)
        adds_up = loss is not None and loss.kind != "mean"
        output = join_outputs(outputs, samples, scalars="sum" if adds_up else "mean")
        return ForwardResult(output, seen)

    def replay(
        self,
        batch: GlobalBatch,
        step: int,
        done: ForwardResult,
        gradients: Sequence[torch.Tensor | None],
    ) -> Partial:
        """Forward again with a graph, and backward, of every leaf (path b); sums of gradients."""

        def run_leaf(wafer: Wafer, leaf: Leaf) -> None:
            with self.buffers.swapped(done.buffers[leaf.index]):
                wafer.replay(
                    leaf, lambda output: done.output.leaf_gradients(leaf.index, output, gradients)
                )

        with self._reducing(self._spans(batch), batch.leaves) as spans:
            self._run(batch, spans, step, run_leaf)
            return self.transport.total()

    def _spans(self, batch: GlobalBatch, *, idle: bool = False) -> list[range]:
        """Leaves of every wafer; raises BackendConfigError when one has none, unless `idle`."""
        systems = len(self.wafers)
        return tree.split_leaves(min(batch.leaves, systems) if idle else systems, batch.leaves)

    @contextlib.contextmanager
    def _reducing(self, spans: list[range], leaves: int) -> Iterator[list[range]]:
        """Lanes and tree are ready inside; nothing of an abandoned step is left after it."""
        self.transport.begin(spans, leaves)
        try:
            yield spans
        finally:
            self.transport.end()

    @contextlib.contextmanager
    def _gradients_dropped(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.transport.drop()

    def _run(
        self,
        batch: GlobalBatch,
        spans: list[range],
        step: int,
        run_leaf: Callable[[Wafer, Leaf], None],
    ) -> None:
        torch.set_num_threads(self.threads)
        before = self.buffers.snapshot() if self.transport.processes > 1 else {}
        order = self.transport.order(spans, by_leaf=self.buffers.any)
        with self.memoryx.streaming():
            for system, turns in itertools.groupby(order, key=lambda turn: turn[0]):
                wafer = self.wafers[system]
                with wafer.loaded():
                    for _, index in turns:
                        arguments = self.worker.leaf(batch, index)
                        run_leaf(wafer, Leaf(step, index, len(batch.samples(index)), arguments))
        self.buffers.check_unchanged(before)

    def _deliver(self, divisor: float) -> torch.Tensor:
        """Gradients are in their places after it; their global norm, in parameter order (0-d)."""
        norms = self.transport.deliver(divisor)
        if not norms:
            raise StepError("no parameter received a gradient")
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(list(norms.values())))
        return norm
