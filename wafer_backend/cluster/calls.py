"""What a call of a compiled module returns while it learns: values whose backward runs the cluster.

Path a: the module returned a loss, so every leaf has run backward already, and the reduced gradient
waits in MemoryX for the caller's. Path b: it returned something else, and backward replays every
leaf from the caller's gradients. Either way gradients reach `parameter.grad` as autograd's own do.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from wafer_backend.cluster.coordinator import BackwardResult, Coordinator, ForwardResult
from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.outputs import LossRule
from wafer_backend.cluster.tree import Partial
from wafer_backend.cluster.wafer import GlobalBatch
from wafer_backend.errors import StepError

Gradients = Sequence[torch.Tensor | None]


class Call(Protocol):
    """One finished forward pass over a global batch."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What it found, without a graph."""

    def gradients(self, output_gradients: Gradients) -> dict[str, torch.Tensor]:
        """Gradients by parameter name, from those of `tensors`."""


class LossCall:
    """Path a: the sums over all leaves wait for backward, once."""

    def __init__(
        self, memoryx: MemoryX, reduced: BackwardResult, total: Partial, rule: LossRule
    ) -> None:
        loss = reduced.loss
        self._memoryx = memoryx
        self._total: Partial | None = total
        # A pair is returned as a sum, which the caller divides.
        self._divisor = 1.0 if loss.like.kind == "pair" else loss.divisor(rule)
        self._scale = reduced.scale
        value = loss.loss_sum / self._divisor
        self._loss = torch.full_like(loss.like.value, value)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The global loss."""
        return [self._loss]

    def gradients(self, output_gradients: Gradients) -> dict[str, torch.Tensor]:
        """total / D, times the gradient of the loss without the scale that leaves ran with."""
        if self._total is None:
            raise StepError(
                "backward ran a second time on the same loss of a compiled module; its gradients "
                "are delivered only once: add losses up before backward, or call the module again"
            )
        total, self._total = self._total, None
        gradient = output_gradients[0]
        if gradient is None:
            return {}
        return self._memoryx.delivered(total, self._divisor, float(gradient) / self._scale)


class OutputCall:
    """Path b: batch, outputs and buffers wait for backward, which replays every leaf, once."""

    def __init__(
        self, memoryx: MemoryX, coordinator: Coordinator, batch: GlobalBatch, step: int
    ) -> None:
        self._memoryx = memoryx
        self._coordinator = coordinator
        self._batch: GlobalBatch | None = batch
        self._step = step
        self._versions = {name: p._version for name, p in memoryx.parameters.items()}
        self.done: ForwardResult = coordinator.forward(batch, step, learns=True)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The global outputs."""
        return self.done.output.tensors

    def gradients(self, output_gradients: Gradients) -> dict[str, torch.Tensor]:
        """Replay every leaf with its slice of the gradients."""
        if self._batch is None:
            raise StepError(
                "backward ran a second time through outputs of a compiled module; they are "
                "replayed only once: add losses up before backward, or call the module again"
            )
        for name, parameter in self._memoryx.parameters.items():
            if parameter._version != self._versions[name]:
                raise StepError(
                    f"parameter {name!r} was modified in place between forward and backward "
                    f"(version {parameter._version}, expected {self._versions[name]}), so the "
                    "forward pass cannot be run again"
                )
        batch, self._batch = self._batch, None
        if all(gradient is None for gradient in output_gradients):
            return {}
        total = self._coordinator.replay(batch, self._step, self.done, output_gradients)
        return self._memoryx.delivered(total, 1.0)


def with_backward(call: Call, parameters: dict[str, nn.Parameter]) -> list[torch.Tensor]:
    """The tensors of a call, attached to the parameters that are trained."""
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    if not trained:
        return call.tensors
    return list(_Backward.apply(call, list(trained), *trained.values()))  # type: ignore[no-untyped-call]


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, names: list[str], *parameters: nn.Parameter) -> Any:
        ctx.call, ctx.names = call, names
        ctx.set_materialize_grads(False)
        # Aliases: the call would keep its own graph alive, and that graph the call, for ever.
        tensors = [tensor.detach() for tensor in call.tensors]
        ctx.mark_non_differentiable(*(t for t in tensors if not t.is_floating_point()))
        return tuple(tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        by_name = ctx.call.gradients(gradients)
        return (None, None, *(by_name.get(name) for name in ctx.names))
