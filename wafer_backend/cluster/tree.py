"""The canonical tree, the partial sums that travel up it, and SwarmX, which adds them.

A global batch of B samples is cut into K = ceil(B / m) leaves of m consecutive samples. `TreeNode`
(level l, index i) covers leaves [i * 2^l, (i + 1) * 2^l) cut to [0, K); its value is left + right.
CS-2 j of N owns leaves [floor(j K / N), floor((j + 1) K / N)) and sends one partial per maximal
aligned node inside that range. Every addition is then one of the tree's own, so the bits do not
depend on N.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from wafer_backend.errors import BackendConfigError, StepError

Value = TypeVar("Value")


@dataclass(frozen=True, order=True)
class TreeNode:
    """One node of the canonical tree."""

    level: int
    index: int

    @property
    def parent(self) -> "TreeNode":
        """The node one level up that covers this one."""
        return TreeNode(self.level + 1, self.index >> 1)

    @property
    def sibling(self) -> "TreeNode":
        """The other half of the parent."""
        return TreeNode(self.level, self.index ^ 1)

    def leaves(self, count: int) -> range:
        """Leaves covered, cut to [0, count); may be empty.

        >>> TreeNode(2, 2).leaves(11)
        range(8, 11)
        """
        first, last = self.index << self.level, (self.index + 1) << self.level
        return range(min(first, count), min(last, count))


def leaf_count(batch_size: int, micro_batch_size: int) -> int:
    """K = ceil(B / m).

    >>> leaf_count(13, 2)
    7
    """
    if batch_size < 1 or micro_batch_size < 1:
        raise BackendConfigError(
            f"batch size {batch_size} and micro-batch size {micro_batch_size} must be at least 1"
        )
    return -(-batch_size // micro_batch_size)


def samples_of_leaf(leaf: int, batch_size: int, micro_batch_size: int) -> range:
    """Samples of one leaf, as positions in the global batch; only the last leaf may be short.

    >>> samples_of_leaf(6, 13, 2)
    range(12, 13)
    """
    first = leaf * micro_batch_size
    return range(first, min(first + micro_batch_size, batch_size))


def leaves_of_system(system: int, num_csx: int, leaves: int) -> range:
    """Leaves owned by CS-2 `system` (0-based).

    >>> [leaves_of_system(j, 3, 8) for j in range(3)]
    [range(0, 2), range(2, 5), range(5, 8)]
    """
    return range(system * leaves // num_csx, (system + 1) * leaves // num_csx)


def split_leaves(num_csx: int, leaves: int) -> list[range]:
    """The leaves of every CS-2. Raises BackendConfigError when a system would have none."""
    if num_csx < 1:
        raise BackendConfigError(f"num_csx = {num_csx}: expected at least 1")
    if num_csx > leaves:
        raise BackendConfigError(
            f"num_csx = {num_csx} but the global batch has only {leaves} leaves; "
            f"use num_csx <= {leaves}, a larger batch_size or a smaller micro_batch_size"
        )
    return [leaves_of_system(system, num_csx, leaves) for system in range(num_csx)]


def maximal_nodes(span: range, leaves: int) -> list[TreeNode]:
    """The largest nodes inside `span`, left to right; together they cover it exactly once.

    >>> maximal_nodes(range(3, 8), 12)
    [TreeNode(level=0, index=3), TreeNode(level=2, index=1)]
    """
    combiner: Combiner[None] = Combiner(leaves, span, lambda left, right: None)
    nodes = [node for leaf in span for node, _ in combiner.push(TreeNode(0, leaf), None)]
    return sorted(nodes, key=lambda node: node.leaves(leaves).start)


def auto_micro_batch_size(
    batch_size: int, *, min_leaves: int, bytes_per_sample: int, wafer_memory: int
) -> int:
    """The largest m that fits `wafer_memory` and leaves at least `min_leaves` leaves.

    `bytes_per_sample` is what one sample's activations and gradients occupy on a wafer; both
    sizes in bytes. Never depends on num_csx. A batch smaller than `min_leaves` gives m = 1.

    >>> auto_micro_batch_size(120, min_leaves=8, bytes_per_sample=1, wafer_memory=1000)
    17
    """
    fits = wafer_memory // max(1, bytes_per_sample)
    if fits < 1:
        raise BackendConfigError(
            f"one sample needs {bytes_per_sample:,} bytes but wafer_memory is {wafer_memory:,}; "
            "raise wafer_memory or shorten the sequences"
        )
    # ceil(B / m) >= L holds exactly when m * (L - 1) < B.
    enough = batch_size if min_leaves <= 1 else (batch_size - 1) // (min_leaves - 1)
    return max(1, min(fits, enough, batch_size))


class Combiner(Generic[Value]):
    """Adds nodes up to the maximal aligned nodes of `span`; arrival order does not matter.

    It holds at most ceil(log2 K) + 1 values when leaves arrive in order (a binary counter).
    """

    def __init__(self, leaves: int, span: range, add: Callable[[Value, Value], Value]) -> None:
        self._leaves = leaves
        self._span = span
        self._add = add
        self._pending: dict[TreeNode, Value] = {}
        self.peak = 0

    def push(self, node: TreeNode, value: Value) -> list[tuple[TreeNode, Value]]:
        """Add one node; returns the maximal node it completed, if any, with its value."""
        self.peak = max(self.peak, len(self._pending) + 1)
        while self._has_parent(node):
            sibling = node.sibling
            if sibling.leaves(self._leaves):
                if sibling not in self._pending:
                    self._pending[node] = value
                    return []
                other = self._pending.pop(sibling)
                left, right = (other, value) if node.index & 1 else (value, other)
                value = self._add(left, right)
            node = node.parent
        return [(node, value)]

    def __len__(self) -> int:
        return len(self._pending)

    def _has_parent(self, node: TreeNode) -> bool:
        if len(node.leaves(self._leaves)) == self._leaves:
            return False
        above = node.parent.leaves(self._leaves)
        return above.start >= self._span.start and above.stop <= self._span.stop


@dataclass(frozen=True)
class Partial:
    """Sums over one node of the canonical tree.

    `gradients`: parameter name -> gradient of the sum of loss_sum (shape and dtype of the
    parameter); a parameter the leaves did not use has no entry. `loss_sum`: nats, float64.
    `n_counted`: labels. `own`: names whose gradients were made here, so nobody else holds them.
    """

    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    loss_sum: float = 0.0
    n_counted: int = 0
    own: set[str] = field(default_factory=set)

    def take_in(self, name: str, gradient: torch.Tensor, *, own: bool) -> None:
        """Add a gradient in place of what is there; `own`: it was made here too, and is given up.

        A sum goes into a tensor that was made here; others are let go as soon as they are added.
        """
        so_far = self.gradients.get(name)
        if so_far is None:
            self.gradients[name] = gradient
        else:
            room = so_far if name in self.own else gradient if own else None
            self.gradients[name] = torch.add(so_far, gradient, out=room)
            own = True
        if own:
            self.own.add(name)


def add_partials(left: Partial, right: Partial) -> Partial:
    """left + right, tensor by tensor in fp32, losses in float64; no tensor is written to."""
    gradients = dict(left.gradients)
    for name, gradient in right.gradients.items():
        so_far = gradients.get(name)
        gradients[name] = gradient if so_far is None else torch.add(so_far, gradient)
    return Partial(gradients, left.loss_sum + right.loss_sum, left.n_counted + right.n_counted)


def merge_partials(left: Partial, right: Partial) -> Partial:
    """The bits of `add_partials`, where both partials are given up: no third set of gradients is
    ever alive.
    """
    for name in list(right.gradients):
        left.take_in(name, right.gradients.pop(name), own=name in right.own)
    return Partial(
        left.gradients, left.loss_sum + right.loss_sum, left.n_counted + right.n_counted, left.own
    )


class SwarmX:
    """Broadcasts weights downwards and reduces partials upwards in the canonical tree."""

    def __init__(self) -> None:
        self._reduce: Combiner[Partial] | None = None
        self._total: Partial | None = None

    def begin_step(self, leaves: int) -> None:
        """Prepare to reduce a batch of `leaves` leaves."""
        self._reduce = Combiner(leaves, range(leaves), add_partials)
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
