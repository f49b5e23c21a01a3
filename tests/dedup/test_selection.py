"""The selection against a brute-force reference, on random bucket memberships and similarities."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dedup import clusters
from dedup.clusters import (
    COMPARED,
    DOUBTFUL_READS,
    KEPT,
    Memberships,
    Rules,
    collapse,
    group_memberships,
    select_representatives,
)

CELLS = 16


@dataclass
class Case:
    """Documents by rank, the members of each bucket with its channel, and what is alike."""

    count: int
    buckets: list[tuple[int, list[int]]]
    signatures: np.ndarray
    exact: np.ndarray
    origin: np.ndarray
    rules: Rules

    def memberships(self, random: np.random.Generator | None = None) -> Memberships:
        """Flat; with `random`, in another order and with other bucket numbers."""
        entries = [(m, b, c) for b, (c, members) in enumerate(self.buckets) for m in members]
        member, bucket, channel = np.array(entries, np.int64).reshape(-1, 3).T
        if random is not None and entries:
            order = random.permutation(len(entries))
            bucket = random.permutation(len(self.buckets))[bucket]
            member, bucket, channel = member[order], bucket[order], channel[order]
        return group_memberships(
            member.astype(np.uint32), bucket.astype(np.int64), channel.astype(np.uint8), self.count
        )

    def run(self, random: np.random.Generator | None = None) -> clusters.Selection:
        return select_representatives(
            self.memberships(random), self.signatures, self.rules,
            lambda a, b: float(self.exact[a, b]), self.origin,
        )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 24))
    member = st.lists(st.integers(0, count - 1), unique=True, min_size=1, max_size=20)
    buckets = draw(st.lists(st.tuples(st.integers(0, 4), member), max_size=12))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    exact = random.random((count, count))
    exact = np.triu(exact, 1) + np.triu(exact, 1).T
    signatures = random.integers(0, 2, (count, CELLS)).astype(np.uint32)
    signatures[:, : draw(st.integers(0, CELLS))] = 0
    origins = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=count, max_size=count)
    rules = Rules(
        draw(st.sampled_from(["estimate", "exact"])), draw(st.sampled_from([0.3, 0.6, 0.9])), CELLS,
        sure=draw(st.sampled_from([0, 1 << 4])), same=draw(st.sampled_from([0, 1 << 3])),
    )  # fmt: skip
    return Case(count, buckets, signatures, exact, np.array(draw(origins), np.uint8), rules)


def brute_force(case: Case) -> tuple[list[int], list[int]]:
    """Pairs and all: visit by rank, drop when a kept one shares a bucket and is alike enough."""
    kept: list[int] = []
    representative, channels = [KEPT] * case.count, [0] * case.count
    for d in range(case.count):
        if case.origin[d] == 2:
            continue
        doubtful = 0
        for k in kept if case.origin[d] == 0 else []:
            bits = 0
            for channel, members in case.buckets:
                bits |= (1 << channel) * (d in members and k in members)
            estimate = float((case.signatures[d] == case.signatures[k]).mean())
            sure = bits & case.rules.sure or (bits & case.rules.same and estimate == 1)
            if bits and not sure and case.rules.reject_below <= estimate < case.rules.threshold:
                doubtful += 1
            if doubtful > clusters.DOUBTFUL_READS and not sure and estimate < case.rules.threshold:
                continue
            if bits and accepted(case, bits, estimate, float(case.exact[d, k])):
                representative[d], channels[d] = k, bits
                break
        else:
            kept.append(d)
    return representative, channels


def accepted(case: Case, bits: int, estimate: float, exact: float) -> bool:
    rules = case.rules
    if bits & rules.sure or (bits & rules.same and estimate == 1):
        return True
    if rules.verify == "estimate":
        return estimate >= rules.threshold
    return estimate >= rules.reject_below and exact >= rules.threshold


def test_the_margin_is_4_5_standard_deviations() -> None:
    assert Rules("exact", 0.5, 100).reject_below == 0.5 - 4.5 * 0.05


@given(cases())
def test_select_equals_brute_force(case: Case) -> None:
    found = case.run()
    assert (found.representative.tolist(), found.channels.tolist()) == brute_force(case)


@given(cases(), st.integers(0, 99))
def test_select_ignores_edge_order(case: Case, seed: int) -> None:
    first, second = case.run(), case.run(np.random.default_rng(seed))
    assert first.representative.tolist() == second.representative.tolist()
    assert first.channels.tolist() == second.channels.tolist()
    np.testing.assert_array_equal(first.exact, second.exact)


@given(cases())
def test_dropped_ones_are_like_a_kept_one(case: Case) -> None:
    """No transitive wipe-out, and what is reported is what was measured."""
    found = case.run()
    for d, k in enumerate(found.representative.tolist()):
        if k == KEPT:
            assert np.isnan(found.exact[d])
            continue
        assert k < d
        assert found.representative[k] == KEPT
        assert case.origin[d] == 0
        assert case.origin[k] != 2
        assert found.estimate[d] == (case.signatures[d] == case.signatures[k]).mean()
        if not np.isnan(found.exact[d]) and found.exact[d] != 1:
            assert found.exact[d] == case.exact[d, k] >= case.rules.threshold


@given(cases())
def test_collapse_keeps_the_smallest_of_every_component(case: Case) -> None:
    label = list(range(case.count))
    for _, members in case.buckets:
        joined = {label[m] for m in members}
        label = [min(joined) if x in joined else x for x in label]
    found = collapse(case.memberships(), np.array(label), case.origin)
    for d in range(case.count):
        standing = [k for k in range(case.count) if label[k] == label[d] and case.origin[k] != 2]
        if case.origin[d] == 0 and standing[0] != d:
            k = standing[0]
            together = {c for c, members in case.buckets if d in members and k in members}
            assert found.representative[d] == k
            assert found.channels[d] == sum(1 << c for c in together)
        else:
            assert found.representative[d] == KEPT


def test_nothing_at_all() -> None:
    nothing = np.zeros(0, np.int64)
    memberships = group_memberships(nothing.astype(np.uint32), nothing, nothing.astype(np.uint8), 0)
    found = select_representatives(
        memberships, np.zeros((0, 4), np.uint32), Rules("exact", 0.8, 4), lambda a, b: 1.0
    )
    assert found.representative.tolist() == []


def boilerplate(documents: int) -> clusters.Selection:
    """One bucket that holds every document, none of them alike: n^2 pairs if all were compared."""
    random = np.random.default_rng(1)
    signatures = random.integers(0, 1 << 32, (documents, 64)).astype(np.uint32)
    member = np.arange(documents, dtype=np.uint32)
    zeros = np.zeros(documents, np.int64)
    memberships = group_memberships(member, zeros, zeros.astype(np.uint8), documents)
    return select_representatives(
        memberships, signatures, Rules("exact", 0.8, 64), lambda a, b: 1.0
    )


def test_work_is_linear_in_the_size_of_a_bucket() -> None:
    found = boilerplate(3 * COMPARED)
    assert (found.representative == KEPT).all()
    assert found.counts["compared"] == COMPARED * (COMPARED - 1) // 2 + 2 * COMPARED * COMPARED
    assert found.counts["cut_short"] == 2 * COMPARED - 1


def test_of_many_doubtful_candidates_the_most_alike_are_read() -> None:
    """Pages of one template, each a little below the threshold by estimate; one is a duplicate of
    the last, and its estimate is higher than that of the others though its rank is not."""
    pages, cells, duplicate = 3 * DOUBTFUL_READS, 128, 2 * DOUBTFUL_READS
    signatures = np.zeros((pages + 1, cells), np.uint32)
    for page in range(pages):
        different = 27 if page == duplicate else 34
        signatures[page, :different] = page + 1
    member = np.arange(pages + 1, dtype=np.uint32)
    zeros = np.zeros(pages + 1, np.int64)
    memberships = group_memberships(member, zeros, zeros.astype(np.uint8), pages + 1)
    read = []

    def exact(a: int, b: int) -> float:
        read.append((a, b))
        return 0.81 if (a, b) == (pages, duplicate) else 0.5

    found = select_representatives(memberships, signatures, Rules("exact", 0.8, cells), exact)
    assert np.flatnonzero(found.representative != KEPT).tolist() == [pages]
    assert found.representative[pages] == duplicate
    assert [b for a, b in read if a == pages] == [*range(DOUBTFUL_READS - 1), duplicate]
