"""Listeners of traced tensors. Steps run eagerly, so there is no graph and no tensor is traced."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn

from torch.utils.hooks import RemovableHandle

from wafer_backend.errors import BackendConfigError

__all__ = ["create_listener", "register_traced_tensor_hook"]

_hooks: "OrderedDict[int, Callable[..., Any]]" = OrderedDict()


def create_listener(listener_type: str | None = None, **settings: Any) -> NoReturn:
    """Raises BackendConfigError: there is no graph to listen to."""
    raise BackendConfigError(
        f"the listener {listener_type!r} is not supported: steps run eagerly and there is no graph "
        "whose tensors have names; use hooks of torch.nn.Module, or summarize_tensor, and take the "
        "listener out of the config"
    )


def register_traced_tensor_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Keep a hook until its handle is removed. It is never called: no tensor is traced."""
    handle = RemovableHandle(_hooks)
    _hooks[handle.id] = hook
    return handle
