"""Walks through nested structures of tensors, naming the way to each; `call_once`."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils import _pytree

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")


def visit_torch_tensors(
    structure: Any, scope: list[str] | None = None
) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Every tensor of a nested structure with the keys and indices that lead to it, after `scope`.

    >>> [(way, t.item()) for way, t in visit_torch_tensors({"a": [torch.tensor(7)]}, ["batch"])]
    [(['batch', 'a', '0'], 7)]
    """
    for path, leaf in _pytree.tree_flatten_with_path(structure)[0]:
        if isinstance(leaf, torch.Tensor):
            yield [*(scope or []), *map(_name, path)], leaf


def recurse_spec(spec: Any) -> Iterator[list[str]]:
    """The way to every leaf of a spec of torch's pytrees, in the order of the leaves.

    >>> list(recurse_spec(_pytree.tree_flatten({"a": [1, 2], "b": 3})[1]))
    [['a', '0'], ['a', '1'], ['b']]
    """
    structure = _pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    for path, _ in _pytree.tree_flatten_with_path(structure)[0]:
        yield list(map(_name, path))


def _name(key: Any) -> str:
    """One step of a way: a key of a dict, an index or the name of an attribute."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def call_once() -> Callable[[Callable[Inputs, Output]], Callable[Inputs, Output]]:
    """Decorate a function: later calls return what the first one did, whatever their arguments."""

    def decorate(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
        results: list[Output] = []

        @functools.wraps(function)
        def once(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
            if not results:
                results.append(function(*args, **kwargs))
            return results[0]

        return once

    return decorate
