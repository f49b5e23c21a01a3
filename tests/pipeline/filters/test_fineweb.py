"""What FineWeb's rules look at, against plain Python."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.filters import fineweb
from pipeline.filters.rule import SENTENCE_ENDS


def measured(text: str) -> list[float]:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return [0.0] * 4
    seen: set[str] = set()
    repeated = 0
    for line in lines:
        repeated += len(line) if line in seen else 0
        seen.add(line)
    return [
        sum(line.endswith(tuple(SENTENCE_ENDS)) for line in lines) / len(lines),
        sum(len(line) <= 30 for line in lines) / len(lines),
        repeated / len(text.replace("\n", "")),
        text.count("\n") / len(text.split()),
    ]


LINES = ["A line.", "x" * 30, "y" * 31, "", "  ", "naïve café!", "東京は晴れ。", "\tz", "…"]


@given(st.lists(st.lists(st.sampled_from(LINES), max_size=9).map("\n".join), max_size=5))
def test_any_texts(texts: list[str]) -> None:
    found = fineweb.measure(pa.array(texts, pa.large_string()))
    assert found.tolist() == [pytest.approx(measured(text)) for text in texts]


@given(st.text(alphabet=" \nab.!é😀", max_size=80))
def test_any_characters(text: str) -> None:
    assert fineweb.measure([text])[0].tolist() == pytest.approx(measured(text))
