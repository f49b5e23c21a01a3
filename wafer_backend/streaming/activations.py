"""Saved activations of a wafer: kept and counted, evicted, or recomputed.

"keep": what the graph saves stays on the wafer until backward has used it. "evict": it goes to the
activation worker and comes back for the one autograd node that asks. "recompute": every block of
the module runs under `torch.utils.checkpoint`, so a block's inputs are saved, and its forward runs
again in backward with the same random numbers and buffers. The bits are the same in all three.

Bytes are those of live storages, each counted once however many tensors share it. Weights are not
activations: `weights` takes them out before anything here sees them.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from wafer_backend.streaming.attachment import Buffers


class _StorageReference(weakref.ref[torch.Tensor]):
    """A weak reference that knows the storage its tensor had."""

    __slots__ = ("pointer",)
    pointer: int


class StorageLedger:
    """Counts the storages of watched tensors until the last of each is gone.

    A pointer tells a storage apart while a watched tensor keeps it alive.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._watches: dict[int, _StorageReference] = {}
        self.resident_bytes = 0
        self.peak_bytes = 0

    def watch(self, tensor: torch.Tensor) -> None:
        """Count the storage of `tensor` for as long as this tensor object lives."""
        watch = _StorageReference(tensor, self._gone)
        storage = tensor.untyped_storage()
        watch.pointer = pointer = storage.data_ptr()
        self._watches[id(watch)] = watch  # a set would call the tensor's own __hash__, in Python
        if pointer in self._tensors:
            self._tensors[pointer] += 1
            return
        self._tensors[pointer] = 1
        self._bytes[pointer] = storage.nbytes()
        self.resident_bytes += self._bytes[pointer]
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)

    def _gone(self, watch: "weakref.ref[torch.Tensor]") -> None:
        assert isinstance(watch, _StorageReference)
        del self._watches[id(watch)]
        pointer = watch.pointer
        self._tensors[pointer] -= 1
        if self._tensors[pointer] == 0:
            del self._tensors[pointer]
            self.resident_bytes -= self._bytes.pop(pointer)


ActivationRule = Literal["keep", "recompute", "evict"]
Call = Callable[..., Any]
Context = contextlib.AbstractContextManager[None]


class SavedActivation(NamedTuple):
    """One tensor that a graph saved, and its version then; `device` it was on."""

    tensor: torch.Tensor
    version: int
    device: torch.device


class HostMemory(Protocol):
    """Where evicted activations are kept; an activation worker is one."""

    def put_aside(self, activation: torch.Tensor) -> torch.Tensor:
        """Keep an evicted activation in host memory."""

    def bring_back(self, kept: torch.Tensor, device: torch.device) -> torch.Tensor:
        """An evicted activation for the wafer again; the same bits."""


class Activations:
    """Counts what the graphs of one wafer save; evicts it to `worker` if there is one."""

    def __init__(self, worker: HostMemory | None) -> None:
        self._worker = worker
        self._ledger = StorageLedger()
        self._node: object = None
        self._visiting: list[torch.Tensor] = []

    @property
    def resident_bytes(self) -> int:
        """Bytes of saved activations on the wafer now, each storage once."""
        return self._ledger.resident_bytes

    @property
    def peak_bytes(self) -> int:
        """The most they have been."""
        return self._ledger.peak_bytes

    def pack(self, tensor: torch.Tensor) -> SavedActivation:
        """What the graph keeps in the place of a tensor; never the tensor itself (a cycle)."""
        kept = tensor.detach()
        version, device = kept._version, kept.device
        if kept.layout is not torch.strided:
            return SavedActivation(kept, version, device)
        if self._worker is None:
            self._ledger.watch(kept)
        else:
            kept = self._worker.put_aside(kept)
        return SavedActivation(kept, version, device)

    def unpack(self, saved: SavedActivation) -> torch.Tensor:
        """The tensor again, for backward. Raises RuntimeError, as torch does, when written to."""
        kept = saved.tensor
        if kept._version != saved.version and kept.device == saved.device:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of shape {tuple(kept.shape)} is at version "
                f"{kept._version}; expected version {saved.version}"
            )
        return kept if self._worker is None else self._visit(kept, saved.device)

    def count(self, tensor: torch.Tensor) -> None:
        """Count a tensor that somebody else keeps (a checkpoint that is recomputed)."""
        self._ledger.watch(tensor)

    def clear(self) -> None:
        """Forget what visited for the last node of a leaf."""
        self._node, self._visiting = None, []

    def _visit(self, kept: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Bring an evicted tensor back until another autograd node asks for one."""
        assert self._worker is not None
        node = torch._C._current_autograd_node()
        if node is not self._node:
            self._node, self._visiting = node, []
        visitor = self._worker.bring_back(kept, device).detach()
        self._ledger.watch(visitor)
        self._visiting.append(visitor)
        return visitor


def blocks(module: nn.Module) -> list[nn.Module]:
    """What is recomputed as a whole: elements of the outermost ModuleLists and Sequentials.

    Only those that own parameters; a list inside a list is looked into.
    """
    outermost: list[nn.Module] = []
    for child in module.children():
        inside = isinstance(module, nn.ModuleList | nn.Sequential)
        if inside and not isinstance(child, nn.ModuleList):
            if any(True for _ in child.parameters()):
                outermost.append(child)
        else:
            outermost += blocks(child)
    return outermost


@contextlib.contextmanager
def recompute_blocks(module: nn.Module, call: Call) -> Iterator[None]:
    """Run every block of `module` under a checkpoint; `call` calls a forward, also again."""
    inside = list(dict.fromkeys(blocks(module)))
    own = {block: block.__dict__.get("forward") for block in inside}
    try:
        for block in inside:
            block.__dict__["forward"] = _checkpointed(block, call)
        yield
    finally:
        for block, forward in own.items():
            block.__dict__.pop("forward", None)
            if forward is not None:
                block.__dict__["forward"] = forward


def _checkpointed(block: nn.Module, call: Call) -> Call:
    forward, buffers = block.forward, Buffers(block)

    def contexts() -> tuple[Context, Context]:
        return contextlib.nullcontext(), buffers.swapped(buffers.snapshot())

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(forward, *args, **kwargs)

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(run, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return checkpointed
