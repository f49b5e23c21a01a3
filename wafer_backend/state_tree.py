"""Nested state (dicts, lists, tuples, scalars) apart from its tensors: JSON and named leaves.

A spec is JSON: None, bool, int and str stand for themselves, every other node is an object with
one kind:

    {"float": "0x1.8p+1"}                  exact, infinities and NaN included
    {"leaf": "model.fc.weight"}            a tensor or array, stored beside under this name
    {"list": [...]}  {"tuple": [...]}
    {"dict": [[key, node], ...]}           in order; keys are nodes without leaves
    {"ordered_dict": ...}  {"counter": ...}; an OrderedDict may have "metadata" too, as
                                           `nn.Module.state_dict()` has

Nothing else is written or read, so reading a spec can make nothing but these types.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from wafer_backend.errors import CheckpointError

Spec = Any
MAX_DEPTH = 100
_DICTS: dict[type, str] = {dict: "dict", OrderedDict: "ordered_dict", Counter: "counter"}
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
_PLAIN = (type(None), bool, int, str)


@dataclass
class _Flattening:
    leaves: dict[str, Any] = field(default_factory=dict)

    def node(self, value: Any, path: tuple[str, ...]) -> Spec:
        """The spec of one value; its leaves are collected on the way."""
        if len(path) > MAX_DEPTH:
            raise CheckpointError(
                f"state_dict is nested deeper than {MAX_DEPTH} levels (does it contain itself?)"
            )
        if isinstance(value, torch.Tensor | np.ndarray | np.generic):
            return {"leaf": self._named(value, path)}
        if type(value) in _PLAIN:
            return value
        if type(value) is float:
            return {"float": value.hex()}
        if type(value) in _SEQUENCES:
            items = [self.node(item, (*path, str(i))) for i, item in enumerate(value)]
            return {_SEQUENCES[type(value)]: items}
        if type(value) in _DICTS:
            return self._dict(value, path)
        raise CheckpointError(
            f"state_dict[{'.'.join(path)!r}] is a {type(value).__name__}; a checkpoint holds "
            "tensors, arrays, dicts, lists, tuples, strings, numbers, bools and None: convert it"
        )

    def _dict(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> Spec:
        items = [
            [self._key(key, path), self.node(item, (*path, str(key)))]
            for key, item in value.items()
        ]
        spec: dict[str, Spec] = {_DICTS[type(value)]: items}
        metadata = getattr(value, "_metadata", None)
        if type(value) is OrderedDict and metadata is not None:
            spec["metadata"] = self.node(metadata, (*path, "_metadata"))
        return spec

    def _key(self, key: Any, path: tuple[str, ...]) -> Spec:
        if type(key) not in (*_PLAIN, float):
            raise CheckpointError(
                f"state_dict[{'.'.join(path)!r}] has a key of type {type(key).__name__}; "
                "keys are strings, numbers, bools or None"
            )
        return self.node(key, path)

    def _named(self, value: Any, path: tuple[str, ...]) -> str:
        plain = dataset_name(path)
        name, copies = plain, 0
        while name in self.leaves:
            copies += 1
            name = f"{plain}%{copies}"
        self.leaves[name] = value
        return name


def dataset_name(path: tuple[str, ...]) -> str:
    """The dotted name of a leaf; what HDF5 gives a meaning to, and '%', is escaped.

    >>> dataset_name(("model", "fc.weight"))
    'model.fc.weight'
    >>> dataset_name(("a/b", "50%"))
    'a%2Fb.50%25'
    """
    dotted = ".".join(path).replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    dotted = dotted.encode("utf-8", "backslashreplace").decode()
    return {"": "%", ".": "%2E"}.get(dotted, dotted)


def flatten(value: Any) -> tuple[Spec, dict[str, Any]]:
    """(spec, tensors and arrays by name in order). Raises CheckpointError for other types."""
    flattening = _Flattening()
    return flattening.node(value, ()), flattening.leaves


def unflatten(spec: Spec, leaf: Callable[[str], Any], depth: int = 0) -> Any:
    """The value of a spec; `leaf` gives the tensor of a name. Raises CheckpointError."""
    if type(spec) in _PLAIN:
        return spec
    if type(spec) is not dict or depth > MAX_DEPTH + 1:
        raise _unknown(spec)
    kind = next((name for name in spec if name != "metadata"), "")
    body = spec.get(kind)
    if type(body) is str and len(spec) == 1:
        return _scalar(kind, body, spec, leaf)
    if type(body) is not list or len(spec) > 1 + (kind == "ordered_dict" and "metadata" in spec):
        raise _unknown(spec)
    if kind in _SEQUENCES.values():
        items = [unflatten(item, leaf, depth + 1) for item in body]
        return tuple(items) if kind == "tuple" else items
    if kind not in _DICTS.values():
        raise _unknown(spec)
    return _mapping(kind, body, spec, leaf, depth)


def _scalar(kind: str, body: str, spec: Spec, leaf: Callable[[str], Any]) -> Any:
    if kind == "leaf":
        return leaf(body)
    if kind == "float":
        try:
            return float.fromhex(body)
        except (ValueError, OverflowError):
            pass
    raise _unknown(spec)


def _mapping(
    kind: str, body: list[Any], spec: dict[str, Any], leaf: Callable[[str], Any], depth: int
) -> Any:
    value: dict[Any, Any] = {"dict": dict, "ordered_dict": OrderedDict, "counter": Counter}[kind]()
    for item in body:
        if type(item) is not list or len(item) != 2:
            raise _unknown(item)
        key = unflatten(item[0], _no_leaf, depth + 1)
        if type(key) not in (*_PLAIN, float):
            raise _unknown(item[0])
        value[key] = unflatten(item[1], leaf, depth + 1)
    if "metadata" in spec:
        value._metadata = unflatten(spec["metadata"], _no_leaf, depth + 1)  # type: ignore[attr-defined]
    return value


def _no_leaf(name: str) -> Any:
    raise CheckpointError(f"found a tensor ({name[:60]!r}) where a plain value is expected")


def _unknown(spec: Spec) -> CheckpointError:
    shown = repr(spec)
    return CheckpointError(
        f"unknown node in __spec__: {shown if len(shown) <= 60 else shown[:60] + '…'}"
    )
