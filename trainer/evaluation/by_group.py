"""Sums of the loss over groups of labels, beside the sum that the backend takes.

Every leaf adds its labels up in float64 as its forward pass runs, and leaves are added in their
order, so the sums are the same for any number of systems, transport or rank. The loss that the
backend reduces is not touched.

Shapes: B sequences of a batch, S tokens (MSL), G groups.
"""

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pipeline.core.errors import IntegrityError
from pipeline.core.words import pluralise
from trainer.data import Batch
from trainer.model.loss import LabelLosses
from wafer_backend.compiled import CompiledModule

GROUP, SAMPLE = "label_group", "sample"
_NOWHERE = 1
"""Groups before the first one: labels that belong to none."""
_BEYOND = 1 << 40
"""The place of a leaf that is none, after all others."""

LeafSums = tuple[Tensor, Tensor]


class GroupSums:
    """Adds up what leaves of `compiled` find while `listening`.

    `loss` (nats) and `counted`, both (G,): float64 and int64 sums over all batches taken.
    """

    def __init__(self, compiled: CompiledModule, groups: int) -> None:
        self._compiled = compiled
        self._leaves: dict[int, LeafSums] = {}
        self._loss = torch.zeros(groups + _NOWHERE, dtype=torch.float64)
        self._counted = torch.zeros(groups + _NOWHERE, dtype=torch.int64)

    @property
    def loss(self) -> npt.NDArray[np.float64]:
        """Nats of every group."""
        return self._loss[_NOWHERE:].numpy()

    @property
    def counted(self) -> npt.NDArray[np.int64]:
        """Counted labels of every group."""
        return self._counted[_NOWHERE:].numpy()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Leaves of tagged batches are heard inside."""
        (losses,) = (m for m in self._compiled.module.modules() if isinstance(m, LabelLosses))
        handle = losses.register_forward_hook(self._hear)
        try:
            yield
        finally:
            handle.remove()

    def tagged(self, batch: Batch, group_BS: npt.NDArray[np.int64]) -> Batch:
        """The batch with the group of every label, -1 for none; the model looks at neither."""
        samples = torch.arange(len(group_BS))
        return {**batch, GROUP: torch.from_numpy(group_BS), SAMPLE: samples}

    def take(self) -> None:
        """Add what leaves have found since the last time; every rank calls it.

        Raises IntegrityError when a label counts that belongs to no group.
        """
        for loss, labels in self._in_order():
            self._loss += loss
            self._counted += labels
        self._leaves.clear()
        strays = int(self._counted[0])
        if strays:
            raise IntegrityError(
                f"the lineage has no document for {pluralise(strays, 'label')} of the data set; "
                "`prep verify` reports what is damaged"
            )

    def _hear(
        self, module: nn.Module, arguments: tuple[Tensor, Mapping[str, Tensor]], losses: Tensor
    ) -> None:
        batch = arguments[1]
        group_N = batch[GROUP].flatten().cpu() + _NOWHERE
        mask_N = batch["attention_mask"].flatten().cpu()
        nats_N = losses.cpu().to(torch.float64) * mask_N
        sums = (
            torch.zeros_like(self._loss).index_add_(0, group_N, nats_N),
            torch.zeros_like(self._counted).index_add_(0, group_N, mask_N),
        )
        self._leaves[int(batch[SAMPLE][0])] = sums

    def _in_order(self) -> list[LeafSums]:
        transport = self._compiled.transport
        if transport.processes == 1:
            return [self._leaves[first] for first in sorted(self._leaves)]
        # A rank that ran no leaf of a short batch must have something to give: a leaf of nothing.
        nothing = (torch.zeros_like(self._loss), torch.zeros_like(self._counted))
        return transport.gather({**self._leaves, _BEYOND: nothing})
