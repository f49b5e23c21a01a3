"""Places of a text in others, against plain Python."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.text import join_texts
from pipeline.explain.text_scan import MOST_PLACES, RowPlaces, find_matching_rows, make_query
from pipeline.screening.fingerprints.literals import find_near
from pipeline.screening.fingerprints.words import find_words


def places_in(texts: list[str], query: str) -> list[RowPlaces]:
    return find_matching_rows(
        pa.chunked_array([pa.array(texts, pa.large_string())]), make_query(query)
    )


def fewest_edits(query: list[str], document: list[str]) -> int:
    """The least edit distance between the query and any run of words (all of Sellers' table)."""
    row = [0] * (len(document) + 1)
    for number, word in enumerate(query, 1):
        before, row[0] = row[0], number
        for at, other in enumerate(document, 1):
            best = min(before + (word != other), row[at] + 1, row[at - 1] + 1)
            before, row[at] = row[at], best
    return min(row)


@settings(max_examples=300)
@given(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([2, 4, 40]))
def test_near_matches_against_all_alignments(seed: int, size: int, vocabulary: int) -> None:
    rng = random.Random(seed)
    query = [f"w{rng.randrange(vocabulary)}" for _ in range(size)]
    document = [f"w{rng.randrange(vocabulary)}" for _ in range(rng.randrange(40))]
    edited = [word for word in query if rng.random() > 0.1]
    document += [f"w{rng.randrange(vocabulary)}" if rng.random() < 0.1 else w for w in edited]
    document += [f"w{rng.randrange(vocabulary)}" for _ in range(rng.randrange(20))]
    text, edits = " ".join(document), rng.randrange(min(size, 6))
    words = find_words(join_texts([" ".join(query)])).hashes
    found = find_near(join_texts(["other", text]), np.array([0, 1]), words, edits)
    least = fewest_edits(query, document)
    assert (1 in found.row.tolist()) == (least <= edits)
    places = zip(found.row, found.start, found.stop, found.edits, strict=True)
    ends = [0, 0]
    for row, start, stop, count in places:
        assert start >= ends[row]
        ends[row] = stop
        if row == 1:
            assert fewest_edits(query, text.encode()[start:stop].decode().split()) <= count
            assert least <= count <= edits


@pytest.mark.parametrize(
    ("text", "query", "match"),
    [
        ("To be, or not to be:\nthat is", "or  not\tTO BE that", "or not to be:\nthat"),
        ("Das Straßencafé in LÜBECK", "lübeck", "LÜBECK"),
        ("Ja, das Straßencafé in LÜBECK ist zu", "das strassencafe in lübeck ist",
         "das Straßencafé in LÜBECK ist"),
        ("self.foo_bar(baz)", "bar(ba", "bar(ba"),
        ("if a != b:", "!=", "!="),
        ("它是一个小例子。", "一个小例", "一个小例"),
        ("an exam-\nple of words that are cut", "an example of words that",
         "an exam-\nple of words that"),
        ("first line\nsecond", "line second", "line\nsecond"),
        ("\N{CYRILLIC CAPITAL LETTER ES}лово дня", "слово", "\N{CYRILLIC CAPITAL LETTER ES}лово"),
    ],
)  # fmt: skip
def test_what_is_the_same(text: str, query: str, match: str) -> None:
    (found,) = places_in(["nothing of it", text], query)
    assert (found.row, found.exact, found.near) == (1, 1, 0)
    (place,) = found.places
    assert place.edits == 0
    assert text.encode()[place.start : place.stop].decode() == match


def test_chunks_and_slices_change_no_place() -> None:
    texts = ["a needle here", "", "none", "and a needle there, a needle"]
    array = pa.array(["a needle", *texts], pa.large_string())[1:]
    expected = [(0, 0), (3, 4), (3, 20)]
    for chunks in ([array], [array[:2], array[2:2], array[2:]]):
        found = find_matching_rows(pa.chunked_array(chunks), make_query("a needle"))
        assert [(row.row, place.start) for row in found for place in row.places] == expected
    assert find_matching_rows(pa.chunked_array([], pa.large_string()), make_query("a")) == []


def test_parts_of_words_are_told_apart() -> None:
    found = places_in(["concatenate", "a cat", "dog"], "cat")
    assert [(row.row, row.by_characters) for row in found] == [(0, True), (1, False)]


@pytest.mark.parametrize("query", ["ba", "ba!", "a ba"])
def test_all_places_are_counted(query: str) -> None:
    (found,) = places_in(["ba! a " * 1000], query)
    assert found.exact == 1000 - (query == "a ba")
    assert len(found.places) == MOST_PLACES
    starts = [place.start for place in found.places]
    assert starts == sorted(starts) and starts[0] == (4 if query == "a ba" else 0)
