"""C4's line measures against plain Python, and which word of a list is named."""

import re

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from pipeline.filters import c4
from pipeline.filters.rule import QUOTES, SENTENCE_ENDS

ENDS = f"[{re.escape(SENTENCE_ENDS)}]"
CLOSING = f"[{re.escape(QUOTES)}{re.escape(SENTENCE_ENDS)}]*"


def reference(text: str, min_line_words: int) -> list[float]:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return [0.0, 0.0]
    ended = sentences = 0
    for line in lines:
        stops = [word for word in line.split() if re.search(f"{ENDS}{CLOSING}$", word)]
        last = line.split()[-1]
        marks = re.sub(f"[{re.escape(QUOTES)}]", "", re.search(f"{CLOSING}$", last)[0])  # type: ignore[index]
        if stops and last == line.split()[-1] and marks and not is_ellipsis(marks):
            ended += 1
            sentences += len(stops) if len(line.split()) >= min_line_words else 0
    return [ended / len(lines), sentences]


def is_ellipsis(marks: str) -> bool:
    return marks.endswith(("...", "…")) or re.search(r"…\.*$", marks) is not None


@hypothesis.given(data=st.data())
def test_equals_plain_python(data: st.DataObject, texts: st.SearchStrategy[str]) -> None:
    drawn = data.draw(st.lists(texts, max_size=5))
    found = c4.measure(pa.array(drawn, pa.large_string()), 3)
    np.testing.assert_allclose(found, np.array([reference(t, 3) for t in drawn]).reshape(-1, 2))


@pytest.mark.parametrize(
    ("line", "ended", "sentences"),
    [
        ('He said: "Come in." (She did.)', 1, 2),
        ("Wait for it...", 0, 0),
        ("No end here", 0, 0),
        ("هل هذا سؤال هنا؟ نعم.", 1, 2),
        ("3.14 is no sentence end but this is.", 1, 1),
        ("Really?! Yes!!", 1, 2),
    ],
)
def test_sentences(line: str, ended: int, sentences: int) -> None:
    assert c4.measure([line], 1).tolist() == [[ended, sentences]]


def test_which_word_it_was() -> None:
    words = ("bad", "bad apple")
    assert c4.find_first_word("A BAD Apple, a bad one", words) == "bad apple"
    assert c4.find_first_word("badly", words) == ""
    texts = pa.chunked_array([["bad"], ["badly", "so bad, apple"]], pa.large_string())
    assert c4.holds_word(texts, words).tolist() == [True, False, True]
