"""A module while a wafer runs it: its parameters come from a source, its buffers can be swapped.

While a module is attached its classes are swapped for subclasses whose attribute access asks the
source, so `self.weight`, tied parameters and functional uses such as `x @
self.embedding.weight.t()` all do. The module's own parameters are shells of one NaN element.
Parameters that a module keeps in lists of its own (nn.LSTM) are asked for as well.

Every leaf's first forward updates the buffers (running statistics and the like), once. A replayed
or recomputed forward runs on stand-ins that hold what the first one saw; the module's own buffers
are untouched by it.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from wafer_backend.errors import StepError


@dataclass(frozen=True)
class _BufferState:
    """One buffer at one moment: the tensor object, and its value."""

    tensor: torch.Tensor
    value: torch.Tensor

    def is_still(self, tensor: torch.Tensor) -> bool:
        """Compares values: batch norm updates its statistics without a new version."""
        return tensor is self.tensor and torch.equal(tensor, self.value)


Slot = tuple[nn.Module, str]
Snapshot = dict[Slot, _BufferState]


class Buffers:
    """The buffers of a module; values that did not change are copied once for all snapshots."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._last: Snapshot = {}

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return any(True for _ in self._slots())

    def check_unchanged(self, before: Snapshot) -> None:
        """Raise StepError when a buffer is no longer what it was."""
        for (child, key), seen in before.items():
            tensor = child._buffers[key]
            if tensor is None or not seen.is_still(tensor):
                raise StepError(
                    f"buffer {key!r} of {type(child).__name__} changes in forward, but leaves that "
                    "run in several processes cannot share it; use the inline transport, or a "
                    "module without running statistics"
                )

    def snapshot(self) -> Snapshot:
        """The values of all buffers now."""
        taken: Snapshot = {}
        tied: dict[int, _BufferState] = {}
        for slot, tensor in self._slots():
            state = tied.get(id(tensor)) or self._last.get(slot)
            if state is None or not state.is_still(tensor):
                state = _BufferState(tensor, tensor.detach().clone())
            taken[slot] = tied[id(tensor)] = state
        self._last = taken
        return taken

    @contextlib.contextmanager
    def swapped(self, snapshot: Snapshot) -> Iterator[None]:
        """Run with copies of a snapshot's values in the place of the buffers."""
        own = {(child, key): child._buffers[key] for child, key in snapshot}
        copies = {id(seen): seen.value.clone() for seen in snapshot.values()}
        try:
            for (child, key), seen in snapshot.items():
                child._buffers[key] = copies[id(seen)]
            yield
        finally:
            for (child, key), tensor in own.items():
                child._buffers[key] = tensor

    def restore(self, snapshot: Snapshot) -> None:
        """Make the buffers what they were, as the tensor objects they were."""
        with torch.no_grad():
            for (child, key), seen in snapshot.items():
                if not seen.is_still(seen.tensor):
                    seen.tensor.copy_(seen.value)
                child._buffers[key] = seen.tensor

    @contextlib.contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Buffers are what they were when the block fails."""
        before = self.snapshot()
        try:
            yield
        except BaseException:
            self.restore(before)
            raise

    def _slots(self) -> Iterator[tuple[Slot, torch.Tensor]]:
        for child in self._module.modules():
            for key, tensor in child._buffers.items():
                if tensor is not None:
                    yield (child, key), tensor


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
            lists = {key: value for key, value in vars(child).items() if _holds(value, names)}
            originals.append((child, type(child), dict(child._parameters), lists))
            _attach(child, source, names, lists)
        yield
    finally:
        for child, kind, parameters, lists in originals:
            child.__class__ = kind
            child._parameters.update(parameters)
            for key in (_SOURCE, _NAMES, _HELD):
                child.__dict__.pop(key, None)
            child.__dict__.update(lists)


def _holds(value: Any, names: dict[int, str]) -> bool:
    """Whether an attribute is a list of parameters."""
    return isinstance(value, list | tuple) and any(id(item) in names for item in value)


def _attach(
    child: nn.Module, source: WeightSource, names: dict[int, str], lists: dict[str, Any]
) -> None:
    own = {key: p for key, p in child._parameters.items() if p is not None}
    child.__dict__[_SOURCE] = source
    child.__dict__[_NAMES] = {key: names[id(p)] for key, p in own.items()}
    child.__dict__[_HELD] = {
        key: (type(value), [names.get(id(item), item) for item in value])
        for key, value in lists.items()
    }
    for key in lists:
        del child.__dict__[key]
    for key, parameter in own.items():
        child._parameters[key] = _shell(parameter)
    child.__class__ = _attached_class(type(child))


def _shell(parameter: nn.Parameter) -> nn.Parameter:
    """A placeholder of the same shape and dtype that holds one element: NaN, or 0 without one."""
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
            source, (sequence, items) = self.__dict__[_SOURCE], self.__dict__[_HELD][name]
            return sequence(source.access(i) if isinstance(i, str) else i for i in items)
        return kind.__getattr__(self, name)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__[_SOURCE].call(kind.__call__, self, *args, **kwargs)

    body = {"__getattr__": get_attribute, "__call__": call, "__module__": kind.__module__}
    _classes[kind] = type(kind.__name__, (kind,), body)
    return _classes[kind]
