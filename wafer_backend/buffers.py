"""Buffers (running statistics and the like): every leaf's first forward updates them, once.

A replayed or recomputed forward runs on stand-ins that hold what the first one saw; the module's
own buffers are untouched by it.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

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
                    "module "
                    "without running statistics"
                )

    def snapshot(self) -> Snapshot:
        """The values of all buffers now."""
        taken: Snapshot = {}
        tied: dict[int, _BufferState] = {}
        for slot, tensor in self._slots():
            known = tied.get(id(tensor)) or self._last.get(slot)
            if known is None or not known.is_still(tensor):
                known = _BufferState(tensor, tensor.detach().clone())
            taken[slot] = tied[id(tensor)] = known
        self._last = taken
        return taken

    @contextlib.contextmanager
    def swapped(self, snapshot: Snapshot) -> Iterator[None]:
        """Run with copies of a snapshot's values in the place of the buffers."""
        held = {(child, key): child._buffers[key] for child, key in snapshot}
        copies = {id(seen): seen.value.clone() for seen in snapshot.values()}
        try:
            for (child, key), seen in snapshot.items():
                child._buffers[key] = copies[id(seen)]
            yield
        finally:
            for (child, key), tensor in held.items():
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
