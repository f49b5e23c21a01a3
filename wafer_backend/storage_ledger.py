"""Bytes of live storages, each counted once however many tensors share it."""

import weakref

import torch


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
        self._watches: set[_StorageReference] = set()
        self.resident_bytes = 0
        self.peak_bytes = 0

    def watch(self, tensor: torch.Tensor) -> None:
        """Count the storage of `tensor` for as long as this tensor object lives."""
        watch = _StorageReference(tensor, self._gone)
        storage = tensor.untyped_storage()
        watch.pointer = pointer = storage.data_ptr()
        self._watches.add(watch)
        count = self._tensors.get(pointer, 0)
        self._tensors[pointer] = count + 1
        if count == 0:
            self._bytes[pointer] = storage.nbytes()
            self.resident_bytes += self._bytes[pointer]
            self.peak_bytes = max(self.peak_bytes, self.resident_bytes)

    def _gone(self, watch: "weakref.ref[torch.Tensor]") -> None:
        assert isinstance(watch, _StorageReference)
        self._watches.discard(watch)
        pointer = watch.pointer
        self._tensors[pointer] -= 1
        if self._tensors[pointer] == 0:
            del self._tensors[pointer]
            self.resident_bytes -= self._bytes.pop(pointer)
