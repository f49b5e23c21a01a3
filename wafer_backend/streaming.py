"""Weights that visit a wafer: streamed at attribute access, poisoned on release.

While a module is attached its classes are swapped for subclasses whose attribute access fetches a
copy of the weight from MemoryX, so `self.weight`, tied parameters and functional uses such as `x
@ self.embedding.weight.t()` all stream. The module's own parameters are shells of one NaN
element.

A fetched copy is a lease. A forward lease ends when the innermost module call it was taken in
returns, unless the copy is (part of) what that call returns: then it moves to the caller. The
graph never keeps a copy alive: saving one for backward stores its name and geometry, and backward
streams it again; that lease ends when another autograd node asks for a weight. A lease that ends
is overwritten with NaN, so a use after release shows. Copies are told apart by storage pointer
only while the lease holds the storage, when a pointer is unique, and by version counter, which
catches in-place changes.

Limits: `parameter.data` writes inside forward are lost; a custom autograd function that keeps a
weight outside `save_for_backward` sees NaN; parameters held outside `_parameters` (nn.RNN) do not
stream.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wafer_backend.errors import StepError

Fetch = Callable[[str], torch.Tensor]
Deliver = Callable[[str, torch.Tensor], None]
_STREAM = "_wafer_stream"
_NAMES = "_wafer_names"


@dataclass(eq=False)
class _Lease:
    """One copy of a weight on the wafer, held until it is poisoned."""

    name: str
    copy: torch.Tensor
    version: int

    @property
    def pointer(self) -> int:
        return self.copy.untyped_storage().data_ptr()

    @property
    def bytes(self) -> int:
        return self.copy.numel() * self.copy.element_size()

    def check(self) -> None:
        """Raise StepError when the copy was written to, which would be lost on the wafer."""
        if self.copy._version != self.version:
            raise StepError(
                f"parameter {self.name!r} was modified in place during the forward pass"
            )


@dataclass(frozen=True)
class _Saved:
    """A weight, or a view of one, that the graph saved: enough to stream it again."""

    name: str
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _FromMemoryX(torch.autograd.Function):
    """A copy of a weight whose gradient is delivered instead of being accumulated."""

    @staticmethod
    def forward(ctx: Any, handle: torch.Tensor, stream: "WeightStream", name: str) -> torch.Tensor:
        ctx.stream, ctx.name = stream, name
        return stream.lease(name)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        ctx.stream.deliver(ctx.name, gradients[0])
        return None, None, None


class WeightStream:
    """The weights of one wafer: fetches, leases, poisons, and counts resident bytes."""

    def __init__(self, fetch: Fetch, deliver: Deliver, trainable: dict[str, bool]) -> None:
        self._fetch = fetch
        self._trainable = trainable
        self.deliver = deliver
        self._handle = torch.zeros((), requires_grad=True)
        self._scopes: list[list[_Lease]] = []
        self._backward: dict[str, _Lease] = {}
        self._node: object = None
        self._by_pointer: dict[int, _Lease] = {}
        self.resident_bytes = 0
        self.peak_bytes = 0

    def access(self, name: str) -> torch.Tensor:
        """The streamed weight for one use in the forward pass."""
        if torch.is_grad_enabled() and self._trainable[name]:
            return _FromMemoryX.apply(self._handle, self, name)  # type: ignore[no-any-return, no-untyped-call]
        return self.lease(name)

    def lease(self, name: str) -> torch.Tensor:
        """A tensor over the copy of `name` that is on the wafer, fetched if there is none."""
        for scope in self._scopes:
            for lease in scope:
                if lease.name == name:
                    lease.check()
                    return lease.copy.detach()
        if not self._scopes:
            raise StepError(f"parameter {name!r} was used outside a step; weights live in MemoryX")
        lease = self._take(name)
        self._scopes[-1].append(lease)
        return lease.copy.detach()

    @contextlib.contextmanager
    def leaf(self) -> Iterator[None]:
        """Run one micro-batch: weights may be used inside; all leases have ended after it."""
        self._scopes.append([])
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
            self._check_scope()
        finally:
            for lease in list(self._by_pointer.values()):
                self._end(lease)
            self._scopes.clear()
            self._backward.clear()
            self._node = None

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a module's forward inside a lease scope of its own."""
        self._scopes.append([])
        returned: set[int] = set()
        try:
            output = function(*args, **kwargs)
            if self._scopes[-1]:
                returned = {t.untyped_storage().data_ptr() for t in _tensors(output)}
            self._check_scope()
            return output
        finally:
            self._close_scope(returned)

    def _close_scope(self, returned: set[int]) -> None:
        """End the innermost scope's leases, except copies that the call returned."""
        for lease in self._scopes.pop():
            if lease.pointer in returned and self._scopes:
                self._scopes[-1].append(lease)
            else:
                self._end(lease)

    def _check_scope(self) -> None:
        for lease in self._scopes[-1]:
            lease.check()

    def _take(self, name: str) -> _Lease:
        copy = self._fetch(name)
        if copy.numel() == 0:
            raise StepError(f"parameter {name!r} has no elements and cannot be streamed")
        lease = _Lease(name, copy, copy._version)
        self._by_pointer[lease.pointer] = lease
        self.resident_bytes += lease.bytes
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)
        return lease

    def _end(self, lease: _Lease) -> None:
        del self._by_pointer[lease.pointer]
        self.resident_bytes -= lease.bytes
        poison(lease.copy)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Saved:
        lease = self._by_pointer.get(tensor.untyped_storage().data_ptr())
        if lease is None:
            return tensor
        lease.check()
        if tensor.dtype != lease.copy.dtype:
            raise StepError(f"parameter {lease.name!r} was reinterpreted as {tensor.dtype}")
        return _Saved(lease.name, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _unpack(self, saved: torch.Tensor | _Saved) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        node = torch._C._current_autograd_node()
        if node is not self._node:
            for name in [name for name in self._backward if name != saved.name]:
                self._end(self._backward.pop(name))
            self._node = node
        if saved.name not in self._backward:
            self._backward[saved.name] = self._take(saved.name)
        copy = self._backward[saved.name].copy
        return copy.as_strided(saved.size, saved.stride, saved.offset)


def poison(tensor: torch.Tensor) -> None:
    """Overwrite a released copy: NaN, or zeros where the dtype has no NaN."""
    with torch.no_grad():
        tensor.fill_(float("nan") if tensor.dtype.is_floating_point else 0)


def owner_names(module: nn.Module) -> dict[int, str]:
    """id(parameter) -> its first name in `named_parameters`; a tied parameter has one owner."""
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    return names


@contextlib.contextmanager
def attached(module: nn.Module, stream: WeightStream) -> Iterator[None]:
    """Make `module` stream its weights through `stream`; everything is put back afterwards."""
    names = owner_names(module)
    originals: list[tuple[nn.Module, type[nn.Module], dict[str, nn.Parameter | None]]] = []
    try:
        for child in module.modules():
            originals.append((child, type(child), dict(child._parameters)))
            _attach(child, stream, names)
        yield
    finally:
        for child, kind, parameters in originals:
            child.__class__ = kind
            child._parameters.update(parameters)
            child.__dict__.pop(_STREAM, None)
            child.__dict__.pop(_NAMES, None)


def _attach(child: nn.Module, stream: WeightStream, names: dict[int, str]) -> None:
    own = {key: p for key, p in child._parameters.items() if p is not None}
    child.__dict__[_STREAM] = stream
    child.__dict__[_NAMES] = {key: names[id(p)] for key, p in own.items()}
    for key, parameter in own.items():
        child._parameters[key] = _shell(parameter)
    child.__class__ = _streaming_class(type(child))


def _shell(parameter: nn.Parameter) -> nn.Parameter:
    """A stand-in of the same shape and dtype that holds one element, NaN."""
    one = torch.empty((), dtype=parameter.dtype, device=parameter.device)
    poison(one)
    return nn.Parameter(one.expand(parameter.shape), requires_grad=parameter.requires_grad)


_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _streaming_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The subclass of `kind` that fetches its parameters; made once per class."""
    if kind in _classes:
        return _classes[kind]

    def get_attribute(self: nn.Module, name: str) -> Any:
        owner = self.__dict__[_NAMES].get(name)
        if owner is not None:
            return self.__dict__[_STREAM].access(owner)
        return kind.__getattr__(self, name)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__[_STREAM].call(kind.__call__, self, *args, **kwargs)

    body = {"__getattr__": get_attribute, "__call__": call, "__module__": kind.__module__}
    _classes[kind] = type(kind.__name__, (kind,), body)
    return _classes[kind]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor inside nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
