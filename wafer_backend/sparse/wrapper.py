"""An optimizer and the sparsity of its weights as one: the spelling of R2.0."""

from typing import Any

import torch
from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse.configure import SparsityOptimizer, configure_sparsity_optimizer

__all__ = ["SparsityWrapperOptimizer", "configure_sparsity_wrapper"]


class SparsityWrapperOptimizer(torch.optim.Optimizer):
    """Steps `optimizer`, then `sparsity_optimizer`; all else is the optimizer's own: groups, state,
    hooks, what a schedule sets. `state_dict` is the optimizer's with `sparsity` next to it."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, sparsity_optimizer: SparsityOptimizer
    ) -> None:
        self.__dict__.update(_optimizer=optimizer, _sparsity_optimizer=sparsity_optimizer)
        sparsity_optimizer.manage_optimizer_state_sparsity(optimizer)

    def __getattr__(self, name: str) -> Any:
        if name in ("_optimizer", "_sparsity_optimizer"):  # not made yet: copies, pickles
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name == "step" or name.startswith("_") or name in self.__dict__
        object.__setattr__(self if own else self._optimizer, name, value)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One step of both; returns what the optimizer's does."""
        result = self._optimizer.step(*args, **kwargs)
        self._sparsity_optimizer.step()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of both."""
        self._optimizer.zero_grad(set_to_none)
        self._sparsity_optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and `sparsity`."""
        state: dict[str, Any] = self._optimizer.state_dict()
        return state | {"sparsity": self._sparsity_optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict()`; without `sparsity`, masks stay as they are."""
        state = dict(state_dict)
        sparsity = state.pop("sparsity", None)
        self._optimizer.load_state_dict(state)
        if sparsity is not None:
            self._sparsity_optimizer.load_state_dict(sparsity)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Give the optimizer more parameters, which stay dense."""
        self._optimizer.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"{self._optimizer!r} with {type(self._sparsity_optimizer).__name__}"


def configure_sparsity_wrapper(
    model: nn.Module, optimizer: torch.optim.Optimizer, sparsity_type: str, **arguments: Any
) -> SparsityWrapperOptimizer:
    """Make parameters of a model sparse, and an optimizer of it keep them so, in one call.

    The arguments are those of `configure_sparsity_optimizer`, whose errors it raises.
    """
    if not isinstance(model, nn.Module):
        raise BackendConfigError(f"expected a torch.nn.Module, got {type(model).__name__}")
    named = model.named_parameters()
    sparsity = configure_sparsity_optimizer(sparsity_type, named, **arguments)
    sparsity.hook_module(model)
    return SparsityWrapperOptimizer(optimizer, sparsity)
