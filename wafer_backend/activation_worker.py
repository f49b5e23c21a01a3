"""The activation worker: takes a global batch and cuts it into leaves."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from wafer_backend import tree
from wafer_backend.errors import BackendConfigError


class ActivationWorker:
    """Holds one global batch and serves its leaves.

    A batch is a tensor, or nested dicts, lists and tuples of tensors, that share their first
    dimension: the samples. Anything else in it is handed to every leaf unchanged.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._micro_batch_size = 1
        self._batch: Any = None
        self.batch_size = 0
        self.leaves = 0

    def load(self, batch: Any, micro_batch_size: int) -> int:
        """Take the next global batch; returns K, its number of leaves."""
        sizes = sorted({int(t.shape[0]) for t in _leaf_tensors(batch)})
        if len(sizes) != 1:
            raise BackendConfigError(f"tensors of one batch differ in samples: {sizes}")
        self._batch, self._micro_batch_size = batch, micro_batch_size
        self.batch_size = sizes[0]
        self.leaves = tree.leaf_count(sizes[0], micro_batch_size)
        return self.leaves

    def leaf(self, index: int) -> Any:
        """Leaf `index` of the batch, same structure, on the wafer's device."""
        samples = tree.samples_of_leaf(index, self.batch_size, self._micro_batch_size)
        return _cut(self._batch, samples, self._device)


def _leaf_tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        return [t for item in batch.values() for t in _leaf_tensors(item)]
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return [t for item in batch for t in _leaf_tensors(item)]
    return []


def _cut(batch: Any, samples: range, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[samples.start : samples.stop].to(device)
    if isinstance(batch, Mapping):
        return {key: _cut(item, samples, device) for key, item in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return type(batch)(_cut(item, samples, device) for item in batch)  # type: ignore[call-arg]
    return batch
