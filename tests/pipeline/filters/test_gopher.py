"""Gopher's quality measures against plain Python, and what each sign counts as."""

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from pipeline.filters import gopher
from pipeline.filters.rule import BULLETS

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with", "É")


def reference(text: str) -> list[float]:
    """The same in plain Python, sentence by sentence of the documentation."""
    words = text.split()
    if not words:
        return [0.0] * 8
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    plain = ["".join(c for c in word if c.isalnum()) for word in words]
    lowered = {"".join(lower(c) for c in word) for word in plain}
    return [
        len(words),
        sum(map(len, words)) / len(words),
        text.count("#") / len(words),
        (text.count("...") + text.count("…")) / len(words),
        sum(line[0] in BULLETS for line in lines) / len(lines),
        sum(line.endswith(("...", "…")) for line in lines) / len(lines),
        sum(any(c.isalpha() for c in word) for word in words) / len(words),
        sum(word.lower() in lowered for word in STOP_WORDS),
    ]


def lower(c: str) -> str:
    return c.lower() if len(c.lower()) == 1 else c


@hypothesis.given(data=st.data())
def test_equals_plain_python(data: st.DataObject, texts: st.SearchStrategy[str]) -> None:
    drawn = data.draw(st.lists(texts, max_size=5))
    found = gopher.measure(pa.array(drawn, pa.large_string()), STOP_WORDS)
    np.testing.assert_allclose(found, np.array([reference(t) for t in drawn]).reshape(-1, 8))


def test_what_counts() -> None:
    text = "- The end... of #1\n\n  •\u00a0and …\nThat's 12 ....... A\n   \n–"
    [found] = gopher.measure([text], STOP_WORDS)
    assert dict(zip(gopher.MEASURES, found.tolist(), strict=True)) == pytest.approx({
        "word_count": 13,
        "mean_word_length": len("".join(text.split())) / 13,
        "hash_ratio": 1 / 13,
        "ellipsis_ratio": 4 / 13,
        "bullet_lines": 2 / 4,
        "ellipsis_lines": 1 / 4,
        "alphabetic_words": 6 / 13,
        "stop_words": 3,
    })  # fmt: skip


def test_text_without_white_space_is_one_word() -> None:
    [found] = gopher.measure(["天地玄黄，宇宙洪荒。" * 50], STOP_WORDS)
    assert found[0] == 1
    assert found[1] == 500


def test_chunks_slices_and_nothing() -> None:
    column = pa.chunked_array([["one two"], [], ["three the"]], pa.large_string())
    assert gopher.measure(column.slice(1), STOP_WORDS)[:, [0, 7]].tolist() == [[2.0, 1.0]]
    assert gopher.measure([], STOP_WORDS).shape == (0, 8)
    assert gopher.measure(["", " \n"], STOP_WORDS).tolist() == [[0.0] * 8] * 2
    with pytest.raises(ValueError, match="64 stop words: expected at most 63"):
        gopher.measure(["x"], [f"w{n}" for n in range(64)])
