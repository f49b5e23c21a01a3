"""MemoryX: where the parameters, their gradients and the optimizer live.

It streams copies of weights out, receives leaf gradients, adds them up in host memory like a
binary counter (one lane per CS-2, so the wafer never holds an accumulated gradient), hands
maximal nodes to SwarmX, and applies the reduced gradient with an ordinary PyTorch optimizer.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.partial import Partial, add
from wafer_backend.tree import Combiner, Node

SendPartial = Callable[[Node, Partial], None]


class MemoryX:
    """Master weights and optimizer state, by parameter name in `named_parameters` order."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        self.optimizer: torch.optim.Optimizer | None = None
        self._lanes: list[Combiner[Partial]] = []
        self._leaf_gradients: dict[int, dict[str, torch.Tensor]] = {}

    # Weights out.

    def weight(self, name: str) -> torch.Tensor:
        """A copy of one master weight with storage of its own; shape and dtype of the parameter."""
        return self.parameters[name].detach().clone()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all master weights."""
        return sum(p.numel() * p.element_size() for p in self.parameters.values())

    # Gradients in.

    def begin_step(self, spans: list[range], leaves: int) -> None:
        """Prepare one lane per CS-2; `spans` are the leaves of each."""
        self._lanes = [Combiner(leaves, span, add) for span in spans]
        self._leaf_gradients = {}

    def receive_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """Take one gradient of one leaf; a weight used several times arrives several times."""
        gradients = self._leaf_gradients.setdefault(leaf, {})
        known = gradients.get(name)
        gradients[name] = gradient if known is None else torch.add(known, gradient)

    def finish_leaf(
        self, system: int, leaf: int, loss_sum: float, n_counted: int, send: SendPartial
    ) -> None:
        """Count a finished leaf into its lane; completed maximal nodes are sent to SwarmX."""
        partial = Partial(self._leaf_gradients.pop(leaf, {}), loss_sum, n_counted)
        for node, value in self._lanes[system].push(Node(0, leaf), partial):
            send(node, value)

    @property
    def gradient_sets(self) -> int:
        """Gradient sets alive in the lanes."""
        return sum(len(lane) for lane in self._lanes)

    # The update.

    def deliver(self, total: Partial, divisor: float) -> None:
        """Put the reduced gradient, divided once by D, into `parameter.grad`."""
        for name, parameter in self.parameters.items():
            gradient = total.gradients.get(name)
            parameter.grad = None if gradient is None else torch.div(gradient, divisor)

    def gradient_norms(self) -> torch.Tensor:
        """The 2-norm of every parameter's gradient, (P,) fp32, in parameter order."""
        norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for _, g in self._gradients()]
        if not norms:
            raise StepError("no parameter received a gradient")
        return torch.stack(norms)

    def scale_gradients(self, factor: torch.Tensor) -> None:
        """Multiply every gradient by a 0-d factor, in place."""
        for _, gradient in self._gradients():
            gradient.mul_(factor)

    def apply(self, learning_rate: float) -> None:
        """One optimizer step at `learning_rate`; gradients are gone after it."""
        if self.optimizer is None:
            raise StepError("MemoryX has no optimizer; set `memoryx.optimizer` before training")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget all gradients, of a finished or an abandoned step."""
        self._lanes, self._leaf_gradients = [], {}
        for parameter in self.parameters.values():
            parameter.grad = None

    # State.

    def optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Optimizer state keyed by parameter name, then by the optimizer's own field names."""
        if self.optimizer is None:
            return {}
        states = self.optimizer.state
        return {name: dict(states[p]) for name, p in self.parameters.items() if p in states}

    def load(
        self,
        weights: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """Overwrite weights and, if given, optimizer state.

        Raises BackendConfigError naming a parameter that is missing, unknown or of another shape.
        """
        self._check_names(weights)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])
        if optimizer_state is not None and self.optimizer is not None:
            self.optimizer.state.clear()
            for name, fields in optimizer_state.items():
                parameter = self.parameters[name]
                self.optimizer.state[parameter] = {
                    key: value.to(parameter.device) if value.shape == parameter.shape else value
                    for key, value in fields.items()
                }

    def _check_names(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name in sorted(self.parameters.keys() ^ weights.keys()):
            missing = (
                "is not in the checkpoint" if name in self.parameters else "is not in the model"
            )
            raise BackendConfigError(f"parameter {name!r} {missing}")
        for name, parameter in self.parameters.items():
            if parameter.shape != weights[name].shape:
                raise BackendConfigError(
                    f"parameter {name!r}: the model has shape {tuple(parameter.shape)}, "
                    f"the checkpoint {tuple(weights[name].shape)}"
                )

    def _gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                yield name, parameter.grad
