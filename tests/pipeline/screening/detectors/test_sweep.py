"""One sweep for several groups of needles, and windows of the texts."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.screening.detectors.sweep import Hit, sweep_all

TEXTS = ["isbn © ISBN", "", "no rights", "© é"]


def test_each_group_gets_its_own_needles_as_it_spells_them() -> None:
    swept = sweep_all(TEXTS, {"one": ["ISBN", "©"], "two": ["isbn", "rights"]})
    assert list(swept.hits("one")) == [
        Hit(0, "ISBN", 0), Hit(0, "©", 5), Hit(0, "ISBN", 8), Hit(3, "©", 0),
    ]  # fmt: skip
    assert list(swept.hits("two")) == [Hit(0, "isbn", 0), Hit(0, "isbn", 8), Hit(2, "rights", 3)]


def test_the_longest_needle_of_a_place_comes_first() -> None:
    swept = sweep_all(["libgen.is"], {"g": ["libgen", "libgen.", "lib"]})
    assert [hit.needle for hit in swept.hits("g")] == ["libgen.", "libgen", "lib"]


def test_a_group_without_needles_has_no_hits() -> None:
    swept = sweep_all(TEXTS, {"none": [], "some": ["rights"]})
    assert list(swept.hits("none")) == []


def test_no_texts() -> None:
    empty = pa.chunked_array([], pa.large_string())
    assert list(sweep_all(empty, {"g": ["isbn"]}).hits("g")) == []
    assert list(sweep_all(pa.array([], pa.large_string()), {"g": ["isbn"]}).hits("g")) == []


@given(
    st.lists(st.text("aé\n", max_size=6), min_size=1, max_size=6),
    st.integers(0, 6),
    st.integers(-3, 20),
    st.integers(-3, 20),
)
def test_cut_is_a_slice_of_the_bytes(texts: list[str], at: int, start: int, end: int) -> None:
    array = pa.array(texts, pa.large_string())
    empty = pa.array([], pa.large_string())
    swept = sweep_all(pa.chunked_array([array[:at], empty, array[at:]]), {})
    for row, text in enumerate(texts):
        data = text.encode()
        assert swept.size(row) == len(data)
        assert swept.cut(row, start, end) == data[max(start, 0) : max(end, 0)]
