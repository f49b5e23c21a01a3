"""A module whose parameters are asked for: attribute access goes to a source of weights.

While a module is attached its classes are swapped for subclasses whose attribute access asks the
source, so `self.weight`, tied parameters and functional uses such as `x @
self.embedding.weight.t()` all do. The module's own parameters are shells of one NaN element.
Parameters that a module keeps in lists of its own (nn.LSTM) are asked for as well.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn

_SOURCE = "_wafer_source"
_NAMES = "_wafer_names"
_HELD = "_wafer_held"


class WeightSource(Protocol):
    """Where an attached module gets its weights from."""

    def access(self, name: str) -> torch.Tensor:
        """The weight for one use in the forward pass."""

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a module's forward."""


def owner_names(module: nn.Module) -> dict[int, str]:
    """id(parameter) -> its first name in `named_parameters`; a tied parameter has one owner."""
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    return names


@contextlib.contextmanager
def attach_source(module: nn.Module, source: WeightSource) -> Iterator[None]:
    """Make `module` ask `source` for its weights; everything is put back afterwards."""
    names = owner_names(module)
    originals: list[tuple[nn.Module, type[nn.Module], dict[str, Any], dict[str, Any]]] = []
    try:
        for child in module.modules():
            held = {key: value for key, value in vars(child).items() if _holds(value, names)}
            originals.append((child, type(child), dict(child._parameters), held))
            _attach(child, source, names, held)
        yield
    finally:
        for child, kind, parameters, held in originals:
            child.__class__ = kind
            child._parameters.update(parameters)
            for key in (_SOURCE, _NAMES, _HELD):
                child.__dict__.pop(key, None)
            child.__dict__.update(held)


def _holds(value: Any, names: dict[int, str]) -> bool:
    """Whether an attribute is a list of parameters."""
    return isinstance(value, list | tuple) and any(id(item) in names for item in value)


def _attach(
    child: nn.Module, source: WeightSource, names: dict[int, str], held: dict[str, Any]
) -> None:
    own = {key: p for key, p in child._parameters.items() if p is not None}
    child.__dict__[_SOURCE] = source
    child.__dict__[_NAMES] = {key: names[id(p)] for key, p in own.items()}
    child.__dict__[_HELD] = {
        key: (type(value), [names.get(id(item), item) for item in value])
        for key, value in held.items()
    }
    for key in held:
        del child.__dict__[key]
    for key, parameter in own.items():
        child._parameters[key] = _shell(parameter)
    child.__class__ = _attached_class(type(child))


def _shell(parameter: nn.Parameter) -> nn.Parameter:
    """A stand-in of the same shape and dtype that holds one element: NaN, or 0 without one."""
    nothing = float("nan") if parameter.dtype.is_floating_point else 0
    one = torch.full((), nothing, dtype=parameter.dtype, device=parameter.device)
    return nn.Parameter(one.expand(parameter.shape), requires_grad=parameter.requires_grad)


_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _attached_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The subclass of `kind` that asks for its parameters; made once per class."""
    if kind in _classes:
        return _classes[kind]

    def get_attribute(self: nn.Module, name: str) -> Any:
        owner = self.__dict__[_NAMES].get(name)
        if owner is not None:
            return self.__dict__[_SOURCE].access(owner)
        if name in self.__dict__[_HELD]:
            return _ask(self.__dict__[_SOURCE], *self.__dict__[_HELD][name])
        return kind.__getattr__(self, name)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__[_SOURCE].call(kind.__call__, self, *args, **kwargs)

    body = {"__getattr__": get_attribute, "__call__": call, "__module__": kind.__module__}
    _classes[kind] = type(kind.__name__, (kind,), body)
    return _classes[kind]


def _ask(source: WeightSource, kind: type, items: list[Any]) -> Any:
    """A list of parameters again: names become weights."""
    return kind(source.access(item) if isinstance(item, str) else item for item in items)
