"""Nested tuples, lists and dicts of tensors, taken apart and put together again."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor inside, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    map_tensors(found.append, value)
    return found


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same structure with `function` applied to every tensor; other leaves stay.

    Mappings that PyTorch does not know (a tokenizer's BatchEncoding) become dicts.
    """

    def replaced(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return function(leaf)
        if isinstance(leaf, Mapping):
            return {key: map_tensors(function, item) for key, item in leaf.items()}
        return leaf

    return _pytree.tree_map(replaced, value)
