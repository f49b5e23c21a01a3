"""Overlap with evaluation items against a plain Python oracle, and on the labelled documents."""

import json
import math
import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.eval_index import ALL_COMMON, CHECKED, COMMON, TOO_SHORT, build_item_index
from dedup.overlap import SPANS, Hits, find_overlaps
from dedup.presets import normalize
from dedup.words import one_sigma

Word = tuple[str, int, int]
Found = dict[tuple[int, int], tuple[float, list[tuple[int, int]]]]

PIECES = [
    "sun", "Moon", "mother-in-law", "ΟΔΟΣ", "οδος", "οδός", "İzmir", "i̇zmir", "café", "東京",
    "x" * 70, "🙂", "--", "...", "(sun)", "moon's", "\u0085", "A.B", "ǅ",
]  # fmt: skip
BLANKS = [" ", "  ", "\n", "\t ", "\u00a0", " - ", "\u2003"]


def words_of(text: str) -> list[Word]:
    """(normalised word, its first byte, the byte after its last), by Python's own rules."""
    found = []
    for token in re.finditer(r"\S+", text):
        kept = [i for i, c in enumerate(token.group()) if c not in string.punctuation]
        if kept:
            first, last = token.start() + kept[0], token.start() + kept[-1] + 1
            word = one_sigma(normalize(token.group()))
            found.append((word, len(text[:first].encode()), len(text[:last].encode())))
    return found


def oracle(
    documents: list[str], items: list[str], n: int, min_words: int, min_overlap: float
) -> tuple[Found, list[int]]:
    """(document, item) -> (share, spans), of the first item of those with the same words."""
    split = [tuple(word for word, _, _ in words_of(item)) for item in items]
    firsts = [
        i for i, item in enumerate(split) if split.index(item) == i and len(item) >= min_words
    ]
    sizes = {
        i: min(n, len(split[i]), max(min_words, math.ceil(len(split[i]) * min_overlap - 1e-9)))
        for i in firsts
    }
    grams: Counter[tuple[str, ...]] = Counter()
    for item in split:
        if len(item) >= min_words:
            size = sizes[split.index(item)]
            grams.update(item[k : k + size] for k in range(len(item) - size + 1))
    found: Found = {}
    status = [TOO_SHORT if len(item) < min_words else CHECKED for item in split]
    for i in firsts:
        item, size = split[i], sizes[i]
        rare = [
            (k, item[k : k + size])
            for k in range(len(item) - size + 1)
            if grams[item[k : k + size]] <= COMMON
        ]
        searched = {word for k, _ in rare for word in range(k, k + size)}
        if not searched:
            for j, other in enumerate(split):
                status[j] = ALL_COMMON if other == item else status[j]
        for d, document in enumerate(documents):
            words = words_of(document)
            names = tuple(word for word, _, _ in words)
            covered: set[int] = set()
            spans: list[list[int]] = []
            for at in range(len(words) - size + 1):
                places = [k for k, gram in rare if gram == names[at : at + size]]
                covered |= {word for k in places for word in range(k, k + size)}
                if places and spans and at <= spans[-1][1]:
                    spans[-1][1] = at + size
                elif places:
                    spans.append([at, at + size])
            if spans:
                bytes_ = [(words[a][1], words[b - 1][2]) for a, b in spans]
                found[d, i] = (len(covered) / len(searched), bytes_)
    return found, status


def as_dict(hits: Hits, entry_P: Any) -> Found:
    found: Found = {}
    columns = (hits.document, entry_P[hits.part], hits.byte_start, hits.byte_end, hits.share)
    for d, i, start, end, share in zip(*(c.tolist() for c in columns), strict=True):
        spans = found.setdefault((d, i), (share, []))[1]
        assert found[d, i][0] == share
        spans.append((start, end))
    return found


@st.composite
def texts(draw: st.DrawFn) -> str:
    pieces = draw(
        st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(BLANKS)), max_size=14)
    )
    return "".join(piece + blank for piece, blank in pieces)


@given(
    st.lists(texts(), max_size=4), st.lists(texts(), max_size=5),
    st.integers(1, 4), st.integers(0, 4), st.sampled_from([0.1, 0.4, 0.5, 1.0]),
    st.lists(st.integers(0, 4), max_size=4),
)  # fmt: skip
def test_against_the_oracle(
    documents: list[str], items: list[str], min_words: int, more: int, min_overlap: float,
    planted: list[int],
) -> None:  # fmt: skip
    documents = [*documents, *(f"sun {items[i]} moon" for i in planted if i < len(items))]
    n = min_words + more
    index, entry, status = build_item_index(items, n, min_words, min_overlap)
    expected, expected_status = oracle(documents, items, n, min_words, min_overlap)
    assert as_dict(find_overlaps(documents, index), entry) == expected
    assert status.tolist() == expected_status
    assert np.all(np.diff(entry) > 0)


def numbered(first: int, count: int) -> str:
    return " ".join(f"word{k}" for k in range(first, first + count))


@pytest.mark.parametrize("before", [0, 4070, 4083, 4084, 4090, 4095, 4096, 4097, 8180])
def test_an_item_across_blocks(before: int) -> None:
    item = numbered(100_000, 40)
    document = f"{numbered(0, before)} {item.upper()}, {numbered(1, 50)}"
    index, _, _ = build_item_index([item])
    hits = find_overlaps([document], index)
    start = document.index("WORD")
    assert hits.byte_start.tolist() == [start]
    assert hits.byte_end.tolist() == [document.index(",")]
    assert hits.share.tolist() == [1.0]


