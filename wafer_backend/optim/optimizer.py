"""The base of all optimizers, and those of our own: LAMB and Lion.

State exists before the first step and is PyTorch's: `optimizer.state[parameter][field]`, tensors
only, so MemoryX saves it by parameter name. Preinitialized or not, an optimizer takes the same
steps bit for bit. An optimizer of our own is one update rule per parameter, of tensors that begin
as zeros.

LAMB, You et al., arXiv 1904.00962, algorithm 2 without bias correction:

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  u = m / (sqrt(v) + eps) + weight_decay p
    p = p - lr * ratio * u,  ratio = min(|p|, 10) / |u|, and 1 where either norm is 0

The bound of 10 on |p| is the paper's scaling function phi as widely used implementations have it.

Lion, Chen et al., arXiv 2302.06675, algorithm 2:

    p = p (1 - lr weight_decay) - lr sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from wafer_backend.errors import BackendConfigError

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


_LARGEST_NORM = 10.0


class Lamb(ParameterwiseOptimizer):
    """Adam whose update has, per parameter, the norm of the parameter. `adam`: ratio 1."""

    fields = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "adam": adam})

    def _update(self, group: dict[str, Any], p: torch.Tensor, gradient: torch.Tensor) -> None:
        state, (beta1, beta2) = self.state[p], group["betas"]
        mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = mean / (square.sqrt().add_(group["eps"]))
        if group["weight_decay"]:
            update.add_(p, alpha=group["weight_decay"])
        if not group["adam"]:
            norm, update_norm = p.norm().clamp(max=_LARGEST_NORM), update.norm()
            update.mul_(torch.where((norm > 0) & (update_norm > 0), norm / update_norm, 1.0))
        p.sub_(update, alpha=group["lr"])


class Lion(ParameterwiseOptimizer):
    """Signs of a momentum that looks ahead; one buffer for each parameter."""

    fields = ("exp_avg",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _update(self, group: dict[str, Any], p: torch.Tensor, gradient: torch.Tensor) -> None:
        mean, (beta1, beta2) = self.state[p]["exp_avg"], group["betas"]
        direction = (mean * beta1).add_(gradient, alpha=1 - beta1).sign_()
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(direction, alpha=group["lr"])
        mean.mul_(beta2).add_(gradient, alpha=1 - beta2)
