"""The canonical tree: which samples form a leaf, which leaves a CS-2 owns, in what order to add.

A global batch of B samples is cut into K = ceil(B / m) leaves of m consecutive samples (the last
may be shorter). `TreeNode` (level l, index i) covers leaves [i * 2^l, (i + 1) * 2^l) cut to [0, K);
its value is left + right, or left where the right half is empty. CS-2 j of N owns leaves [floor(j K
/ N), floor((j + 1) K / N)) and sends one partial per maximal aligned node inside that range. Every
addition is then one of the tree's own, so the bits do not depend on N. (A pairwise tree over
per-system sums does depend on it: K = 12 already differs.)

Nothing here knows tensors: `Combiner` adds any values with the function it is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from wafer_backend.errors import BackendConfigError

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


def spans(num_csx: int, leaves: int) -> list[range]:
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
