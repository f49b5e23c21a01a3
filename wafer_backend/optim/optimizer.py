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

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from pydantic import Field
from torch.utils.hooks import RemovableHandle

from wafer_backend.errors import BackendConfigError

__all__ = ["Lamb", "Lion", "Optimizer", "ParameterwiseOptimizer"]

T = TypeVar("T")
Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]
ParamsT = Params
"""As the API calls it."""
Hook = Callable[..., Any]

Share = Annotated[float, Field(ge=0, lt=1)]
Betas = tuple[Share, Share]
Moments = Annotated[Betas, Field(description="decay of the first and the second moment")]
RootEps = Annotated[float, Field(gt=0, description="added to the square root of the second moment")]
CoupledDecay = Annotated[
    float, Field(ge=0, description="this times the weight is added to the gradient")
]
DecoupledDecay = Annotated[
    float,
    Field(
        ge=0,
        description="decoupled: a step shrinks each weight by this times the learning rate",
    ),
]

NOT_SETTINGS = ("lr", "enable_global_step", "correct_bias", "amsgrad", "maximize")
"""Arguments that section `optimizer` of a params file does not have."""


class Optimizer(torch.optim.Optimizer):
    """To write one's own: define `step` and `preinitialize`, or `_allocate` for one parameter.

    The arguments of the class after `params`, except `NOT_SETTINGS`, are its settings in a params
    file, so each has a type; limits and a description are a pydantic `Field` in an `Annotated`
    type. `weight_decay` is given per parameter group. The class variables say the rest.

    With `enable_global_step`, `increment_global_step` counts the steps of each parameter.
    """

    train_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of a params file where they differ from those of the class."""
    not_for_train: ClassVar[str] = ""
    """Why a params file cannot name this optimizer."""
    updates_have_size_of_rate: ClassVar[bool] = False
    """Whether an update is as large as the learning rate, whatever the gradient's size: what the
    learning rates of muP are for."""
    divides_by_root: ClassVar[bool] = False
    """Whether an update is divided by sqrt(v) + `eps`."""
    has_fused_kernel: ClassVar[bool] = False
    """Whether the class of this name in PyTorch has one CUDA kernel for the whole step."""

    @classmethod
    def settings(cls) -> dict[str, inspect.Parameter]:
        """The arguments that are settings of a params file, by name.

        Raises BackendConfigError when the class takes no `lr`, or one has no type.
        """
        _, *arguments = inspect.signature(cls, eval_str=True).parameters.values()
        if all(argument.name != "lr" for argument in arguments):
            raise BackendConfigError(f"{cls.__name__} has no argument lr")
        settings = {a.name: a for a in arguments if a.name not in NOT_SETTINGS}
        for name, argument in settings.items():
            if argument.annotation is inspect.Parameter.empty:
                raise BackendConfigError(f"{cls.__name__}: argument {name} has no type")
        return settings

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
    """Calls `update` on every parameter that has a gradient; `fields` names its state, tensors of
    the parameter's shape that begin as zeros."""

    fields: ClassVar[tuple[str, ...]]

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        name, betas = type(self).__name__, defaults.get("betas", ())
        for option in ("lr", "weight_decay"):
            if defaults.get(option, 0) < 0:
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
        """One update; returns what `closure`, which computes the loss again, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._allocate(group, parameter)
                    self.update(group, parameter, parameter.grad)
        return loss

    def update(self, group: dict[str, Any], p: torch.Tensor, gradient: torch.Tensor) -> None:
        """Change `p` and its state in place; `group` has the settings and the learning rate."""
        raise NotImplementedError(f"{type(self).__name__} must define update")


_LARGEST_NORM = 10.0


class Lamb(ParameterwiseOptimizer):
    """LAMB: Adam whose update has, per parameter, the norm of the parameter; no bias correction."""

    fields = ("exp_avg", "exp_avg_sq")
    divides_by_root = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Moments = (0.9, 0.999),
        eps: RootEps = 1e-6,
        weight_decay: Annotated[
            float, Field(ge=0, description="this times the weight is added to the update")
        ] = 0.0,
        adam: Annotated[
            bool, Field(description="do not scale updates by the ratio of norms")
        ] = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "adam": adam})

    def update(self, group: dict[str, Any], p: torch.Tensor, gradient: torch.Tensor) -> None:
        """One step of LAMB."""
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
    updates_have_size_of_rate = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: Annotated[
            Betas,
            Field(description="decay in the direction of an update, and decay of the momentum"),
        ] = (0.9, 0.99),
        weight_decay: DecoupledDecay = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def update(self, group: dict[str, Any], p: torch.Tensor, gradient: torch.Tensor) -> None:
        """One step of Lion."""
        mean, (beta1, beta2) = self.state[p]["exp_avg"], group["betas"]
        direction = (mean * beta1).add_(gradient, alpha=1 - beta1).sign_()
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(direction, alpha=group["lr"])
        mean.mul_(beta2).add_(gradient, alpha=1 - beta2)