def test_share_of_what_is_planted() -> None:
    item = numbered(0, 60)
    index, _, _ = build_item_index([item], 13, 8, 0.4)
    halves = [numbered(0, count) for count in (12, 13, 23, 24, 30, 60)]
    hits = find_overlaps(halves, index)
    assert dict(zip(hits.document.tolist(), hits.share.tolist(), strict=True)) == {
        1: 13 / 60, 2: 23 / 60, 3: 24 / 60, 4: 30 / 60, 5: 1.0,
    }  # fmt: skip
    assert set(hits.at_least(0.4).document.tolist()) == {3, 4, 5}


def test_a_short_part_is_found_by_its_share_in_one_run() -> None:
    index, _, status = build_item_index([numbered(0, 16), numbered(50, 7)], 13, 8, 0.4)
    assert status.tolist() == [CHECKED, TOO_SHORT]
    hits = find_overlaps([numbered(4, 8), numbered(4, 7), numbered(50, 7)], index)
    assert hits.document.tolist() == [0]
    assert hits.share.tolist() == [0.5]


def test_text_without_blanks_is_not_compared() -> None:
    item = "天地玄黄，宇宙洪荒。" * 50
    index, _, status = build_item_index([item])
    assert status.tolist() == [TOO_SHORT]
    assert len(find_overlaps([item], index)) == 0


def test_spans_are_limited_and_shares_are_not() -> None:
    item = numbered(0, 10)
    document = " and ".join([item] * (SPANS + 5))
    hits = find_overlaps([document, item], build_item_index([item])[0])
    assert hits.document.tolist() == [0] * SPANS + [1]
    assert set(hits.share.tolist()) == {1.0}


def test_what_many_items_share_is_no_item() -> None:
    """A prompt in front of every item, or as a field of every item."""
    prompt = numbered(0, 20)
    items = [f"{prompt} {numbered(1000 * (k + 1), 30)}" for k in range(COMMON + 1)]
    index, _, status = build_item_index(items)
    assert status.tolist() == [CHECKED] * (COMMON + 1)
    hits = find_overlaps([f"Now {prompt} says who?", items[7]], index)
    assert hits.document.tolist() == [1]
    assert hits.share.tolist() == [1.0]
    assert find_overlaps([prompt], build_item_index(items[1:])[0]).document.tolist() == [0] * COMMON
    assert build_item_index([prompt] * (COMMON + 1))[2].tolist() == [ALL_COMMON] * (COMMON + 1)
    assert build_item_index([prompt] * COMMON)[2].tolist() == [CHECKED] * COMMON


def test_chunks_and_slices() -> None:
    item = numbered(0, 20)
    index, _, _ = build_item_index(pa.array([item]))
    chunks = pa.chunked_array([["x", item], [], [f"ü {item}", "y"]], pa.large_string())
    assert find_overlaps(chunks, index).document.tolist() == [1, 2]
    assert find_overlaps(chunks.slice(1), index).document.tolist() == [0, 1]
    assert find_overlaps(chunks.slice(2), index).byte_start.tolist() == [3]
    assert len(find_overlaps([], index)) == len(find_overlaps([item], build_item_index([])[0])) == 0


@pytest.mark.parametrize(
    ("n", "min_words", "min_overlap"), [(13, 0, 0.4), (7, 8, 0.4), (65, 8, 0.4), (13, 8, 0.0)]
)
def test_refused_settings(n: int, min_words: int, min_overlap: float) -> None:
    with pytest.raises(ValueError, match="expected 1 <= min_words <= n"):
        build_item_index(["a"], n, min_words, min_overlap)


@pytest.mark.shared_data
def test_planted_items(shared_data: Path) -> None:
    """54 documents with an item planted, 100 without: what is missed is too short by the rules."""
    items = [
        (path.name, str(value), text)
        for path in sorted((shared_data / "eval_sets").glob("*_[0-9]*.jsonl"))
        for record in map(json.loads, path.read_text().splitlines())
        for value in [record.get("doc_id", record.get("id", record.get("ind")))]
        for text in _strings(record)
    ]
    lines = (shared_data / "eval_sets/contaminated_docs.jsonl").read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    index, entry, _ = build_item_index([text for _, _, text in items])
    hits = find_overlaps([d["text"] for d in documents], index).at_least(0.4)
    found: dict[int, set[tuple[str, str]]] = {}
    for document, part in zip(hits.document.tolist(), hits.part.tolist(), strict=True):
        found.setdefault(document, set()).add(items[entry[part]][:2])
    missed = []
    for number, document in enumerate(documents):
        planted = document["meta"]["planted"]
        if planted is None:
            assert number not in found
        elif (planted["eval_set"], str(planted["item"])) not in found.get(number, ()):
            missed.append((planted["words"], planted["how"]))
    assert len(documents) == 154
    assert len(missed) == 12
    assert sorted(missed)[10:] == [(8, "prefix_8_words")] * 2  # of 23 and of 52 words
    assert all(words < 8 for words, _ in sorted(missed)[:10])


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [text for one in inner for text in _strings(one)]
    return [value] if isinstance(value, str) else []
