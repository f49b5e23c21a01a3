"""Repeated passages, against dictionaries of windows and against sorted suffixes."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.substrings import (
    LEAST_BYTES,
    chain_matches,
    find_seeds,
    keep_candidates,
    verify_match,
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
    windows = keep_candidates(texts, seeds, (counts > 1)[number], least)
    _, first, of_window = np.unique(windows.digest, return_index=True, return_inverse=True)
    row, byte = windows.row[first][of_window], windows.byte_start[first][of_window]
    later = (row != windows.row) | (windows.byte_start - byte >= least)
    row, byte = row[later], byte[later]
    matches = chain_matches(windows.row[later], windows.byte_start[later], row, byte, least)
    found = []
    for k, one in enumerate(matches.first.tolist()):
        start, end, begin = int(matches.byte_start[k]), int(matches.byte_end[k]), int(byte[one])
        of_text, of_first = (
            texts.data[texts.offsets[n] : texts.offsets[n + 1]] for n in (matches.row[k], row[one])
        )
        spans = verify_match(of_text, start, end, of_first, begin, least).tolist()
        number = int(matches.row[k])
        found += [(number, low, high, int(row[one]), begin + low - start) for low, high in spans]
    return found


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
    assert verify_match(later, 0, 11, earlier, 1, 4).tolist() == [[0, 4], [5, 11]]
    assert verify_match(later, 0, 11, earlier, 1, 5).tolist() == [[5, 11]]
    assert verify_match(later, 0, 11, earlier, 1, 7).tolist() == []


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
