"""The canonical tree: one bracket structure for every number of systems."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wafer_backend.cluster.tree import (
    Combiner,
    TreeNode,
    auto_micro_batch_size,
    leaf_count,
    leaves_of_system,
    maximal_nodes,
    samples_of_leaf,
    split_leaves,
)
from wafer_backend.errors import BackendConfigError


def documented(level: int, index: int, leaves: int) -> object:
    """The definition in design section 5, word for word; None stands for an empty node."""
    if index << level >= leaves:
        return None
    if level == 0:
        return index
    left = documented(level - 1, 2 * index, leaves)
    right = documented(level - 1, 2 * index + 1, leaves)
    return left if right is None else (left, right)


def brackets(num_csx: int, leaves: int, system_order: list[int] | None = None) -> object:
    """What the lanes of MemoryX and the tree of SwarmX compute, as nested pairs."""
    pair = lambda left, right: (left, right)  # noqa: E731
    owned = split_leaves(num_csx, leaves)
    swarmx: Combiner[object] = Combiner(leaves, range(leaves), pair)
    roots = []
    for system in system_order or range(num_csx):
        lane: Combiner[object] = Combiner(leaves, owned[system], pair)
        for leaf in owned[system]:
            for node, value in lane.push(TreeNode(0, leaf), leaf):
                roots += swarmx.push(node, value)
        assert len(lane) == 0
    assert len(swarmx) == 0
    ((_, root),) = roots
    return root


@settings(deadline=None)
@given(st.integers(1, 200), st.data())
def test_any_number_of_systems_gives_the_documented_brackets(leaves: int, data: st.DataObject):
    num_csx = data.draw(st.integers(1, leaves))
    order = data.draw(st.permutations(range(num_csx)))
    assert brackets(num_csx, leaves, list(order)) == documented(8, 0, leaves)


def test_uneven_counts_exhaustively():
    for leaves in range(1, 41):
        for num_csx in range(1, leaves + 1):
            assert brackets(num_csx, leaves) == documented(6, 0, leaves)


def test_per_system_sums_would_differ_at_twelve_leaves():
    """The mutant of the issue: if this were equal the other tests would prove nothing."""

    def per_system(num_csx: int) -> object:
        parts: list[object] = [list(leaves_of_system(j, num_csx, 12)) for j in range(num_csx)]
        while len(parts) > 1:
            parts = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        return parts[0]

    assert per_system(1) != per_system(2)
    assert brackets(1, 12) == brackets(2, 12)


@settings(deadline=None)
@given(st.integers(1, 300), st.data())
def test_maximal_nodes_cover_a_range_once(leaves: int, data: st.DataObject):
    start = data.draw(st.integers(0, leaves - 1))
    stop = data.draw(st.integers(start + 1, leaves))
    nodes = maximal_nodes(range(start, stop), leaves)
    covered = [leaf for node in nodes for leaf in node.leaves(leaves)]
    assert covered == list(range(start, stop))
    for node in nodes:
        above = node.parent.leaves(leaves)
        whole = len(node.leaves(leaves)) == leaves
        assert whole or above.start < start or above.stop > stop


@settings(deadline=None)
@given(st.integers(1, 1000))
def test_a_binary_counter_of_values_is_alive(leaves: int):
    counter: Combiner[int] = Combiner(leaves, range(leaves), lambda left, right: left + right)
    for leaf in range(leaves):
        done = counter.push(TreeNode(0, leaf), 1)
    assert done[0][1] == leaves
    assert counter.peak <= (leaves - 1).bit_length() + 1


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 50))
def test_leaves_partition_the_batch(batch_size: int, micro_batch: int):
    leaves = leaf_count(batch_size, micro_batch)
    samples = [s for k in range(leaves) for s in samples_of_leaf(k, batch_size, micro_batch)]
    assert samples == list(range(batch_size))
    sizes = [len(samples_of_leaf(k, batch_size, micro_batch)) for k in range(leaves)]
    assert set(sizes[:-1]) <= {micro_batch}


@settings(deadline=None)
@given(st.integers(1, 2000), st.integers(1, 20))
def test_auto_micro_batch_is_the_largest_that_leaves_enough_leaves(batch_size: int, least: int):
    chosen = auto_micro_batch_size(
        batch_size, min_leaves=least, bytes_per_sample=1, wafer_memory=10**9
    )
    allowed = [m for m in range(1, batch_size + 1) if leaf_count(batch_size, m) >= least]
    assert chosen == (max(allowed) if allowed else 1)


def test_auto_micro_batch_obeys_wafer_memory():
    chosen = auto_micro_batch_size(120, min_leaves=8, bytes_per_sample=100, wafer_memory=550)
    assert chosen == 5
    with pytest.raises(BackendConfigError, match="wafer_memory is 99"):
        auto_micro_batch_size(120, min_leaves=8, bytes_per_sample=100, wafer_memory=99)


def test_more_systems_than_leaves_is_refused():
    with pytest.raises(BackendConfigError, match="num_csx = 13 but the global batch has only 12"):
        split_leaves(13, 12)
