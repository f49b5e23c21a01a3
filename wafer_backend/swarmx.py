"""SwarmX: the tree between MemoryX and the wafers. It broadcasts and adds siblings, no more."""

import torch

from wafer_backend.errors import StepError
from wafer_backend.partial import Partial, add
from wafer_backend.tree import Combiner, TreeNode


class SwarmX:
    """Broadcasts weights downwards and reduces partials upwards in the canonical tree."""

    def __init__(self) -> None:
        self._reduce: Combiner[Partial] | None = None
        self._total: Partial | None = None

    def begin_step(self, leaves: int) -> None:
        """Prepare to reduce a batch of `leaves` leaves."""
        self._reduce = Combiner(leaves, range(leaves), add)
        self._total = None

    def broadcast(self, weight: torch.Tensor) -> torch.Tensor:
        """Hand a streamed weight down; bits are never touched."""
        return weight

    def reduce(self, node: TreeNode, partial: Partial) -> None:
        """Take one maximal node of one CS-2; siblings are added as soon as both are here."""
        if self._reduce is None:
            raise StepError("SwarmX received a partial outside a step")
        for _, total in self._reduce.push(node, partial):
            self._total = total

    @property
    def complete(self) -> bool:
        """Whether all leaves are in."""
        return self._total is not None

    def total(self) -> Partial:
        """The sum over all leaves. Raises StepError when leaves are missing."""
        if self._total is None:
            waiting = 0 if self._reduce is None else len(self._reduce)
            raise StepError(
                f"the reduction is incomplete: {waiting} partial nodes wait for siblings"
            )
        return self._total

    def abandon(self) -> None:
        """Forget a step that will not be finished."""
        self._reduce = self._total = None
