"""Hooks on what a backend does with tensors."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

_hooks: "OrderedDict[int, Callable[..., Any]]" = OrderedDict()


def register_after_tensor_to_cpu(hook: Callable[..., Any]) -> RemovableHandle:
    """Keep a hook until its handle is removed. It is never called: steps run in this process, so
    no tensor is fetched from an appliance."""
    handle = RemovableHandle(_hooks)
    _hooks[handle.id] = hook
    return handle
