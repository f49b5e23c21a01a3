"""Candidates and the selection against a brute-force reference, on random bucket memberships."""

import time

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from dedup.candidates import buckets
from dedup.clusters import KEPT, select

I64 = npt.NDArray[np.int64]
Membership = list[list[int]]


def brute_force_buckets(digests: list[int]) -> set[frozenset[int]]:
    groups: dict[int, set[int]] = {}
    for index, digest in enumerate(digests):
        groups.setdefault(digest, set()).add(index)
    return {frozenset(group) for group in groups.values() if len(group) > 1}


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1)), max_size=40))
def test_buckets(digests: list[int]) -> None:
    members, numbers = buckets(np.array(digests, np.uint64))
    groups: dict[int, list[int]] = {}
    for member, number in zip(members.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(number, []).append(member)
    assert {frozenset(g) for g in groups.values()} == brute_force_buckets(digests)
    assert sorted(groups) == list(range(len(groups)))
    assert all(group == sorted(group) for group in groups.values())


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, Membership, list[int]]:
    """(documents, members of each bucket, rank of each document)."""
    count = draw(st.integers(1, 14))
    member = st.lists(st.integers(0, count - 1), unique=True, min_size=1, max_size=6)
    return count, draw(st.lists(member, max_size=12)), draw(st.permutations(range(count)))


def brute_force_select(
    count: int, membership: Membership, rank: list[int]
) -> tuple[list[int], list[int]]:
    """Pairs and all: visit by rank, drop when an already kept one shares a bucket."""
    shares = [
        [sum(a in b and c in b for b in membership) for a in range(count)] for c in range(count)
    ]
    kept: list[int] = []
    representative, shared = [KEPT] * count, [0] * count
    for document in sorted(range(count), key=rank.__getitem__):
        edges = [k for k in kept if shares[document][k]]
        if edges:
            best = min(edges, key=rank.__getitem__)
            representative[document], shared[document] = best, shares[document][best]
        else:
            kept.append(document)
    return representative, shared


def flat(membership: Membership) -> tuple[I64, I64]:
    members = [m for bucket in membership for m in bucket]
    numbers = [n for n, bucket in enumerate(membership) for _ in bucket]
    return np.array(members, np.int64), np.array(numbers, np.int64)


@given(cases())
def test_select_equals_brute_force(case: tuple[int, Membership, list[int]]) -> None:
    count, membership, rank = case
    representative, shared = select(*flat(membership), np.array(rank, np.int64))
    expected = brute_force_select(count, membership, rank)
    assert (representative.tolist(), shared.tolist()) == expected


@given(cases(), st.randoms(use_true_random=False))
def test_select_ignores_edge_order(case: tuple[int, Membership, list[int]], random: object) -> None:
    _, membership, rank = case
    members, numbers = flat(membership)
    order = np.arange(len(members))
    random.shuffle(order)  # type: ignore[attr-defined]
    renamed = np.arange(len(membership))
    random.shuffle(renamed)  # type: ignore[attr-defined]
    first = select(members, numbers, np.array(rank, np.int64))
    names = renamed[numbers[order]] if len(numbers) else numbers
    second = select(members[order], names, np.array(rank, np.int64))
    assert [a.tolist() for a in first] == [a.tolist() for a in second]


@given(cases())
def test_dropped_ones_touch_a_kept_one(case: tuple[int, Membership, list[int]]) -> None:
    """No transitive wipe-out: the representative is kept, better ranked, and shares a bucket."""
    _, membership, rank = case
    representative, shared = select(*flat(membership), np.array(rank, np.int64))
    for document, stands_for in enumerate(representative.tolist()):
        together = [b for b in membership if document in b and stands_for in b]
        if stands_for == KEPT:
            assert shared[document] == 0
            continue
        assert representative[stands_for] == KEPT
        assert rank[stands_for] < rank[document]
        assert shared[document] == len(together) > 0


def test_no_edges() -> None:
    nothing = np.zeros(0, np.int64)
    representative, shared = select(nothing, nothing, np.arange(3))
    assert representative.tolist() == [KEPT] * 3 and shared.tolist() == [0] * 3


def seconds(documents: int) -> float:
    """One bucket that holds every document, nine times: n^2 pairs if pairs were ever made."""
    digests = np.zeros(documents, np.uint64)
    start = time.process_time()
    members, numbers = buckets(digests)
    nine = np.concatenate([numbers + band for band in range(9)])
    representative, _ = select(np.tile(members, 9), nine, np.arange(documents))
    assert (representative[1:] == 0).all()
    return time.process_time() - start


def test_linear_in_the_size_of_a_bucket() -> None:
    """Four times the documents cost far less than sixteen times the time."""
    seconds(1000)
    small = min(seconds(5_000) for _ in range(3))
    large = min(seconds(20_000) for _ in range(3))
    assert large < 9 * small + 0.05
