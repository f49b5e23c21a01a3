"""How many samples a leaf holds: given, or the most that fit, found by a probe of the first batch.

The probe runs forward and backward of the first 1 and 2 samples as a streaming wafer would,
whatever the target, and counts what the graph saves: bytes per sample and a fixed part. Random
numbers and buffers are as before it, and its gradients are thrown away. num_csx plays no part.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from wafer_backend import tree
from wafer_backend.activation_worker import ActivationWorker, Arguments, GlobalBatch
from wafer_backend.buffers import Buffers
from wafer_backend.errors import BackendConfigError
from wafer_backend.memoryx import MemoryX
from wafer_backend.structure import tensors_in
from wafer_backend.training_mode import training_mode
from wafer_backend.wafer import Leaf, Wafer, WaferRule


@dataclass(frozen=True)
class ActivationNeed:
    """Bytes of saved activations: `fixed` whatever the samples, and those of one sample."""

    fixed: int
    per_sample: int


@dataclass(frozen=True)
class Room:
    """`wafer_memory` in bytes, and the leaves that a batch is cut into at least."""

    wafer_memory: int
    min_leaves: int


class LeafSize:
    """Cuts batches; the first batch that learns decides for the whole run.

    `chosen`: samples of a leaf, None until then. `probe` tells what activations need.
    """

    def __init__(self, chosen: int | None, room: Room, probe: "Probe") -> None:
        self.chosen = chosen
        self._room = room
        self._probe = probe
        self._need: ActivationNeed | None = None

    def load(self, worker: ActivationWorker, arguments: Arguments, *, learns: bool) -> GlobalBatch:
        """A batch cut into leaves. Raises BackendConfigError when one sample does not fit."""
        batch = worker.load(arguments, self.chosen or 1)
        if self.chosen is not None:
            return batch
        size = self._largest(batch)
        if learns:
            self.chosen = size
        return replace(batch, micro_batch_size=size)

    def resume(self, chosen: int | None) -> None:
        """Take the size that a checkpoint was made with; raises BackendConfigError for another."""
        if self.chosen is not None and chosen not in (None, self.chosen):
            raise BackendConfigError(
                f"micro_batch_size is {self.chosen}, but was {chosen} where this run left off; "
                "another "
                "size gives other bits"
            )
        self.chosen = self.chosen or chosen

    def _largest(self, batch: GlobalBatch) -> int:
        if batch.batch_size == 1:
            return 1
        self._need = self._need or self._probe.need(batch)
        weights = self._probe.two_largest_weights
        free = self._room.wafer_memory - weights - self._need.fixed
        if free < self._need.per_sample:
            raise BackendConfigError(
                f"wafer_memory is {self._room.wafer_memory:,} bytes, but one sample needs "
                f"{self._need.per_sample:,} for activations, plus {self._need.fixed:,} for any "
                f"number of samples and {weights:,} for two weights; raise wafer_memory, or set "
                "activations to recompute or evict"
            )
        return tree.auto_micro_batch_size(
            batch.batch_size,
            min_leaves=self._room.min_leaves,
            bytes_per_sample=self._need.per_sample,
            wafer_memory=free,
        )


class Probe:
    """Measures what a module saves for backward."""

    def __init__(
        self, module: nn.Module, memoryx: MemoryX, buffers: Buffers, rule: WaferRule
    ) -> None:
        self._module = module
        self._memoryx = memoryx
        self._buffers = buffers
        self._rule = replace(rule, streams=True)

    @property
    def two_largest_weights(self) -> int:
        """Their bytes, as they travel."""
        return sum(sorted(map(self._memoryx.streamed_bytes, self._memoryx.parameters))[-2:])

    def need(self, batch: GlobalBatch) -> ActivationNeed:
        """Run the first sample, and the first two."""
        one, two = (self._saved_bytes(replace(batch, micro_batch_size=n)) for n in (1, 2))
        per_sample = max(0, two - one)
        return ActivationNeed(max(0, one - per_sample), per_sample)

    def _saved_bytes(self, batch: GlobalBatch) -> int:
        worker = ActivationWorker(self._rule.device)
        wafer = Wafer(0, self._module, _DiscardingTransport(self._memoryx), worker, self._rule)
        leaf = Leaf(0, 0, batch.micro_batch_size, worker.leaf(batch, 0))
        before = self._buffers.snapshot()
        with (
            training_mode(self._module, training=True),
            self._buffers.swapped(before),
            wafer.loaded(),
        ):
            try:
                wafer.replay(leaf, _no_gradients)
            except Exception as error:
                raise BackendConfigError(
                    f"the module failed on the first {leaf.samples} of {batch.batch_size} samples, "
                    f"run to choose micro_batch_size: {type(error).__name__}: {error}; if it only "
                    "needs more samples at once, set micro_batch_size"
                ) from error
        return wafer.activations.peak_bytes


class _DiscardingTransport:
    """A transport of weights only."""

    def __init__(self, memoryx: MemoryX) -> None:
        self.fetch_weight = memoryx.weight

    def send_gradient(self, leaf: int, name: str, gradient: torch.Tensor) -> None:
        pass

    def finish_leaf(self, system: int, leaf: int, loss_sum: float, n_counted: int) -> None:
        pass


def _no_gradients(output: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(t, torch.zeros_like(t)) for t in tensors_in(output) if t.requires_grad]
