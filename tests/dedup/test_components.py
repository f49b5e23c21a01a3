"""Components against a plain union-find, in memory and out of core."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.components import (
    CandidateComponents,
    components,
    flatten_labels,
    label_components,
    new_parents,
    unite,
)
from dedup.join import ENTRY_BYTES, buckets, key_ranges
from dedup.lsh import band_digests, slice_run, sort_run
from tests.dedup.plain_join import U32, Runs, plain_buckets, plain_labels


@st.composite
def memberships(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """(documents, members of each bucket)."""
    count = draw(st.integers(1, 20))
    member = st.lists(st.integers(0, count - 1), unique=True, min_size=2, max_size=5).map(sorted)
    return count, draw(st.lists(member, max_size=12)) if count > 1 else []


def united(count: int, groups: list[list[int]]) -> U32:
    parents = new_parents(count)
    members = np.array([m for group in groups for m in group], np.uint32)
    bucket = np.repeat(np.arange(len(groups), dtype=np.uint32), [len(g) for g in groups])
    unite(parents, members, bucket.astype(np.uint32))
    return flatten_labels(parents)


@given(memberships(), st.randoms(use_true_random=False))
def test_union_find(case: tuple[int, list[list[int]]], random: object) -> None:
    count, groups = case
    expected = plain_labels(count, groups)
    assert united(count, groups).tolist() == expected
    shuffled = [list(group) for group in groups]
    for one in (shuffled, *shuffled):
        random.shuffle(one)  # type: ignore[attr-defined]
    assert united(count, shuffled).tolist() == expected


@given(memberships())
def test_components(case: tuple[int, list[list[int]]]) -> None:
    labels = united(*case)
    members, starts = components(labels)
    assert members.dtype == np.uint32 and starts.dtype == np.int64
    assert starts[0] == 0 and starts[-1] == len(members)
    groups = defaultdict(list)
    for document, label in enumerate(labels.tolist()):
        groups[label].append(document)
    found = [members[start:stop].tolist() for start, stop in pairwise(starts)]
    assert found == [groups[label] for label in sorted(groups) if len(groups[label]) > 1]


@settings(max_examples=200)
@given(memberships(), st.integers(1, 6), st.sampled_from([0, 64, 640]))
def test_candidates_are_dealt_out(
    case: tuple[int, list[list[int]]], largest: int, before: int
) -> None:
    """Whole components in their order, as many as fit; `before` documents are in no bucket."""
    count, groups = before + case[0], [[before + m for m in group] for group in case[1]]
    members = [np.array(group, np.uint32) for group in groups]
    scratch: list[int] = []

    def allocate(number: int) -> U32:
        scratch.append(number)
        return np.zeros((2, number), np.uint32)

    candidates = CandidateComponents(count, members, allocate)
    for group in members:
        candidates.unite(group, np.zeros(len(group), np.uint32))
    number, most, sizes = candidates.deal(largest)
    by_label: dict[int, list[int]] = defaultdict(list)
    for document in {m for group in groups for m in group}:
        by_label[plain_labels(count, groups)[document]].append(document)
    expected = [by_label[label] for label in sorted(by_label)]
    assert scratch == [candidates.count] == [sum(map(len, expected))]
    assert (number, most) == (len(expected), max(map(len, expected), default=0))
    task, component = candidates.look_up(before, count)
    found: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for document in (np.flatnonzero(task) + before).tolist():
        place = document - before
        found[int(task[place]) - 1][int(component[place])].append(document)
    assert [sum(map(len, one.values())) for _, one in sorted(found.items())] == sizes.tolist()
    assert [found[g][c] for g in sorted(found) for c in sorted(found[g])] == [
        sorted(group) for group in expected
    ]
    for group, size in enumerate(sizes.tolist()):
        assert size <= largest or len(found[group]) == 1
    for group, size in enumerate(sizes.tolist()[:-1]):
        first = found[group + 1][min(found[group + 1])]
        assert size + len(first) > largest, "it would have had room"
    assert not candidates.look_up(0, before)[0].any()
    with pytest.raises(ValueError, match="a multiple of 64"):
        candidates.look_up(1, count)


def test_candidates_must_be_documents() -> None:
    with pytest.raises(ValueError, match="member 3 of 3 documents"):
        CandidateComponents(3, [np.array([0, 3], np.uint32)], lambda n: np.zeros((2, n), np.uint32))
    with pytest.raises(ValueError, match="one join takes at most 4294967294"):
        CandidateComponents(2**32 - 1, [], lambda n: np.zeros((2, n), np.uint32))


def test_no_documents() -> None:
    labels = flatten_labels(new_parents(0))
    members, starts = components(labels)
    assert len(labels) == len(members) == 0 and starts.tolist() == [0]
    assert len(label_components(np.zeros((0, 128), np.uint32), 9, 13)) == 0


@pytest.mark.parametrize(
    ("members", "bucket", "message"),
    [
        (np.array([0, 3], np.uint32), np.zeros(2, np.uint32), "member 3 of 3 documents"),
        (np.zeros(1, np.uint32), np.zeros(2, np.uint32), "1 members with 2"),
        (np.array([0, -1]), np.zeros(2, np.uint32), "give uint32"),
    ],
)
def test_members_must_be_documents(members: U32, bucket: U32, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unite(new_parents(3), members, bucket)


@pytest.mark.parametrize("count", [-1, 2**32 - 1])
def test_too_many_documents(count: int) -> None:
    with pytest.raises(ValueError, match="one join takes at most 4294967294"):
        new_parents(count)


@pytest.mark.parametrize("labels", [[0, 0, 1], [0, 2, 2], [0, 9, 2]])
def test_parents_are_no_labels(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="call finish"):
        components(np.array(labels, np.uint32))


def planted(count: int, copies: int) -> U32:
    """Signatures whose last `copies` documents keep each cell of another one with J in 0.6 .. 1."""
    random = np.random.default_rng(3)
    signatures = random.integers(0, 2**32, (count, 128), np.uint32)
    source = random.integers(0, count - copies, copies)
    keep = random.random((copies, 128)) < random.uniform(0.6, 1, copies)[:, None]
    signatures[-copies:] = np.where(keep, signatures[source], signatures[-copies:])
    return signatures[random.permutation(count)]


def out_of_core(signatures: U32, cuts: list[int], memory: int, skip: npt.NDArray[np.bool_]) -> U32:
    """The way of the pipeline: runs per shard, a range at a time, streamed into one union-find."""
    runs: list[Runs] = [[] for _ in range(9)]
    for start, stop in pairwise([0, *cuts, len(signatures)]):
        rows = np.flatnonzero(~skip[start:stop]).astype(np.uint32)
        digests = band_digests(signatures[start:stop][rows], 9, 13)
        for band in range(9):
            runs[band].append(sort_run(digests[band], rows + np.uint32(start)))
    parents = new_parents(len(signatures))
    ranges = key_ranges(len(signatures), ENTRY_BYTES, memory)
    for band in range(9):
        for low, high in reversed(ranges):
            slices = [(run, slice(*slice_run(run[0], low, high))) for run in runs[band]]
            found = buckets([r[0][s] for r, s in slices], [r[1][s] for r, s in slices])
            unite(parents, *found)
    return flatten_labels(parents)


@settings(max_examples=8)
@given(st.lists(st.integers(0, 3000), max_size=6).map(sorted), st.integers(5_000, 200_000))
def test_out_of_core_equals_in_memory(cuts: list[int], memory: int) -> None:
    signatures = planted(3000, 600)
    skip = np.zeros(3000, np.bool_)
    expected = label_components(signatures, 9, 13)
    assert (out_of_core(signatures, cuts, memory, skip) == expected).all()


def test_connected_equals_plain_labels() -> None:
    """And with documents that meet nobody, though their signatures are all the same."""
    signatures = planted(1500, 300)
    skip = np.zeros(1500, np.bool_)
    skip[::7] = True
    signatures[skip] = 2**32 - 1
    digests = band_digests(signatures, 9, 13).tolist()
    every = [group for band in digests for group in plain_buckets(band)]
    assert label_components(signatures, 9, 13).tolist() == plain_labels(1500, every)
    others = [[m for m in group if not skip[m]] for group in every]
    labels = label_components(signatures, 9, 13, skip)
    assert labels.tolist() == plain_labels(1500, [group for group in others if group])
    assert (labels == out_of_core(signatures, [400, 900], 9_000, skip)).all()
    assert 100 < (labels != np.arange(1500)).sum() < 300


def test_connected_takes_wide_signatures_and_all_skipped() -> None:
    signatures = planted(500, 100)
    expected = label_components(signatures, 9, 13)
    assert (label_components(signatures.astype(np.uint64), 9, 13) == expected).all()
    nobody = label_components(signatures, 9, 13, np.ones(500, np.bool_))
    assert nobody.tolist() == list(range(500))
    with pytest.raises(ValueError, match="a mask of 3 for 500 documents"):
        label_components(signatures, 9, 13, np.zeros(3, np.bool_))


def test_permuted_documents_have_the_same_components() -> None:
    signatures = planted(2000, 500)
    order = np.random.default_rng(9).permutation(2000)

    def sets(labels: U32, names: npt.NDArray[np.int64]) -> set[frozenset[int]]:
        members, starts = components(labels)
        return {frozenset(names[members[a:z]].tolist()) for a, z in pairwise(starts)}

    one = sets(label_components(signatures, 9, 13), np.arange(2000))
    assert one == sets(label_components(signatures[order], 9, 13), order)
    assert len(one) > 100
