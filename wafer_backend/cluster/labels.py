"""Class labels of 32 bits, which a CS-2 takes and losses of torch do not."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

_LOSSES = {
    functional.cross_entropy,
    functional.nll_loss,
    torch._C._nn.cross_entropy_loss,
    torch._C._nn.nll_loss_nd,
}


class _Widening(TorchFunctionMode):
    """Gives losses over classes their int32 targets as int64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LOSSES:
            args = tuple(args[:1]) + tuple(map(_widen, args[1:2])) + tuple(args[2:])
            kwargs = {n: _widen(v) if n == "target" else v for n, v in kwargs.items()}
        return func(*args, **kwargs)


def _widen(target: Any) -> Any:
    narrow = isinstance(target, torch.Tensor) and target.dtype == torch.int32
    return target.long() if narrow else target


def take_int32_labels(inputs: Any) -> AbstractContextManager[Any]:
    """A context in which losses take int32 labels; it does nothing, and costs nothing, if there
    is no int32 tensor in `inputs`, nested tensors."""
    narrow = any(
        isinstance(value, torch.Tensor) and value.dtype == torch.int32
        for value in _pytree.tree_leaves(inputs)
    )
    return _Widening() if narrow else contextlib.nullcontext()
