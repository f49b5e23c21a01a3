"""Contained documents against sets of shingles in plain Python."""

import random
from collections import defaultdict
from itertools import combinations
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup import containment
from dedup.containment import (
    MOST_CONTAINERS,
    ONE_OF,
    choose_containers,
    compare_pairs,
    count_shared,
    sample_shingles,
)
from dedup.presets import PRESETS, shingles
from dedup.similarity import PairJaccard

PRESET = PRESETS["slimpajama"]


def prose(seed: int, words: int) -> str:
    draw = random.Random(seed)
    return " ".join(f"{draw.getrandbits(16):x}" for _ in range(words))


def test_a_sample_has_a_shingle_wherever_it_is_or_nowhere() -> None:
    """About one in ONE_OF of the distinct shingles of a text, and those of a part among them."""
    whole, part, none = prose(1, 3_000), "", "short"
    part = whole[4_000:9_000]
    sample = sample_shingles([whole, none, part, part], PRESET)
    by_row = [sample.digest[sample.row == row].tolist() for row in range(4)]
    distinct = len(set(shingles(whole, PRESET)))
    assert 0.8 * distinct < ONE_OF * len(by_row[0]) < 1.2 * distinct
    assert len(set(by_row[0])) == len(by_row[0])
    assert not by_row[1]
    assert set(by_row[2]) < set(by_row[0]) and by_row[2] == by_row[3]
    assert (np.diff(sample.digest.astype(object)) >= 0).all()


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_text_is_sampled_the_same_in_parts_of_any_size(size: int) -> None:
    """Texts longer than a batch; and more shingles than the first guess has room for."""
    text = "".join(map(chr, np.random.default_rng(3).integers(0x4E00, 0x9FA5, size // 30)))
    alone = sample_shingles([text], PRESET)
    beside = sample_shingles(["x" * 50, text], PRESET)
    assert alone.digest.tolist() == beside.digest[beside.row == 1].tolist()
    distinct = len(set(shingles(text, PRESET)))
    assert ONE_OF * len(alone) == pytest.approx(distinct, rel=0.25)


documents = st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, 9))), max_size=12)


@given(documents, st.integers(0, 4))
def test_counts_are_those_of_dictionaries(found: list[tuple[int, set[int]]], new: int) -> None:
    """Of pairs whose shorter document is a new one."""
    rank = {n: (-size, n) for n, (size, _) in enumerate(found)}
    holders = defaultdict(list)
    for number, (_, digests) in enumerate(found):
        for digest in digests:
            holders[digest].append(number)
    expected: dict[tuple[int, int], int] = defaultdict(int)
    for several in holders.values():
        ordered = sorted(several, key=rank.__getitem__)
        for longer, shorter in combinations(range(len(ordered)), 2):
            if longer < MOST_CONTAINERS and ordered[shorter] >= new:
                expected[ordered[shorter], ordered[longer]] += 1
    entries = [(digest, n) for digest in sorted(holders) for n in holders[digest]]
    random.Random(1).shuffle(entries)
    entries.sort(key=lambda entry: entry[0])
    group, document = (np.array([e[i] for e in entries], np.uint32) for i in (0, 1))
    size = np.array([found[n][0] for _, n in entries], np.uint32)
    shorter, longer, counts = count_shared(group, document, size, new)
    pairs = zip(document[shorter].tolist(), document[longer].tolist(), strict=True)
    assert dict(zip(pairs, counts.tolist(), strict=True)) == expected


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.sampled_from([0.9, 1.0]))),
    st.integers(0, 4),
)
def test_each_goes_to_one_that_stays(drawn: list[tuple[int, int, float]], new: int) -> None:
    """Documents are numbered from the longest on here, two of each length; earlier ones stay."""
    ordered = {(max(a, b), min(a, b)): share for a, b, share in drawn if a != b}
    links = {pair: share for pair, share in ordered.items() if pair[0] >= new}
    rows = list(links.items())
    columns = [[pair[0] for pair, _ in rows], [pair[1] for pair, _ in rows]]
    member, container = (np.array(column, np.uint32) for column in columns)
    sizes = np.uint32(100) - member // 2
    shares = np.array([share for _, share in rows])
    chosen = choose_containers(member, sizes, container, shares, new)
    gone: dict[int, int] = {}
    for number in range(9):
        stays = [(b >= new, -s, b) for (a, b), s in links.items() if a == number and b not in gone]
        if stays:
            gone[number] = min(stays)[2]
    assert dict(zip(member[chosen].tolist(), container[chosen].tolist(), strict=True)) == gone


@given(st.text("ab ", max_size=60), st.text("ab ", max_size=60))
def test_containment_is_that_of_sets(a: str, b: str) -> None:
    """Also of texts that are too long to hold, and for one table."""
    first, second = (np.frombuffer(text.encode(), np.uint8) for text in (a, b))
    one, two = set(shingles(a, PRESET)), set(shingles(b, PRESET))
    expected = (len(one & two) / len(one), len(one & two) / len(one | two)) if one else (0.0, 0.0)
    assert PairJaccard(PRESET, 64).containment(first, second) == pytest.approx(expected)
    pairs = np.array([0, 1, 0, 0]), np.array([1, 0, 1, 0])
    for most in (1 << 20, 20):
        with mock.patch.object(containment, "_MOST_HELD", most):
            found = compare_pairs([first, second].__getitem__, *pairs, PRESET)
        assert found[[0, 2]] == pytest.approx(np.array([expected] * 2))
        assert found[3].tolist() == [float(bool(one))] * 2
