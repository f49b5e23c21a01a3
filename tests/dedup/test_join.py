"""Runs, ranges, buckets and components against dictionaries and a plain union-find."""

import time
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup import join
from dedup.components import components, connected, finish, new_parents, unite
from dedup.join import ENTRY_BYTES, buckets, key_ranges
from dedup.lsh import band_digests
from dedup.runs import slice_run, sorted_run

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Runs = list[tuple[U64, U32]]
LAST = 2**64 - 1

digest = st.one_of(
    st.integers(0, 5),
    st.sampled_from([0, 1, 2**63 - 1, 2**63, LAST - 1, LAST]),
    st.integers(0, LAST),
)
lists_of_digests = st.lists(digest, max_size=80)


def plain_buckets(digests: list[int], new_from: int = 0) -> list[list[int]]:
    """Documents by digest, in ascending order of both."""
    groups = defaultdict(list)
    for document, one in enumerate(digests):
        groups[one].append(document)
    found = [groups[one] for one in sorted(groups)]
    return [group for group in found if len(group) > 1 and max(group) >= new_from]


def plain_labels(count: int, groups: list[list[int]]) -> list[int]:
    labels = list(range(count))
    for group in groups:
        wanted = {labels[document] for document in group}
        labels = [min(wanted) if label in wanted else label for label in labels]
    return labels


def lists_of(members: U32, bucket: U32) -> list[list[int]]:
    assert members.dtype == bucket.dtype == np.uint32 and members.shape == bucket.shape
    groups = defaultdict(list)
    for member, number in zip(members.tolist(), bucket.tolist(), strict=True):
        groups[number].append(member)
    assert list(groups) == list(range(len(groups))), "numbered from 0, in order"
    return list(groups.values())


def runs_of(digests: list[int], owner_of_run: list[int]) -> Runs:
    """Entry i goes to run owner_of_run[i]; every run is sorted."""
    values, place = np.array(digests, np.uint64), np.array(owner_of_run, np.int64)
    rows = [np.flatnonzero(place == run).astype(np.uint32) for run in range(4)]
    return [sorted_run(values[own], own) for own in rows]


@given(lists_of_digests, st.randoms(use_true_random=False))
def test_sorted_run(digests: list[int], random: object) -> None:
    rows = list(range(len(digests)))
    random.shuffle(rows)  # type: ignore[attr-defined]
    before = np.array(digests, np.uint64), np.array(rows, np.uint32)
    found = sorted_run(*before)
    expected = sorted(zip(digests, rows, strict=True))
    assert list(zip(*(part.tolist() for part in found), strict=True)) == expected
    assert found[0].dtype == np.uint64 and found[1].dtype == np.uint32
    assert before[0].tolist() == digests and before[1].tolist() == rows, "input stays"


def skewed(kind: str, count: int) -> U64:
    """Digests that a radix sort over upper bits does not like."""
    random = np.random.default_rng(5)
    uniform = random.integers(0, LAST, count, np.uint64, endpoint=True)
    narrow = uniform >> np.uint64(44)
    made: dict[str, U64] = {
        "uniform": uniform,
        "equal": np.full(count, LAST, np.uint64),
        "two values": np.where(uniform % 2 == 0, np.uint64(0), np.uint64(LAST)),
        "low bits only": narrow,
        "low bits and one far off": np.r_[narrow[1:], np.uint64(LAST)],
        "half equal": np.where(uniform % 2 == 0, uniform, np.uint64(7)),
        "across a power of two": narrow + np.uint64(2**63 - 2**19),
        "few bits far apart": uniform & np.uint64(0x8000_0100_0000_0003),
    }
    return made[kind]


KINDS = (
    "uniform",
    "equal",
    "two values",
    "low bits only",
    "low bits and one far off",
    "half equal",
    "across a power of two",
    "few bits far apart",
)


@pytest.mark.parametrize("kind", KINDS)
def test_sorted_run_of_any_distribution(kind: str) -> None:
    digests = skewed(kind, 30_000)
    rows = np.random.default_rng(6).permutation(30_000).astype(np.uint32) * np.uint32(140_000)
    order = np.lexsort((rows, digests))
    found, owners = sorted_run(digests, rows)
    assert (found == digests[order]).all() and (owners == rows[order]).all()


def test_sort_is_linear_in_equal_digests() -> None:
    """Equal digests in any order of rows: eight times the entries, not 64 times the time."""

    def seconds(count: int) -> float:
        rows = np.random.default_rng(0).permutation(count).astype(np.uint32)
        digests = np.zeros(count, np.uint64)
        start = time.process_time()
        sorted_run(digests, rows)
        return time.process_time() - start

    seconds(100)
    small, large = (min(seconds(count) for _ in range(3)) for count in (50_000, 400_000))
    assert large < 24 * small + 0.05


