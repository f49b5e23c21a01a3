"""Repeated passages, against dictionaries of windows and against sorted suffixes."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.matches import MovedWindows, chain_matches, verify_matches
from dedup.substrings import (
    LEAST_BYTES,
    find_seeds,
    group_windows,
    hash_candidates,
    is_among,
)
from dedup.text import join_texts
from pipeline.core import zstd
from tests.dedup.plain_substrings import (
    Match,
    find_matches,
    find_repeats,
    find_repeats_by_ranks,
)


def cut_of(strings: list[str], least: int) -> list[Match]:
    """What the kernels find in texts that are compared together, in order."""
    texts = join_texts(pa.array(strings, pa.large_string()))
    seeds = find_seeds(texts, least)
    _, number, counts = np.unique(seeds.digest, return_inverse=True, return_counts=True)
    digest, place = hash_candidates(texts, seeds, (counts > 1)[number], least)
    windows = group_windows(texts, digest, place)
    none, runs = np.zeros(0, np.uint32), (windows.later, windows.first, windows.count)
    span = int(texts.offsets[-1])
    matches = chain_matches(0, span, least, MovedWindows(none, none, none), runs)
    match, low, high = verify_matches(
        texts.data, matches.start, matches.end, texts.data, matches.first, least
    )
    begin = matches.first[match] + low - matches.start[match]
    row, first = (np.searchsorted(texts.offsets, a, "right") - 1 for a in (low, begin))
    starts = texts.offsets[row]
    columns = (row, low - starts, high - starts, first, begin - texts.offsets[first])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def plain_matches(strings: list[str], least: int) -> list[Match]:
    texts = [string.encode() for string in strings]
    return find_matches(find_repeats(texts, least), texts, least)


parts = st.text(st.sampled_from("abé漢\n"), max_size=60)
collections = st.lists(parts, min_size=1, max_size=4).flatmap(
    lambda some: st.lists(st.lists(st.sampled_from(some), max_size=5).map("".join), max_size=6)
)


@settings(max_examples=150)
@given(collections, st.sampled_from([32, 33, 50, 64]))
def test_against_a_dictionary(strings: list[str], least: int) -> None:
    assert cut_of(strings, least) == plain_matches(strings, least)


@given(collections)
def test_the_two_references_agree(strings: list[str]) -> None:
    texts = [string.encode() for string in strings if len(string.encode()) >= 32]
    if texts:
        assert find_repeats_by_ranks(texts, 32) == find_repeats(texts, 32)


def test_one_character_over_and_over() -> None:
    """The first window stays whole, as no repeat overlaps its first occurrence; and every byte is
    accounted for once, or nearly so."""
    found = cut_of(["a" * 500], 50)
    assert (found[0], found[-1]) == ((0, 50, 100, 0, 0), (0, 450, 500, 0, 0))
    assert found == plain_matches(["a" * 500], 50) and len(found) == 10


def test_a_passage_in_two_parts() -> None:
    """A match whose two halves are first in different texts is two cuts, which overlap."""
    left, right = ("".join(chr(97 + (i * i + k) % 26) for i in range(70)) for k in (1, 2))
    found = cut_of([f"{left}1", f"2{right}", f"3{left}{right}4"], 64)
    assert found == [(2, 1, 71, 0, 0), (2, 71, 141, 1, 1)]


def test_what_differs_is_not_cut() -> None:
    """As where different windows have one hash."""
    later, earlier = (np.frombuffer(t, np.uint8) for t in (b"abcdXfghijk", b"_abcdefghijk"))
    start, end, first = np.array([0, 5]), np.array([11, 11]), np.array([1, 6])
    for least, expected in ((4, [(0, 0, 4), (0, 5, 11), (1, 5, 11)]), (5, [(0, 5, 11), (1, 5, 11)]),
                            (7, [])):  # fmt: skip
        found = verify_matches(later, start, end, earlier, first, least)
        assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


def test_windows_that_are_first_in_another_block() -> None:
    """Runs lead to where the first of them moved to, and break where that breaks; what stays must
    be apart."""
    moved = MovedWindows(*np.array([[10, 11, 12, 30], [7, 7, 8, 9], [50, 51, 0, 3]], np.uint32))
    runs = tuple(np.array([[40, 60], [10, 57], [4, 2]], np.uint32))
    found = chain_matches(2, 100, 4, moved, runs)
    rows = zip(
        *(c.tolist() for c in (found.start, found.end, found.block, found.first)), strict=True
    )
    assert list(rows) == [
        (10, 15, 7, 50), (12, 16, 8, 0), (30, 34, 9, 3),
        (40, 45, 7, 50), (42, 46, 8, 0), (43, 47, 2, 13),
    ]  # fmt: skip


@given(st.lists(st.integers(0, 2**64 - 1)), st.lists(st.integers(0, 2**64 - 1)))
def test_digests_that_are_known(digests: list[int], known: list[int]) -> None:
    every = [*digests, *known[::2], 0]
    found = is_among(np.array(every, np.uint64), np.array(known, np.uint64))
    assert found.tolist() == [digest in known for digest in every]


def test_windows_that_are_too_short() -> None:
    with pytest.raises(ValueError, match=f"windows have 31 bytes; give {LEAST_BYTES} or more"):
        find_seeds(join_texts(["text"]), LEAST_BYTES - 1)


def test_more_seeds_than_expected() -> None:
    """A run of one character whose windows are all seeds."""
    found = [find_seeds(join_texts([chr(c) * 30_000]), 200) for c in range(32, 127)]
    assert max(map(len, found)) == 30_000 - 50 + 1


def read_pile(shared_data: Path, size: int) -> list[str]:
    """The first `size` bytes of text of a shard, and then some."""
    data = zstd.decompress((shared_data / "pile_sample/03.jsonl.zst").read_bytes())
    strings: list[str] = []
    for line in data.splitlines():
        strings.append(json.loads(line)["text"])
        size -= len(strings[-1].encode())
        if size < 0:
            break
    return strings


@pytest.mark.parametrize(
    ("size", "least"), [(500_000, 60), pytest.param(5_000_000, 200, marks=pytest.mark.slow)]
)
def test_real_text_against_sorted_suffixes(shared_data: Path, size: int, least: int) -> None:
    strings = read_pile(shared_data, size)
    texts = [string.encode() for string in strings]
    expected = find_matches(find_repeats_by_ranks(texts, least), texts, least)
    assert cut_of(strings, least) == expected
    assert len(expected) > 50
