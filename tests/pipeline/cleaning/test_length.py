"""`short_mask` is `dedup.presets.is_short` for every text and every limit."""

import re
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedup.presets import is_short, normalize
from pipeline.cleaning import short_mask
from pipeline.cleaning.clean import CASED
from pipeline.cleaning.tables import every_character

peculiar = st.sampled_from("aZ é\t\n\u00a0\u2003.!İΣςß٪$\x1c\x85𐐀😀")
texts = st.one_of(st.text(st.characters(codec="utf-8")), st.text(peculiar, max_size=40))


@given(st.lists(texts, max_size=6), st.integers(-1, 40))
@example(["a" * 10 + "  ", "  a  b.c ", "İİ", "ΑΣ ", " Σ"], 4)
@example(["a" * 199 + ".", "a" * 200, " " + "a" * 200, "a" + " " * 300 + "b" * 198], 200)
def test_any_texts(some: list[str], limit: int) -> None:
    assert short_mask(some, limit).tolist() == [is_short(text, limit) for text in some]


def test_every_character() -> None:
    """After a letter, and between two: what is dropped, a blank, one or two characters differ."""
    every = every_character()
    assert every[CASED:].lower() == every[CASED:] and not re.search(r"\s", every[CASED:])
    characters = [*every[:0xD800], *every[0xE000 : CASED + 500], every[-1]]
    for frame in ("a {}", "a{}b"):
        framed = [frame.format(character) for character in characters]
        lengths = [len(normalize(text)) for text in framed]
        array = pa.array(framed, pa.large_string())
        for limit in range(1, 5):
            assert short_mask(array, limit).tolist() == [length < limit for length in lengths]


def test_broken_texts(broken: Callable[[int, int], list[str]]) -> None:
    some = broken(3_000, 9)
    for limit in (1, 20, 50):
        assert short_mask(some, limit).tolist() == [is_short(text, limit) for text in some]


@pytest.mark.parametrize("limit", [0, -5])
def test_no_limit(limit: int) -> None:
    assert not short_mask(["", "a"], limit).any()


def test_chunks() -> None:
    chunked = pa.chunked_array([["a", "bb"], [], ["ccc"]], pa.string())
    assert short_mask(chunked, 2).tolist() == [True, False, False]
