"""Weights that visit a wafer: leased, poisoned on release, streamed again for backward.

A fetched copy is a lease. A forward lease ends when the innermost module call that took it returns,
unless the call returns (part of) the copy. The graph saves only a weight's name and geometry, and
backward streams it again until another autograd node asks for a weight. A copy whose lease ends is
overwritten with NaN if anybody still holds it, so a use after release shows; in-place changes show
in the version counter.

Saved-tensor hooks of a module's own (`torch.utils.checkpoint`, `save_on_cpu`) never see a weight
that a module call inside them uses; one used there without such a call stays until the leaf ends.

Limits: `parameter.data` writes inside forward are lost; a custom autograd function that keeps a
weight outside `save_for_backward` sees NaN, and so does code that iterates `self.parameters()`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils import _pytree

from wafer_backend.errors import StepError
from wafer_backend.streaming.activations import Activations, SavedActivation
from wafer_backend.streaming.leases import (
    Lease,
    is_held,
    is_torch_node,
    poison,
    runs_torch_code,
)

Fetch = Callable[[str], torch.Tensor]
Deliver = Callable[[str, torch.Tensor], None]
Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


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


class Release(Protocol):
    """Takes back a copy whose lease has ended."""

    def __call__(self, name: str, copy: torch.Tensor, *, intact: bool) -> None:
        """`intact`: it is as it was fetched, and nobody else holds it."""


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


class _Scope:
    """The leases that one call of a module took. `trusted`: it runs PyTorch's own code only."""

    __slots__ = ("leases", "trusted")

    def __init__(self, *, trusted: bool = False) -> None:
        self.leases: list[Lease] = []
        self.trusted = trusted


class WeightStream(_Source):
    """The weights of one wafer: fetches, leases, poisons, and counts resident bytes.

    `fetch` brings a copy, `release` takes it back, `deliver` takes a gradient away, all by name;
    `masters` tell which weights are trained.
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
        self._scopes: list[_Scope] = []
        self._backward: dict[str, Lease] = {}
        self._node: object = None
        self._by_pointer: dict[int, Lease] = {}
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
            lease = self._take(name, trusted=True)
            self._scopes[-1].leases.append(lease)
        lease.pinned = lease.pinned or self._foreign_hooks() is not None
        lease.trusted = lease.trusted and self._scopes[-1].trusted and not lease.pinned
        return lease.copy.detach()

    @contextlib.contextmanager
    def leaf(self) -> Iterator[None]:
        """Run one micro-batch: weights may be used inside; all leases have ended after it."""
        self._scopes.append(_Scope())
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
        scope = _Scope(trusted=bool(args) and runs_torch_code(args[0]))
        self._scopes.append(scope)
        returned: set[int] = set()
        try:
            output = function(*args, **kwargs)
            if scope.leases:
                returned = {t.untyped_storage().data_ptr() for t in tensors_in(output)}
                self._check_scope()
            return output
        finally:
            self._close_scope(returned)

    # Leases.

    def _held(self, name: str) -> Lease | None:
        """The forward lease of a weight, if there is one; checked."""
        for scope in self._scopes:
            for lease in scope.leases:
                if lease.name == name:
                    lease.check()
                    return lease
        return None

    def _close_scope(self, returned: set[int]) -> None:
        """End the innermost scope's leases, except copies that the call returned."""
        for lease in self._scopes.pop().leases:
            if lease.pinned and self._scopes:
                self._scopes[0].leases.append(lease)
            elif lease.pointer in returned and self._scopes:
                lease.trusted = False
                self._scopes[-1].leases.append(lease)
            else:
                self._end(lease)

    def _check_scope(self) -> None:
        for lease in self._scopes[-1].leases:
            lease.check()

    def _take(self, name: str, *, trusted: bool) -> Lease:
        copy = self._fetch(name)
        size = copy.nbytes
        if size == 0:
            raise StepError(f"parameter {name!r} has no elements and cannot be streamed")
        lease = Lease(
            name=name,
            copy=copy,
            version=copy._version,
            pointer=copy.untyped_storage().data_ptr(),
            bytes=size,
            trusted=trusted,
        )
        self._by_pointer[lease.pointer] = lease
        self.resident_bytes += size
        self.fetched_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)
        return lease

    def _end(self, lease: Lease) -> None:
        del self._by_pointer[lease.pointer]
        self.resident_bytes -= lease.bytes
        held = is_held(lease.copy)
        if held:
            poison(lease.copy)
        if self._release is not None:
            self._release(lease.name, lease.copy, intact=lease.is_intact and not held)

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
        lease = self._lease_of(tensor)
        return self.activations.pack(tensor) if lease is None else _saved_weight(lease, tensor)

    def _lease_of(self, tensor: torch.Tensor) -> Lease | None:
        """The lease whose copy a tensor is, or is a view of."""
        if tensor.layout is not torch.strided:
            return None
        return self._by_pointer.get(tensor.untyped_storage().data_ptr())

    def _packing_above(self, pack: Pack, unpack: Unpack) -> Pack:
        """Weights are ours; activations go to the hooks that were on top, and are counted."""

        def pack_above(tensor: torch.Tensor) -> _SavedWeight | _HookedActivation:
            lease = self._lease_of(tensor)
            if lease is not None:
                return _saved_weight(lease, tensor)
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
            self._backward[saved.name] = self._take(saved.name, trusted=True)
        lease = self._backward[saved.name]
        lease.trusted = lease.trusted and is_torch_node(node)
        return lease.copy.as_strided(saved.size, saved.stride, saved.offset)


def _saved_weight(lease: Lease, tensor: torch.Tensor) -> _SavedWeight:
    """What a graph keeps in the place of `tensor`, the copy of a lease or a view of it."""
    lease.check()
    if tensor.dtype != lease.copy.dtype:
        raise StepError(f"parameter {lease.name!r} was reinterpreted as {tensor.dtype}")
    offset = int(tensor.storage_offset())
    return _SavedWeight(lease.name, tensor.size(), tensor.stride(), offset)


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

    def release_weight(self, name: str, copy: torch.Tensor, *, intact: bool) -> None:
        """Give back a copy; `intact`: as it was fetched, and held by nobody else."""

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
