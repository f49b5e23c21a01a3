"""Which row a segment goes to: `first_fit` or `greedy`.

N segments of 1 to S labels each; a row has room for S.

`first_fit` visits segments by falling length, equal ones in stream order, and takes the first row
with room: first-fit decreasing, at most 11/9 of the fewest rows plus 6/9 (Dosa 2007). `greedy`
visits them in stream order and opens a row when the current one has no room: next fit, under twice
the fewest rows. Both depend on the lengths alone, never on chance or on workers.
"""

from collections.abc import Callable

import numpy as np

from dedup.arrays import I64
from dedup.compiled import kernel

Packer = Callable[[I64, int], I64]


def first_fit(labels_N: I64, max_sequence_length: int) -> I64:
    """The row of every segment, (N,), rows counted from 0 without a gap. O(N log N).

    >>> first_fit(np.array([3, 5, 1, 2, 4]), 5).tolist()
    [2, 0, 1, 2, 1]
    """
    order = np.argsort(-labels_N, kind="stable")
    full = int((labels_N == max_sequence_length).sum())
    row = np.empty(len(labels_N), np.int64)
    row[order[:full]] = np.arange(full)
    shorter = order[full:]
    leaves = 1 << max(0, len(shorter) - 1).bit_length()
    room = np.full(2 * leaves, max_sequence_length, np.int64)
    chosen = np.empty(len(shorter), np.int64)
    _first_fit(labels_N[shorter].astype(np.int64), room, chosen)
    row[shorter] = full + chosen
    return row


@kernel
def _first_fit(labels: I64, room: I64, row: I64) -> None:
    """room: a binary tree of maxima, room[1] its root, its second half the rows, all with the room
    of an empty row; at least as many rows as labels. row: as long as labels, written."""
    leaves = len(room) // 2
    for i in range(len(labels)):
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < labels[i]:
                node += 1
        row[i] = node - leaves
        room[node] -= labels[i]
        node //= 2
        while node:
            larger = max(room[2 * node], room[2 * node + 1])
            if room[node] == larger:
                break
            room[node] = larger
            node //= 2


def greedy(labels_N: I64, max_sequence_length: int) -> I64:
    """The row of every segment, (N,), rows counted from 0 without a gap. O(N).

    >>> greedy(np.array([3, 5, 1, 2, 4]), 5).tolist()
    [0, 1, 2, 2, 3]
    """
    row = np.empty(len(labels_N), np.int64)
    _next_fit(labels_N.astype(np.int64), max_sequence_length, row)
    return row


@kernel
def _next_fit(labels: I64, max_sequence_length: int, row: I64) -> None:
    """row: as long as labels, written."""
    current, room = -1, 0
    for i in range(len(labels)):
        if labels[i] > room:
            current += 1
            room = max_sequence_length
        room -= labels[i]
        row[i] = current


PACKERS: dict[str, Packer] = {"first_fit": first_fit, "greedy": greedy}
"""By the name that `pack.packer` gives them."""
