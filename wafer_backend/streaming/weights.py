"""Weights that visit a wafer: leased, poisoned on release, streamed again for backward.

A fetched copy is a lease. A forward lease ends when the innermost module call that took it returns,
unless the call returns (part of) the copy. The graph saves only a weight's name and geometry, and
backward streams it again until another autograd node asks for a weight. A lease that ends is
overwritten with NaN, so a use after release shows; in-place changes show in the version counter.

Saved-tensor hooks of a module's own (`torch.utils.checkpoint`, `save_on_cpu`) never see a weight
that a module call inside them uses; one used there without such a call stays until the leaf ends.

Limits: `parameter.data` writes inside forward are lost; a custom autograd function that keeps a
weight outside `save_for_backward` sees NaN, and so does code that iterates `self.parameters()`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils import _pytree

from wafer_backend.errors import StepError
from wafer_backend.streaming.activations import Activations, SavedActivation

Fetch = Callable[[str], torch.Tensor]
Deliver = Callable[[str, torch.Tensor], None]
Release = Callable[[torch.Tensor], None]
Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


@dataclass(eq=False, kw_only=True)
class _Lease:
    """One copy of a weight on the wafer, held until it is poisoned.

    `pinned`: stays until the leaf ends, because hooks that are not ours may have saved it.
    """

    name: str
    copy: torch.Tensor
    version: int
    pointer: int
    bytes: int
    pinned: bool = False

    def check(self) -> None:
        """Raise StepError when the copy was written to, which would be lost on the wafer."""
        if self.copy._version != self.version:
            raise StepError(
                f"parameter {self.name!r} was modified in place during the forward pass"
            )


class _SavedWeight(NamedTuple):
    """A weight, or a view of one, that the graph saved: enough to stream it again."""

    name: str
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _HookedActivation(NamedTuple):
    """What hooks that are not ours made of an activation, and how they give it back."""

    unpack: Unpack
    packed: Any


class FromMemoryX(torch.autograd.Function):
    """A copy of a weight whose gradient is delivered instead of being accumulated."""

    @staticmethod
    def forward(ctx: Any, handle: torch.Tensor, weights: Any, name: str) -> torch.Tensor:
        """`weights` has `lease(name)` and `deliver(name, gradient)`; `handle` requires grad."""
        ctx.weights, ctx.name = weights, name
        copy: torch.Tensor = weights.lease(name)
        return copy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        """Hand the gradient over; nothing accumulates on the wafer."""
        ctx.weights.deliver(ctx.name, gradients[0])
        return None, None, None


class _Source:
    """Hands weights to a module while it runs."""

    def __init__(self, fetch: Fetch, deliver: Deliver, masters: Mapping[str, torch.Tensor]) -> None:
        self._fetch = fetch
        self._masters = masters
        self.deliver = deliver
        self._handle = torch.zeros((), requires_grad=True)

    def access(self, name: str) -> torch.Tensor:
        """The weight for one use in the forward pass."""
        if torch.is_grad_enabled() and self._masters[name].requires_grad:
            return FromMemoryX.apply(self._handle, self, name)  # type: ignore[no-any-return, no-untyped-call]
        return self.lease(name)

    def lease(self, name: str) -> torch.Tensor:
        """A tensor over the copy that is there, fetched if there is none."""
        raise NotImplementedError


class WeightStream(_Source):
    """The weights of one wafer: fetches, leases, poisons, and counts resident bytes.

    `fetch` brings a copy, `deliver` takes a gradient away, both by name; `masters` tell which
    weights are trained.
    """

    def __init__(
        self,
        fetch: Fetch,
        deliver: Deliver,
        masters: Mapping[str, torch.Tensor],
        activations: Activations,
        release: Release | None = None,
    ) -> None:
        super().__init__(fetch, deliver, masters)
        self._release = release
        self.activations = activations
        self._scopes: list[list[_Lease]] = []
        self._backward: dict[str, _Lease] = {}
        self._node: object = None
        self._by_pointer: dict[int, _Lease] = {}
        self._our_hooks: list[Pack] = []
        self.resident_bytes = 0
        self.peak_bytes = 0
        self.fetched_bytes = 0

    def lease(self, name: str) -> torch.Tensor:
        """A tensor over the copy of `name` that is on the wafer, fetched if there is none."""
        lease = self._held(name)
        if lease is None:
            if not self._scopes:
                raise StepError(
                    f"parameter {name!r} was used outside a step; weights live in MemoryX"
                )
            lease = self._take(name)
            self._scopes[-1].append(lease)
        lease.pinned = lease.pinned or self._foreign_hooks() is not None
        return lease.copy.detach()

    @contextlib.contextmanager
    def leaf(self) -> Iterator[None]:
        """Run one micro-batch: weights may be used inside; all leases have ended after it."""
        self._scopes.append([])
        try:
            with self._hooks(self._pack):
                yield
            self._check_scope()
        finally:
            for lease in list(self._by_pointer.values()):
                self._end(lease)
            self._scopes.clear()
            self._backward.clear()
            self._node = None
            self.activations.clear()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a module's forward inside a lease scope of its own."""
        foreign = self._foreign_hooks()
        if foreign is not None:
            with self._hooks(self._packing_above(*foreign)):
                return self.call(function, *args, **kwargs)
        self._scopes.append([])
        returned: set[int] = set()
        try:
            output = function(*args, **kwargs)
            if self._scopes[-1]:
                returned = {t.untyped_storage().data_ptr() for t in tensors_in(output)}
            self._check_scope()
            return output
        finally:
            self._close_scope(returned)

    # Leases.

    def _held(self, name: str) -> _Lease | None:
        """The forward lease of a weight, if there is one; checked."""
        for scope in self._scopes:
            for lease in scope:
                if lease.name == name:
                    lease.check()
                    return lease
        return None

    def _close_scope(self, returned: set[int]) -> None:
        """End the innermost scope's leases, except copies that the call returned."""
        for lease in self._scopes.pop():
            if lease.pinned and self._scopes:
                self._scopes[0].append(lease)
            elif lease.pointer in returned and self._scopes:
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
        size = copy.numel() * copy.element_size()
        lease = _Lease(
            name=name,
            copy=copy,
            version=copy._version,
            pointer=copy.untyped_storage().data_ptr(),
            bytes=size,
        )
        self._by_pointer[lease.pointer] = lease
        self.resident_bytes += size
        self.fetched_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)
        return lease

    def _end(self, lease: _Lease) -> None:
        del self._by_pointer[lease.pointer]
        self.resident_bytes -= lease.bytes
        poison(lease.copy)
        if self._release is not None:
            self._release(lease.copy)

    # What graphs save.

    @contextlib.contextmanager
    def _hooks(self, pack: Pack) -> Iterator[None]:
        self._our_hooks.append(pack)
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, self._unpack):
                yield
        finally:
            self._our_hooks.pop()

    def _foreign_hooks(self) -> tuple[Pack, Unpack] | None:
        """The saved-tensor hooks that somebody put above ours, if any."""
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)
        ours = not self._our_hooks or top is None or top[0] is self._our_hooks[-1]
        return None if ours else top

    def _pack(self, tensor: torch.Tensor) -> _SavedWeight | SavedActivation:
        return self._pack_weight(tensor) or self.activations.pack(tensor)

    def _pack_weight(self, tensor: torch.Tensor) -> _SavedWeight | None:
        if tensor.layout is not torch.strided:
            return None
        lease = self._by_pointer.get(tensor.untyped_storage().data_ptr())
        if lease is None:
            return None
        lease.check()
        if tensor.dtype != lease.copy.dtype:
            raise StepError(f"parameter {lease.name!r} was reinterpreted as {tensor.dtype}")
        offset = int(tensor.storage_offset())
        return _SavedWeight(lease.name, tensor.size(), tensor.stride(), offset)

    def _packing_above(self, pack: Pack, unpack: Unpack) -> Pack:
        """Weights are ours; activations go to the hooks that were on top, and are counted."""

        def pack_above(tensor: torch.Tensor) -> _SavedWeight | _HookedActivation:
            weight = self._pack_weight(tensor)
            if weight is not None:
                return weight
            activation = tensor.detach()
            self.activations.count(activation)
            return _HookedActivation(unpack, pack(activation))

        return pack_above

    def _unpack(self, saved: _SavedWeight | SavedActivation | _HookedActivation) -> torch.Tensor:
        if isinstance(saved, SavedActivation):
            return self.activations.unpack(saved)
        if isinstance(saved, _HookedActivation):
            return saved.unpack(saved.packed)
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


