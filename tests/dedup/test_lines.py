"""Repeated lines and paragraphs against dictionaries of Python strings."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.join import buckets
from dedup.lines import UNITS, Unit, Units, cut_column, cut_spans, later_occurrences, units_of
from dedup.presets import normalize
from dedup.words import one_sigma

SEPARATOR = {"line": re.compile(r"\n"), "paragraph": re.compile(r"\n\s*\n")}

pieces = st.sampled_from(
    ["one line", "One, line!", "another line", "ΟΔΟΣ", "οδος", "İ line", "i̇ line", "東京 line",
     "🙂", "", " ", "-", "\t", "\u00a0", "\u2028", "\n", "\n\n", "\n \t\n", "\r\n", "\x85", "\x1c"]
)  # fmt: skip
texts = st.lists(st.lists(pieces, max_size=12).map("".join), max_size=6)
Span = tuple[int, int, int]


def python_units(text: str, unit: Unit) -> list[tuple[str, int, int]]:
    """(normalised unit, first byte, byte after it and its separator)."""
    bounds, start = [], 0
    for match in SEPARATOR[unit].finditer(text):
        bounds.append((start, match.start(), match.end()))
        start = match.end()
    bounds.append((start, len(text), len(text)))
    return [
        (one_sigma(normalize(text[a:b])), len(text[:a].encode()), len(text[:c].encode()))
        for a, b, c in bounds
    ]


def python_cuts(
    documents: list[str], ranks: list[int], unit: Unit, least: int, min_documents: int
) -> dict[Span, int]:
    """(document, start, end) -> the document where the unit stays."""
    places: dict[str, list[Span]] = {}
    for number in sorted(range(len(documents)), key=ranks.__getitem__):
        for text, start, end in python_units(documents[number], unit):
            if len(text) >= least:
                places.setdefault(text, []).append((number, start, end))
    return {
        span: spans[0][0]
        for spans in places.values()
        if len({number for number, _, _ in spans}) >= min_documents
        for span in spans[1:]
    }


def found_cuts(units: Units, ranks: list[int], min_documents: int) -> dict[Span, int]:
    numbers = np.arange(len(units), dtype=np.uint32)
    member, bucket = buckets([units.digest], [numbers])
    row = units.row[member]
    start, end = units.byte_start[member], units.byte_end[member]
    rank = np.array(ranks, np.int64)[row]
    gone, first = later_occurrences(bucket, rank, start, min_documents)
    spans = zip(row[gone].tolist(), start[gone].tolist(), end[gone].tolist(), strict=True)
    return dict(zip(spans, row[first].tolist(), strict=True))


@given(texts, st.sampled_from(UNITS), st.integers(1, 10), st.integers(1, 4), st.randoms())
def test_against_the_oracle(
    documents: list[str], unit: Unit, least: int, min_documents: int, random: Any
) -> None:
    ranks = random.sample(range(100), len(documents))
    units = units_of(documents, unit, least)
    order = np.lexsort((units.byte_start, units.row, units.digest))
    assert order.tolist() == list(range(len(units)))
    cuts = found_cuts(units, ranks, min_documents)
    assert cuts == python_cuts(documents, ranks, unit, least, min_documents)
    spans = np.array(sorted(cuts), np.int64).reshape(-1, 3)
    expected = [
        cut_spans(text.encode(), [(a, b) for n, a, b in sorted(cuts) if n == number]).decode()
        for number, text in enumerate(documents)
    ]
    column = pa.chunked_array([documents[:2], documents[2:]], pa.large_string())
    assert cut_column(column, *spans.T).to_pylist() == expected
    assert (
        cut_column(column.slice(1), *(spans[spans[:, 0] >= 1] - [1, 0, 0]).T).to_pylist()
        == (expected[1:])
    )


@given(texts, st.sampled_from(UNITS), st.integers(1, 10))
def test_chunks_number_rows_on(documents: list[str], unit: Unit, least: int) -> None:
    whole = units_of(documents, unit, least)
    chunked = units_of(
        pa.chunked_array([documents[:1], [], documents[1:]], pa.large_string()), unit, least
    )
    for name in ("digest", "row", "byte_start", "byte_end"):
        assert getattr(whole, name).tolist() == getattr(chunked, name).tolist()


def test_the_first_stays_and_the_rest_reads_on() -> None:
    banner = "Accept all cookies to go on reading this page."
    documents = [f"A\n{banner}\nB", f"{banner}\nC\n{banner.upper()}", f"D\n{banner}", "E\nF"]
    cuts = found_cuts(units_of(documents), [3, 1, 2, 0], 3)
    assert set(cuts.values()) == {1}
    rows, starts, ends = np.array(sorted(cuts)).T
    assert cut_column(documents, rows, starts, ends).to_pylist() == [
        "A\nB", f"{banner}\nC\n", "D\n", "E\nF",
    ]  # fmt: skip
    assert found_cuts(units_of(documents), [3, 1, 2, 0], 4) == {}


def test_long_and_empty() -> None:
    units = units_of(["word " * 300_000, "", "\n" * 100_000 + "word " * 300_000], "paragraph", 40)
    assert units.row.tolist() == [0, 2]
    assert units.digest[0] == units.digest[1]
    assert units.byte_start.tolist() == [0, 100_000]
    assert len(units_of([])) == 0
    none = np.zeros(0, np.uint32)
    assert later_occurrences(none, none, none)[0].tolist() == []


def test_runs_of_white_space_cost_no_more_than_their_length() -> None:
    text = ("\n" + " " * 1000) * 2000 + "x"
    assert len(units_of([text], "paragraph", 1)) == 1
    assert len(units_of([("\n" + " " * 100_000 + "x") * 20], "paragraph", 1)) == 1


def test_refused() -> None:
    with pytest.raises(ValueError, match="unit 'page'"):
        units_of(["a"], "page")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_characters 0"):
        units_of(["a"], "line", 0)


@pytest.mark.parametrize(
    "spans",
    [[(0, 0, 9)], [(0, 2, 1)], [(1, 0, 1), (0, 0, 1)], [(0, 0, 2), (0, 1, 3)], [(2, 0, 1)],
     [(-1, 0, 1)], [(0, -1, 1)]],
)  # fmt: skip
def test_spans_that_do_not_fit(spans: list[Span]) -> None:
    with pytest.raises(ValueError, match="ascend by row and start"):
        cut_column(["abcd", "efgh"], *np.array(spans).T)


@pytest.mark.parametrize("span", [(0, 1, 3), (0, 0, 1)])
def test_spans_inside_a_character(span: Span) -> None:
    with pytest.raises(ValueError, match="inside a character"):
        cut_column(["éa"], *np.array([span]).T)


@given(st.text(max_size=30), st.text(max_size=30))
def test_equal_digest_means_equal_text(one: str, other: str) -> None:
    one, other = one.replace("\n", "x"), other.replace("\n", "x")
    digests = {int(d) for text in (one, other) for d in units_of([text], "line", 1).digest}
    normal = {one_sigma(normalize(text)) for text in (one, other)} - {""}
    assert len(digests) == len(normal)
