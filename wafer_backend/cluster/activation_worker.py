"""The activation worker: cuts global batches into leaves, and keeps what wafers put aside."""

from dataclasses import dataclass
from typing import Any

import torch

from wafer_backend.cluster import tree
from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.streaming.activations import StorageLedger
from wafer_backend.streaming.weights import map_tensors, tensors_in

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class GlobalBatch:
    """The arguments of one call of the module, which share their first dimension: the samples.

    `arguments`: (args, kwargs), nested as the caller likes. `versions`: of its tensors, which must
    not change while leaves may still be cut.
    """

    arguments: Arguments
    versions: tuple[int, ...]
    batch_size: int
    micro_batch_size: int

    @property
    def leaves(self) -> int:
        """K."""
        return tree.leaf_count(self.batch_size, self.micro_batch_size)

    def samples(self, leaf: int) -> range:
        """Samples of one leaf, as positions in the batch."""
        return tree.samples_of_leaf(leaf, self.batch_size, self.micro_batch_size)


class ActivationWorker:
    """Serves leaves to wafers on `device`, and holds their evicted activations in host memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.evicted = StorageLedger()

    def load(self, arguments: Arguments, micro_batch_size: int) -> GlobalBatch:
        """Take a global batch. Tensors of no dimension, and all else, go to every leaf unchanged.

        Raises BackendConfigError when tensors differ in their number of samples.
        """
        tensors = tensors_in(arguments)
        sizes = sorted({int(t.shape[0]) for t in tensors if t.ndim})
        if len(sizes) != 1:
            problem = (
                f"have different numbers of samples: {sizes}"
                if sizes
                else "have no first dimension to split"
            )
            raise BackendConfigError(
                f"tensors of one batch {problem}; the first dimension of every input must be the "
                "samples (put what all samples share into a buffer)"
            )
        if any(t.requires_grad for t in tensors):
            raise BackendConfigError(
                "an input requires grad, but gradients of a compiled module reach parameters only; "
                "detach() the input, or compute it inside the module"
            )
        return GlobalBatch(arguments, _versions(tensors), sizes[0], micro_batch_size)

    def leaf(self, batch: GlobalBatch, index: int) -> Arguments:
        """Leaf `index`: the same structure, copied to the wafer's device."""
        if _versions(tensors_in(batch.arguments)) != batch.versions:
            raise StepError("an input was modified in place while its batch was still in use")
        samples = batch.samples(index)
        cut: Arguments = map_tensors(lambda t: self._cut(t, samples), batch.arguments)
        return cut

    def put_aside(self, activation: torch.Tensor) -> torch.Tensor:
        """Keep an evicted activation in host memory: itself on a CPU, otherwise a copy."""
        kept = activation.to("cpu")
        self.evicted.watch(kept)
        return kept

    def bring_back(self, kept: torch.Tensor, device: torch.device) -> torch.Tensor:
        """An evicted activation for the wafer again; the same bits."""
        return kept.to(device)

    def _cut(self, tensor: torch.Tensor, samples: range) -> torch.Tensor:
        part = tensor[samples.start : samples.stop] if tensor.ndim else tensor
        return part.to(self._device, copy=True)


def _versions(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    return tuple(0 if t.is_inference() else t._version for t in tensors)