class ResidentCasts(_Source):
    """The cast copies of one leaf; they live until it ends."""

    def __init__(self, fetch: Fetch, deliver: Deliver, masters: Mapping[str, torch.Tensor]) -> None:
        super().__init__(fetch, deliver, masters)
        self._copies: dict[str, torch.Tensor] = {}

    def lease(self, name: str) -> torch.Tensor:
        """A tensor over this leaf's copy of `name`."""
        if name not in self._copies:
            self._copies[name] = self._fetch(name)
        return self._copies[name].detach()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a module's forward."""
        return function(*args, **kwargs)

    @contextlib.contextmanager
    def leaf(self) -> Iterator[None]:
        """Run one micro-batch."""
        try:
            yield
        finally:
            self._copies.clear()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of the copies, or a view of one."""
        pointer = tensor.untyped_storage().data_ptr()
        return any(copy.untyped_storage().data_ptr() == pointer for copy in self._copies.values())


@contextlib.contextmanager
def evict_saved(
    activations: Activations, is_weight: Callable[[torch.Tensor], bool]
) -> Iterator[None]:
    """Send what graphs save away through `activations`, weights excepted."""

    def pack(tensor: torch.Tensor) -> torch.Tensor | SavedActivation:
        return tensor.detach() if is_weight(tensor) else activations.pack(tensor)

    def unpack(saved: torch.Tensor | SavedActivation) -> torch.Tensor:
        return activations.unpack(saved) if isinstance(saved, SavedActivation) else saved

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        activations.clear()


class Transport(Protocol):
    """The messages a wafer may send."""

    def fetch_weight(self, name: str) -> torch.Tensor:
        """Ask for a copy of a weight."""

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        """Stream one gradient of one leaf out."""

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        """Say that a leaf is complete: its loss sum in nats and its counted labels."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor inside, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    tensors: list[torch.Tensor] = []
    map_tensors(tensors.append, value)
    return tensors


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
