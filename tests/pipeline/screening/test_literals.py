"""The sweep for literals, as `re.finditer` says."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.screening.fingerprints.literals import find_literals

LETTERS = st.text("aAbB-.é©\U0001f600", max_size=30)
TEXTS = st.lists(LETTERS, max_size=5)
NEEDLES = st.lists(
    st.text("aAbB-.é©", min_size=1, max_size=5).filter(lambda needle: len(needle.encode()) > 1),
    max_size=6,
    unique_by=lambda needle: needle.encode().lower(),
)
Place = tuple[int, int, int]


def chunked(texts: list[str], cut: int) -> pa.ChunkedArray:
    """The texts in two chunks, of which the second is a slice that does not begin at 0."""
    second = pa.array(["another", *texts[cut:]], pa.large_string()).slice(1)
    return pa.chunked_array([pa.array(texts[:cut], pa.large_string()), second])


def places_of(texts: list[str], needles: list[str]) -> list[Place]:
    """Every place, overlapping ones too, in the order of the contract."""
    return sorted(
        (
            (row, number, match.start())
            for row, text in enumerate(texts)
            for number, needle in enumerate(needles)
            for match in re.finditer(
                b"(?=" + re.escape(needle.encode()) + b")", text.encode(), re.IGNORECASE
            )
        ),
        key=lambda place: (place[0], place[2], place[1]),
    )


def rows_of(found: object) -> list[Place]:
    columns = (getattr(found, name).tolist() for name in ("text", "needle", "offset"))
    return list(zip(*columns, strict=True))


@given(TEXTS, NEEDLES, st.integers(0, 3))
def test_sweep_equals_finditer(texts: list[str], needles: list[str], cut: int) -> None:
    assert rows_of(find_literals(chunked(texts, cut), needles)) == places_of(texts, needles)


@given(TEXTS, NEEDLES, st.integers(1, 3))
def test_the_limit_keeps_the_first_places(texts: list[str], needles: list[str], most: int) -> None:
    kept: dict[tuple[int, int], int] = {}
    expected = []
    for row, needle, offset in places_of(texts, needles):
        kept[row, needle] = kept.get((row, needle), 0) + 1
        if kept[row, needle] <= most:
            expected.append((row, needle, offset))
    assert rows_of(find_literals(chunked(texts, 1), needles, most)) == expected


def test_goes_on_where_a_part_of_the_output_was_full() -> None:
    texts = ["ab" * 9_000, "x", "ab" * 5_000]
    found = find_literals(texts, ["ab", "abab"], 10_000)
    assert rows_of(found) == places_of(texts, ["ab", "abab"])


def test_a_needle_does_not_reach_into_the_next_text() -> None:
    assert len(find_literals(["is", "bn", "isb", "n"], ["isbn"])) == 0


def test_the_kelvin_sign_is_no_letter_k() -> None:
    found = find_literals(
        ["BOO\N{KELVIN SIGN}S book \N{LATIN SMALL LETTER LONG S}can"], ["book", "scan"]
    )
    assert rows_of(found) == [(0, 0, 8)]


def test_random_bytes_of_every_class() -> None:
    rng = np.random.default_rng(5)
    words = ["".join(map(chr, rng.integers(32, 126, length))) for length in (2, 3, 4, 9) * 10]
    needles = list({word.lower(): word for word in words}.values())
    texts = ["".join(rng.choice(needles, 40)) for _ in range(20)]
    assert rows_of(find_literals(texts, needles)) == places_of(texts, needles)


def test_short_needles_are_refused() -> None:
    with pytest.raises(ValueError, match="'x' is too short; give two bytes or more"):
        find_literals(["text"], ["ok", "x"])
