"""Texts for the filters: what hypothesis draws, made so that rules are met and missed often."""

import pytest
from hypothesis import strategies as st

PIECES = [
    "the", "a", "a", "be", "to", "of", "and", "cat", "sat", "mat", "one", "two", "#", "##tag", "…",
    "...", ".....", "-", "•", "* item", "12", "x1", "Word.", "The,", "it’s", "سلام", "كلمة", "東京",
    "é", "𝒳", "𠀀", "\n", "\n", "\n\n", "\n \n", "\t", " ", "\u00a0", "\u2028", "?", "!\"", "؟",
]  # fmt: skip


@pytest.fixture(scope="session")
def texts() -> st.SearchStrategy[str]:
    """Short texts of few different words, signs and line ends, or of any characters at all."""
    words = st.lists(st.sampled_from(PIECES), max_size=60)
    joined = st.tuples(words, st.sampled_from([" ", "", "\n"])).map(lambda p: p[1].join(p[0]))
    return st.one_of(joined, words.map(" ".join), st.text(max_size=30))
