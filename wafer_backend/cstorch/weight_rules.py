"""What scripts put on weights by `model.apply(rule)`: which of their elements learn, and the format
that they travel in.

Both act on the parameters that a filter takes: a glob, globs, or a function of name and parameter.
Sources: `SelectiveGrad` and `Compression` of `cerebras.pytorch`, R2.10.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.backends.current import say_without_effect
from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse.algorithms import root_of_apply
from wafer_backend.sparse.selection import ParameterFilter, check_some, make_filter
from wafer_backend.sparse.selection import select_parameters as select

__all__ = ["FORMATS", "Compression", "SelectiveGrad", "outlier"]

InitMethod = Callable[[nn.Parameter], torch.Tensor]
Filter = str | Sequence[str] | ParameterFilter

FORMATS = ("mx8", "mx8-e3m4", "mx8-e4m3", "mx9", "mx10", "mx10-e2m7")
_OUTLIER = 2.25


def outlier(parameter: nn.Parameter) -> torch.Tensor:
    """Bool of the parameter's shape: |w| is at least 2.25 standard deviations of |w| along
    dimension 0, that is for each input of a linear layer."""
    size = parameter.detach().abs()
    return size >= _OUTLIER * size.std(dim=0, keepdim=True)


class SelectiveGrad:
    """Only some elements of weights learn: the gradient of the others is 0, a step of an optimizer
    sees them, and its state for them, as 0, and puts them back as they were.

    `init_method`: "outlier", or a function of a parameter that returns a bool of its shape, true
    where it learns. The masks are buffers of the modules, `WEIGHT_requires_grad`, so that
    checkpoints have them.
    """

    def __init__(self, param_filter: Filter, init_method: str | InitMethod = "outlier") -> None:
        if isinstance(init_method, str) and init_method != "outlier":
            near = did_you_mean_or_all(init_method, ["outlier"])
            raise BackendConfigError(f"SelectiveGrad: unknown init_method {init_method!r}{near}")
        self._given = param_filter
        self._init_method = outlier if isinstance(init_method, str) else init_method
        self._masks: dict[int, Callable[[], torch.Tensor | None]] = {}
        self._aside: dict[int, torch.Tensor] = {}

    def __call__(self, module: nn.Module) -> None:
        """What `nn.Module.apply` calls for each module inside."""
        if module is root_of_apply(module, self):
            self.apply(module)

    def apply(self, module: nn.Module) -> None:
        """Choose the elements of the parameters that the filter takes; those that have a mask from
        here keep it. Raises BackendConfigError when it takes none, or for a wrong mask."""
        chosen = select(module, make_filter(self._given))
        check_some(chosen, self._given)
        if not self._masks:
            self._hook_optimizers()
        for name, parameter in chosen:
            if id(parameter) not in self._masks:
                self._choose(module, name, parameter)

    def _choose(self, module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        mask = self._init_method(parameter)
        if mask.dtype != torch.bool or mask.shape != parameter.shape:
            raise BackendConfigError(
                f"SelectiveGrad: init_method returned {mask.dtype} {tuple(mask.shape)} for "
                f"{name!r}; expected bool {tuple(parameter.shape)}"
            )
        path, _, last = name.rpartition(".")
        owner, buffer = module.get_submodule(path), f"{last}_requires_grad"
        owner.register_buffer(buffer, mask)
        alive = weakref.ref(owner)

        def current() -> torch.Tensor | None:
            module = alive()
            return None if module is None else module._buffers[buffer]

        self._masks[id(parameter)] = current

        # The parameter holds its hook, and the hook this rule, which hooks of optimizers do not.
        def select_gradient(gradient: torch.Tensor, rule: object = self) -> torch.Tensor:
            learns = current()
            return gradient if learns is None else gradient.masked_fill(~learns, 0)

        parameter.register_hook(select_gradient)  # type: ignore[no-untyped-call]

    def _hook_optimizers(self) -> None:
        """Of all optimizers, as a module does not know its own."""
        alive = weakref.ref(self)

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if (rule := alive()) is not None:
                rule._set_aside(optimizer)

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if (rule := alive()) is not None:
                rule._put_back(optimizer)

        for handle in (
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ):
            weakref.finalize(self, handle.remove)

    @torch.no_grad()
    def _set_aside(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter, learns in self._of(optimizer):
            self._aside[id(parameter)] = parameter.detach().clone()
            state = optimizer.state.get(parameter, {}).values()
            alike = [s for s in state if torch.is_tensor(s) and s.shape == parameter.shape]
            for values in (parameter, *alike):
                values.masked_fill_(~learns, 0)

    @torch.no_grad()
    def _put_back(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter, learns in self._of(optimizer):
            parameter.copy_(torch.where(learns, parameter, self._aside.pop(id(parameter))))

    def _of(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The parameters of an optimizer that have a mask, with it."""
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            current = self._masks.get(id(parameter))
            if current is not None and (learns := current()) is not None:
                yield parameter, learns


class Compression:
    """Names the format that weights travel in on a CS system, one of `FORMATS`.

    Here they travel uncompressed, which the log says once: how a system rounds to these formats is
    not public. Checkpoints are not affected, there or here.
    """

    def __init__(self, format: str, param_filter: str | Sequence[str]) -> None:
        if format not in FORMATS:
            raise BackendConfigError(
                f"Compression: unknown format {format!r}{did_you_mean_or_all(format, FORMATS)}"
            )
        self.format = format
        self.param_filter = param_filter

    def __call__(self, module: nn.Module) -> None:
        """What `nn.Module.apply` calls for each module inside."""
        if module is root_of_apply(module, self):
            self.apply(module)

    def apply(self, module: nn.Module) -> None:
        """Raises BackendConfigError when the filter takes no parameter and no buffer."""
        takes = make_filter(self.param_filter)
        tensors = chain(module.named_parameters(), module.named_buffers())
        if not any(takes(name, tensor) for name, tensor in tensors):
            check_some([], self.param_filter)
        say_without_effect([f"compression of weights to {self.format}"])

    def __repr__(self) -> str:
        return f"Compression(format={self.format!r}, param_filter={self.param_filter!r})"
