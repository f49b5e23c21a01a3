"""The base of all optimizers: state that exists before the first step, and hooks of zero_grad.

State is PyTorch's: `optimizer.state[parameter][field]`, tensors only, so MemoryX saves it by
parameter name. Preinitialized or not, an optimizer takes the same steps bit for bit.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

T = TypeVar("T")
Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]
Hook = Callable[..., Any]


class Optimizer(torch.optim.Optimizer):
    """To write one's own: define `step` and `preinitialize`, or `_allocate` for one parameter.

    With `enable_global_step`, `increment_global_step` counts the steps of each parameter.
    """

    def __init__(
        self, params: Params, defaults: dict[str, Any], enable_global_step: bool = False
    ) -> None:
        super().__init__(params, defaults)
        self.enable_global_step = enable_global_step

    def preinitialize(self) -> None:
        """Allocate the state of every trained parameter that has none yet."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._allocate(group, parameter)

    def _allocate(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define preinitialize")

    def visit_state(self, fn: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Call `fn` on every tensor of the state; what it returns, unless None, replaces it."""
        for fields in self.state.values():
            for name, value in fields.items():
                new = fn(value)
                if new is not None:
                    fields[name] = new

    def apply(self, fn: Callable[["Optimizer"], T]) -> T:
        """`fn(self)`, as in `optimizer.apply(sparsity)`."""
        return fn(self)

    def increment_global_step(self, p: torch.Tensor) -> torch.Tensor:
        """Count one more step of `p`; returns its count, a float32 0-d tensor of its state."""
        if not self.enable_global_step:
            raise RuntimeError(
                f"{type(self).__name__} does not count steps; pass enable_global_step=True to its "
                "base class"
            )
        step = self.state[p].setdefault("step", torch.zeros((), dtype=torch.float32))
        return step.add_(1)  # type: ignore[no-any-return]

    def register_zero_grad_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Before zero_grad, hook(optimizer, args, kwargs) -> None or new (args, kwargs)."""
        return self._add_hook("_zero_grad_pre_hooks", hook)

    def register_zero_grad_post_hook(self, hook: Hook) -> RemovableHandle:
        """After zero_grad, hook(optimizer, args, kwargs)."""
        return self._add_hook("_zero_grad_post_hooks", hook)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """PyTorch's zero_grad between the hooks."""
        for hook in self._hooks("_zero_grad_pre_hooks").values():
            changed = hook(self, args, kwargs)
            if changed is not None:
                args, kwargs = changed
        super().zero_grad(*args, **kwargs)
        for hook in self._hooks("_zero_grad_post_hooks").values():
            hook(self, args, kwargs)

    def _add_hook(self, kind: str, hook: Hook) -> RemovableHandle:
        handle = RemovableHandle(self._hooks(kind))
        self._hooks(kind)[handle.id] = hook
        return handle

    def _hooks(self, kind: str) -> OrderedDict[int, Hook]:
        """Made on first use: a copied optimizer comes without them, as PyTorch's hooks do."""
        hooks: OrderedDict[int, Hook] = self.__dict__.setdefault(kind, OrderedDict())
        return hooks