@pytest.mark.parametrize(
    ("digests", "rows"),
    [
        (np.zeros(2, np.int64), np.zeros(2, np.uint32)),
        (np.zeros(2, np.uint64), np.zeros(2, np.int64)),
        (np.zeros(2, np.uint64), np.zeros(3, np.uint32)),
        (np.zeros((2, 2), np.uint64), np.zeros((2, 2), np.uint32)),
    ],
)
def test_entries_must_fit(digests: U64, rows: U32) -> None:
    with pytest.raises(ValueError, match="give"):
        sorted_run(digests, rows)
    with pytest.raises(ValueError, match="give"):
        buckets([digests], [rows])


@given(st.integers(0, 10**12), st.integers(1, 100), st.integers(1, 10**10))
def test_key_ranges_part_all_digests(count: int, entry: int, memory: int) -> None:
    if memory < entry or count * entry // memory > 2000:
        return
    ranges = key_ranges(count, entry, memory)
    assert ranges[0][0] == 0 and ranges[-1][1] == LAST
    assert all(high + 1 == low for (_, high), (low, _) in pairwise(ranges))
    sizes = [high - low for low, high in ranges]
    assert max(sizes) - min(sizes) <= 1
    assert count * entry <= memory * len(ranges) < count * entry + memory or len(ranges) == 1


@pytest.mark.parametrize(("count", "entry", "memory"), [(5, 8, 7), (5, 0, 7), (-1, 8, 80)])
def test_key_ranges_need_memory(count: int, entry: int, memory: int) -> None:
    with pytest.raises(ValueError, match="raise the memory"):
        key_ranges(count, entry, memory)


@given(lists_of_digests, st.integers(1, 9))
def test_slices_part_a_run(digests: list[int], parts: int) -> None:
    """Each entry is in exactly one slice, extremes and cut points included."""
    ranges = key_ranges(parts, 1, 1)
    extremes = [edge for pair in ranges for edge in pair]
    run, _ = sorted_run(
        np.array(digests + extremes, np.uint64),
        np.arange(len(digests) + len(extremes), dtype=np.uint32),
    )
    slices = [slice_run(run, low, high) for low, high in ranges]
    assert slices[0][0] == 0 and slices[-1][1] == len(run)
    assert all(stop == start for (_, stop), (start, _) in pairwise(slices))
    for (start, stop), (low, high) in zip(slices, ranges, strict=True):
        assert all(low <= one <= high for one in run[start:stop].tolist())


