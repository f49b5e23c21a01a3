"""Gopher's repetition measures against plain Python, and with limits against themselves."""

from collections import Counter

import hypothesis
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from pipeline.filters import repetition


def reference(text: str) -> list[float]:
    """The same in plain Python; what datatrove computes, but for the differences documented."""
    words = text.split()
    if not words:
        return [0.0] * 13
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    paragraphs = paragraphs_of(text)
    values = [*duplicates(lines, text), *duplicates(paragraphs, text)]
    values = [values[0], values[2], values[1], values[3]]
    values += [top(words, n) / len(text) for n in (2, 3, 4)]
    return values + [duplicate_grams(words, n) / len(text) for n in range(5, 11)]


def paragraphs_of(text: str) -> list[str]:
    groups: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip():
            groups[-1].append(line)
        else:
            groups.append([])
    return ["\n".join(group).strip() for group in groups if group]


def duplicates(units: list[str], text: str) -> tuple[float, float]:
    seen: set[tuple[str, ...]] = set()
    count = characters = 0
    for unit in units:
        words = tuple(unit.split())
        count += words in seen
        characters += len(unit) if words in seen else 0
        seen.add(words)
    return count / len(units), characters / len(text)


def top(words: list[str], n: int) -> int:
    grams = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
    if not grams or max(grams.values()) == 1:
        return 0
    [(gram, count)] = grams.most_common(1)
    return len(gram) * count


def duplicate_grams(words: list[str], n: int) -> int:
    seen: set[tuple[str, ...]] = set()
    index = characters = 0
    while index < len(words) - n + 1:
        gram = tuple(words[index : index + n])
        if gram in seen:
            characters += len("".join(gram))
            index += n
        else:
            seen.add(gram)
            index += 1
    return characters


@hypothesis.given(data=st.data())
def test_equals_plain_python(data: st.DataObject, texts: st.SearchStrategy[str]) -> None:
    drawn = data.draw(st.lists(texts, max_size=5))
    found = repetition.measure(pa.array(drawn, pa.large_string()))
    np.testing.assert_allclose(found, np.array([reference(t) for t in drawn]).reshape(-1, 13))


@hypothesis.given(
    st.lists(st.sampled_from("ab"), min_size=20, max_size=80),
    st.lists(st.floats(0, 1), min_size=13, max_size=13),
)
def test_limits_hide_no_failure(words: list[str], limits: list[float]) -> None:
    text, limits_13 = [" ".join(words)], np.array(limits)
    every, some = repetition.measure(text), repetition.measure(text, limits_13)
    assert (every > limits_13).tolist() == (some > limits_13).tolist()
    np.testing.assert_array_equal(every[every > limits_13], some[every > limits_13])


def test_lines_and_paragraphs() -> None:
    text = "one two\nthree\n \none   two\n\nthree\nfour\n\n\none two\nthree"
    [found] = repetition.measure([text])
    values = dict(zip(repetition.MEASURES, found.tolist(), strict=True))
    assert values["duplicate_lines"] == 4 / 7
    assert values["duplicate_paragraphs"] == 1 / 4
    assert values["duplicate_line_characters"] == (9 + 5 + 7 + 5) / len(text)
    assert values["duplicate_paragraph_characters"] == len("one two\nthree") / len(text)


def test_long_text_is_measured_by_its_beginning() -> None:
    """No array grows beyond the first 4,194,304 words."""
    beginning = " ".join(str(n) for n in range(repetition.MOST_WORDS))
    first, second = repetition.measure([beginning, beginning + " again and" * 400_000])
    assert first.tolist() == second.tolist() == [0.0] * 13
