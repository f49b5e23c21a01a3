"""Optimizers of our own: one update rule per parameter, of tensors that begin as zeros."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from wafer_backend.errors import BackendConfigError
from wafer_backend.optim.optimizer import Optimizer, Params


class ParameterwiseOptimizer(Optimizer):
    """Applies `_update` to every parameter that has a gradient; `fields` are its state."""

    fields: ClassVar[tuple[str, ...]]

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        name, betas = type(self).__name__, defaults["betas"]
        for option in ("lr", "weight_decay"):
            if defaults[option] < 0:
                raise BackendConfigError(
                    f"{name}: {option} is {defaults[option]}; expected 0 or more"
                )
        if not all(0 <= beta < 1 for beta in betas):
            raise BackendConfigError(f"{name}: betas are {betas}; expected each in [0, 1)")
        super().__init__(params, defaults)

    def _allocate(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        state = self.state[parameter]
        for field in self.fields:
            if field not in state:
                state[field] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; returns what `closure`, which computes the loss anew, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._allocate(group, parameter)
                    self._update(group, parameter, parameter.grad)
        return loss

    def _update(self, group: dict[str, Any], p: torch.Tensor, gradient: torch.Tensor) -> None:
        raise NotImplementedError
