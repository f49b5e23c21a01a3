"""Sorted runs, ranges of keys and buckets, against dictionaries."""

import time
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup import join
from dedup.join import buckets, key_ranges
from dedup.lsh import slice_run, sort_run
from tests.dedup.plain_join import U32, U64, Runs, plain_buckets

LAST = 2**64 - 1

digest = st.one_of(
    st.integers(0, 5),
    st.sampled_from([0, 1, 2**63 - 1, 2**63, LAST - 1, LAST]),
    st.integers(0, LAST),
)
lists_of_digests = st.lists(digest, max_size=80)


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
    return [sort_run(values[own], own) for own in rows]


@given(lists_of_digests, st.randoms(use_true_random=False))
def test_sorted_run(digests: list[int], random: object) -> None:
    rows = list(range(len(digests)))
    random.shuffle(rows)  # type: ignore[attr-defined]
    before = np.array(digests, np.uint64), np.array(rows, np.uint32)
    found = sort_run(*before)
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


@pytest.mark.parametrize("count", [30_000, 200_000])
@pytest.mark.parametrize("kind", KINDS)
def test_sorted_run_of_any_distribution(kind: str, count: int) -> None:
    """In one part, and in several."""
    digests = skewed(kind, count)
    rows = np.random.default_rng(6).permutation(count).astype(np.uint32) * np.uint32(20_000)
    order = np.lexsort((rows, digests))
    found, owners = sort_run(digests, rows)
    assert (found == digests[order]).all() and (owners == rows[order]).all()


def test_sort_is_linear_in_equal_digests() -> None:
    """Equal digests in any order of rows: eight times the entries, not 64 times the time."""

    def seconds(count: int) -> float:
        rows = np.random.default_rng(0).permutation(count).astype(np.uint32)
        digests = np.zeros(count, np.uint64)
        start = time.process_time()
        sort_run(digests, rows)
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
        sort_run(digests, rows)
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
    run, _ = sort_run(
        np.array(digests + extremes, np.uint64),
        np.arange(len(digests) + len(extremes), dtype=np.uint32),
    )
    slices = [slice_run(run, low, high) for low, high in ranges]
    assert slices[0][0] == 0 and slices[-1][1] == len(run)
    assert all(stop == start for (_, stop), (start, _) in pairwise(slices))
    for (start, stop), (low, high) in zip(slices, ranges, strict=True):
        assert all(low <= one <= high for one in run[start:stop].tolist())


def joined(runs: Runs, new_from: int = 0, batch: int = 1 << 17) -> list[list[int]]:
    """Buckets of the runs, with batches and windows of so many entries; merged, they are sorted."""
    digests, documents = [one for one, _ in runs], [one for _, one in runs]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_BATCH", "_WINDOW"):
            patch.setattr(join, name, batch)
        for name in ("_BATCH_PER_RUN", "_WINDOW_PER_RUN"):
            patch.setattr(join, name, 1)
        found = buckets(digests, documents, new_from=new_from)
        merged = join.merge(digests, documents)
    entries = [np.concatenate(arrays) for arrays in (digests, documents)]
    assert np.array_equal(merged, [one[np.lexsort(entries[::-1])] for one in entries])
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
    runs = [sort_run(digests[part], part) for part in parts]
    assert joined(runs, batch=batch) == joined(runs[::-1], batch=batch) == expected


def test_batches_of_the_default_size() -> None:
    """More entries than one batch takes, once with so many runs that a batch is larger."""
    digests = np.repeat(np.random.default_rng(2).integers(0, LAST, 150_000, np.uint64), 2)
    for count in (2, 700):
        parts = np.array_split(np.arange(300_000, dtype=np.uint32), count)
        runs = [sort_run(digests[part], part) for part in parts]
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
        for function in (buckets, join.merge):
            with pytest.raises(ValueError, match="sorted_run"):
                function([unsorted], [documents])
    with pytest.raises(ValueError, match="1 arrays of digests, 2 of documents"):
        buckets([np.sort(digests)], [documents, documents])
