"""Targets that keep their weights (CPU and GPU): casts to half precision, and eviction.

`ResidentCasts` answers as `streaming.WeightStream` does, without leases: one cast per weight and
leaf, so both compute the same bits.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from wafer_backend.activations import Activations, SavedActivation
from wafer_backend.streaming import Deliver, Fetch, FromMemoryX


class ResidentCasts:
    """The cast copies of one leaf; they live until it ends."""

    def __init__(self, fetch: Fetch, deliver: Deliver, masters: Mapping[str, torch.Tensor]) -> None:
        self._fetch = fetch
        self._masters = masters
        self.deliver = deliver
        self._handle = torch.zeros((), requires_grad=True)
        self._copies: dict[str, torch.Tensor] = {}

    def access(self, name: str) -> torch.Tensor:
        """The weight for one use in the forward pass."""
        if torch.is_grad_enabled() and self._masters[name].requires_grad:
            return FromMemoryX.apply(self._handle, self, name)  # type: ignore[no-any-return, no-untyped-call]
        return self.lease(name)

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