def joined(runs: Runs, new_from: int = 0, batch: int = 1 << 17) -> list[list[int]]:
    """Buckets of the runs, with batches and windows of so many entries."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_BATCH", "_WINDOW"):
            patch.setattr(join, name, batch)
        for name in ("_BATCH_PER_RUN", "_WINDOW_PER_RUN"):
            patch.setattr(join, name, 1)
        found = buckets([one for one, _ in runs], [one for _, one in runs], new_from=new_from)
    return lists_of(*found)


@given(st.data(), lists_of_digests, st.integers(1, 50))
def test_buckets(data: st.DataObject, digests: list[int], batch: int) -> None:
    """Equal dictionaries for any cut into runs, any order of the runs and any size of batches."""
    owners = data.draw(st.lists(st.integers(0, 3), min_size=len(digests), max_size=len(digests)))
    new_from = data.draw(st.integers(0, len(digests) + 1))
    runs = data.draw(st.permutations(runs_of(digests, owners)))
    assert joined(runs) == joined(runs, batch=batch) == plain_buckets(digests)
    assert joined(runs, new_from, batch) == plain_buckets(digests, new_from)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, 17, 400])
@pytest.mark.parametrize("batch", [300, 5_000, 1 << 17])
def test_buckets_of_many_runs(kind: str, count: int, batch: int) -> None:
    """Runs much smaller than a window; every tenth document a copy."""
    digests = skewed(kind, 20_000)
    digests[::10] = digests[5::10]
    expected = plain_buckets(digests.tolist())
    parts = np.array_split(np.arange(20_000, dtype=np.uint32), count)
    runs = [sorted_run(digests[part], part) for part in parts]
    assert joined(runs, batch=batch) == joined(runs[::-1], batch=batch) == expected


def test_batches_of_the_default_size() -> None:
    """More entries than one batch takes, once with so many runs that a batch is larger."""
    digests = np.repeat(np.random.default_rng(2).integers(0, LAST, 150_000, np.uint64), 2)
    for count in (2, 700):
        parts = np.array_split(np.arange(300_000, dtype=np.uint32), count)
        runs = [sorted_run(digests[part], part) for part in parts]
        members, bucket = buckets([one for one, _ in runs], [one for _, one in runs])
        assert (bucket == np.repeat(np.arange(150_000), 2)).all()
        assert (members[1::2] == members[::2] + 1).all() and (members[::2] % 2 == 0).all()
        assert (np.diff(digests[members[::2]].astype(np.float64)) >= 0).all()


@given(st.data(), lists_of_digests, st.integers(1, 20))
def test_run_out_of_order_never_loses_a_bucket(
    data: st.DataObject, digests: list[int], batch: int
) -> None:
    """It is refused, unless the order makes no difference."""
    runs = runs_of(digests, [i % 2 for i in range(len(digests))])
    order = np.array(data.draw(st.permutations(range(len(runs[0][0])))), np.int64)
    runs[0] = (runs[0][0][order], runs[0][1][order])
    with suppress(ValueError):
        assert joined(runs, batch=batch) == plain_buckets(digests)


def test_swapped_neighbours_at_a_cut() -> None:
    """An entry beyond the end of its batch, yet not beyond the end of the last window."""
    random = np.random.default_rng(4)
    for _ in range(300):
        digests = random.integers(0, 100, 60).tolist()
        first, second = runs_of(digests, [i % 2 for i in range(60)])[:2]
        place = int(random.integers(0, 29))
        order = np.arange(30)
        order[[place, place + 1]] = place + 1, place
        with suppress(ValueError):
            found = joined([first, (second[0][order], second[1][order])], batch=7)
            assert found == plain_buckets(digests)


def test_buckets_leaves_its_input() -> None:
    digests, documents = np.array([1, 1, 2], np.uint64), np.arange(3, dtype=np.uint32)
    for one in (digests, documents):
        one.flags.writeable = False
    members, bucket = buckets([digests], [documents])
    assert members.tolist() == [0, 1] and bucket.tolist() == [0, 0]
    assert digests.tolist() == [1, 1, 2] and documents.tolist() == [0, 1, 2]


def test_no_entries_no_buckets() -> None:
    nothing = np.zeros(0, np.uint64), np.zeros(0, np.uint32)
    for runs in ([], [nothing], [nothing, nothing]):
        members, bucket = buckets([one for one, _ in runs], [one for _, one in runs])
        assert len(members) == len(bucket) == 0


def test_unsorted_run_is_refused() -> None:
    digests = np.random.default_rng(0).integers(0, LAST, 20_000, np.uint64)
    documents = np.arange(20_000, dtype=np.uint32)
    for unsorted in (digests, np.sort(digests)[::-1].copy()):
        with pytest.raises(ValueError, match="sorted_run"):
            buckets([unsorted], [documents])
    with pytest.raises(ValueError, match="1 arrays of digests, 2 of documents"):
        buckets([np.sort(digests)], [documents, documents])


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
    return finish(parents)


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


def test_no_documents() -> None:
    labels = finish(new_parents(0))
    members, starts = components(labels)
    assert len(labels) == len(members) == 0 and starts.tolist() == [0]
    assert len(connected(np.zeros((0, 128), np.uint32), 9, 13)) == 0


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
            runs[band].append(sorted_run(digests[band], rows + np.uint32(start)))
    parents = new_parents(len(signatures))
    ranges = key_ranges(len(signatures), ENTRY_BYTES, memory)
    for band in range(9):
        for low, high in reversed(ranges):
            slices = [(run, slice(*slice_run(run[0], low, high))) for run in runs[band]]
            found = buckets([r[0][s] for r, s in slices], [r[1][s] for r, s in slices])
            unite(parents, *found)
    return finish(parents)


@settings(max_examples=8)
@given(st.lists(st.integers(0, 3000), max_size=6).map(sorted), st.integers(5_000, 200_000))
def test_out_of_core_equals_in_memory(cuts: list[int], memory: int) -> None:
    signatures = planted(3000, 600)
    skip = np.zeros(3000, np.bool_)
    expected = connected(signatures, 9, 13)
    assert (out_of_core(signatures, cuts, memory, skip) == expected).all()


def test_connected_equals_plain_labels() -> None:
    """And with documents that meet nobody, though their signatures are all the same."""
    signatures = planted(1500, 300)
    skip = np.zeros(1500, np.bool_)
    skip[::7] = True
    signatures[skip] = 2**32 - 1
    digests = band_digests(signatures, 9, 13).tolist()
    every = [group for band in digests for group in plain_buckets(band)]
    assert connected(signatures, 9, 13).tolist() == plain_labels(1500, every)
    others = [[m for m in group if not skip[m]] for group in every]
    labels = connected(signatures, 9, 13, skip)
    assert labels.tolist() == plain_labels(1500, [group for group in others if group])
    assert (labels == out_of_core(signatures, [400, 900], 9_000, skip)).all()
    assert 100 < (labels != np.arange(1500)).sum() < 300


def test_connected_takes_wide_signatures_and_all_skipped() -> None:
    signatures = planted(500, 100)
    expected = connected(signatures, 9, 13)
    assert (connected(signatures.astype(np.uint64), 9, 13) == expected).all()
    nobody = connected(signatures, 9, 13, np.ones(500, np.bool_))
    assert nobody.tolist() == list(range(500))
    with pytest.raises(ValueError, match="a mask of 3 for 500 documents"):
        connected(signatures, 9, 13, np.zeros(3, np.bool_))


def test_permuted_documents_have_the_same_components() -> None:
    signatures = planted(2000, 500)
    order = np.random.default_rng(9).permutation(2000)

    def sets(labels: U32, names: npt.NDArray[np.int64]) -> set[frozenset[int]]:
        members, starts = components(labels)
        return {frozenset(names[members[a:z]].tolist()) for a, z in pairwise(starts)}

    one = sets(connected(signatures, 9, 13), np.arange(2000))
    assert one == sets(connected(signatures[order], 9, 13), order)
    assert len(one) > 100
