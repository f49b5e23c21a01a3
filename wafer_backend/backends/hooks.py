"""Hooks on what a backend does with tensors."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.hooks import RemovableHandle

_hooks: "OrderedDict[int, Callable[[torch.Tensor, str], Any]]" = OrderedDict()


def register_after_tensor_to_cpu(hook: Callable[[torch.Tensor, str], Any]) -> RemovableHandle:
    """Call `hook(tensor, name)` for each tensor that a step closure gets, until its handle is
    removed; tensors have no names, so `name` is empty."""
    handle = RemovableHandle(_hooks)
    _hooks[handle.id] = hook
    return handle


def report_tensors(values: Any) -> None:
    """Called before a closure: its tensors, nested, are on the host now."""
    if not _hooks:
        return
    for value in _pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor):
            for hook in list(_hooks.values()):
                hook(value, "")
