"""Words of languages without spaces: as if the texts had come with a space between their words."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.config.filters import FiltersConfig
from pipeline.config.signals import SignalsConfig
from pipeline.core.errors import ConfigError, FunctionError
from pipeline.filters.rules import Filters, find_failures, load_filters
from pipeline.filters.signals import Signals, load_signals, measure_signals

Prep = Callable[..., Any]
PAIRS = """
def pairs(line, *, size=2):
    return [line[at : at + size] for at in range(0, len(line), size)]
"""
CHINESE = "这是一个关于河流的故事，孩子们都喜欢听。\n从前有一座山，山上有一座庙。" * 4
ENGLISH = "The river went on and on, and it was late in the day that they have seen the sea. " * 4
THAI = "แม่น้ำไหลลงสู่ทะเลอย่างช้าๆ และเด็กๆ ก็ชอบฟังเรื่องนี้มาก " * 3
TEXTS = [CHINESE, ENGLISH, "", THAI, "从前有一座山。", CHINESE[:40]]
RULES = {
    "gopher": {"min_words": 20, "min_stop_words": 0, "min_mean_word_length": 1.5},
    "gopher_repetition": {"duplicate_lines": 0.1},
    "c4": {"min_sentences": 0, "min_terminal_lines": 0.3},
}


def cut(line: str, size: int = 2) -> str:
    pairs = [line[at : at + size] for at in range(0, len(line), size)]
    return " ".join(word for word in pairs if not word.isspace())


def cut_by_hand(text: str) -> str:
    return "\n".join(map(cut, text.split("\n")))


def by_hand() -> list[str]:
    """The texts in Chinese as they would stand with spaces."""
    return [cut_by_hand(text) if "从" in text or "这" in text else text for text in TEXTS]


def array(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.large_string())])


@pytest.fixture
def words(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "own.py").write_text(PAIRS)
    return {"zh": {"function": "own.py:pairs"}}


def config_of(section: dict[str, Any]) -> FiltersConfig:
    return FiltersConfig.model_validate_json(json.dumps(section))


def test_rules_see_the_words(words: dict[str, Any], tmp_path: Path) -> None:
    filters = load_filters(config_of({**RULES, "words": words}), tmp_path)
    found = find_failures(array(TEXTS), filters)
    expected = find_failures(array(by_hand()), Filters(config_of(RULES)))
    for column in ("reason", "target"):
        assert getattr(found, column) == getattr(expected, column)
    for column in ("row", "value", "limit"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist()
    assert {found.language[at] for at in range(len(found.row))} == {"", "zh"}
    plain = find_failures(array(TEXTS), Filters(config_of(RULES)))
    assert plain.reason != found.reason
    assert '"words"' not in config_of(RULES).model_dump_json(), "the fingerprint stays"


def test_settings_reach_the_function(words: dict[str, Any], tmp_path: Path) -> None:
    words["zh"]["settings"] = {"size": 5}
    filters = load_filters(config_of({"gopher": {}, "words": words}), tmp_path)
    found = find_failures(array(["从前有一座山" * 5]), filters)
    counts = dict(zip(found.reason, found.value.tolist(), strict=True))
    assert counts["gopher_word_count"] == 6


def batches_of(texts: list[str]) -> list[pa.RecordBatch]:
    keys = [f"{n:032x}" for n in range(len(texts))]
    return [pa.RecordBatch.from_pydict({"key": keys, "text": texts})]


def test_signals_see_the_words(words: dict[str, Any], tmp_path: Path) -> None:
    """And what looks at characters sees the text as it is."""
    on = {"gopher": True, "gopher_repetition": True, "fineweb": True, "c4": True}
    own = SignalsConfig.model_validate_json(json.dumps({**on, "words": words}))
    signals = load_signals(own, None, tmp_path)
    plain = load_signals(SignalsConfig(**on), None, tmp_path)
    assert type(plain) is Signals and signals.needs_languages
    found = measure_signals(array(TEXTS), batches_of(TEXTS), signals)
    expected = measure_signals(array(by_hand()), batches_of(TEXTS), plain)
    as_it_is = ["characters", "text_bytes", "lines"]
    assert found.drop_columns(as_it_is).equals(expected.drop_columns(as_it_is))
    assert found.select(as_it_is).equals(
        measure_signals(array(TEXTS), batches_of(TEXTS), plain).select(as_it_is)
    )


def test_a_run(words: dict[str, Any], tmp_path: Path, prep: Prep) -> None:
    """On workers as in this process; the function's file is part of the fingerprint; the name of
    the language is in the evidence."""
    lines = (json.dumps({"text": text}) + "\n" for text in TEXTS)
    (tmp_path / "a.jsonl").write_text("".join(lines))
    (tmp_path / "c.yaml").write_text(
        "name: words\ninputs: [{name: web, path: a.jsonl}]\n"
        "clean: {min_length: 0}\ndedup: {preset: none}\npack: {max_sequence_length: 16}\n"
        "filters: {gopher: {min_words: 20, min_stop_words: 0, min_mean_word_length: 1.5},"
        " words: {zh: {function: own.py:pairs}}}\n"
    )
    done = prep("run", tmp_path / "c.yaml", "--out", tmp_path / "run", "--workers", 0)
    assert done.code == 0, done.err
    table = pq.read_table(tmp_path / "run/documents.parquet")
    ends = dict(zip(table["line"].to_pylist(), table["reason"].to_pylist(), strict=True))
    assert ends[1] == ends[2] == ""
    assert ends[5] == "gopher_word_count"
    evidence = pq.read_table(tmp_path / "run/evidence.parquet")["attributes"].to_pylist()
    assert any('"language":"zh"' in (attributes or "") for attributes in evidence)
    pipeline.run(str(tmp_path / "c.yaml"), tmp_path / "other", 1)
    others = pq.read_table(tmp_path / "other/documents.parquet")
    assert others.equals(table)
    (tmp_path / "own.py").write_text(PAIRS.replace("size=2", "size=1"))
    again = prep("run", tmp_path / "c.yaml", "--out", tmp_path / "run", "--workers", 0)
    assert again.code == 0
    table = pq.read_table(tmp_path / "run/documents.parquet")
    assert "gopher_mean_word_length" in table["reason"].to_pylist()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def pairs(line): return 3 // 0",
            "own.py:1: ZeroDivisionError: integer division or modulo by zero",
        ),
        ("def pairs(line): return None", "expected the words of the line, as strings"),
        ("def pairs(line): return [1]", "TypeError: returned int as a word; expected the words"),
        ("def pairs(line): return [None, line]", "TypeError: returned NoneType as a word"),
        ("def pairs(line): return ' '.join(line)", "TypeError: returned str, not a list of words"),
        ("def pairs(line): return {line: 1}", "TypeError: returned dict, not a list of words"),
        ("def pairs(line): return [line + '\\n']", "ValueError: returned a word with a line break"),
        ("def pairs(line): return ['\\ud800', line]", "surrogates not allowed"),
        (
            "def pairs(line, seen=[]): seen.append(1); return [line] * len(seen)",
            "is no pure function",
        ),
    ],
)
def test_a_function_that_fails(
    code: str, message: str, words: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(code + "\n")
    filters = load_filters(config_of({"gopher": {}, "words": words}), tmp_path)
    with pytest.raises(FunctionError) as failed:
        find_failures(array(["从前\n有一座山"]), filters)
    assert message in str(failed.value)
    assert ("is no pure" in message) or "on text 0, in the line 从前: " in str(failed.value)
    assert str(failed.value).startswith(f"filters.words.zh.function: pairs ({tmp_path}/own.py)")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"zho": {"function": "own.py:pairs"}}, "filters.words: zho: expected ISO 639 codes"),
        ({"zh": {"function": "own.py:pears"}}, "has no pears; did you mean 'pairs'?"),
        ({"zh": {"function": "own.py:none"}}, "takes 0 of the 1 things it is given; expected def "),
        ({"zh": {"function": "own.py:pairs", "settings": {"sice": 1}}}, "there is no setting sice"),
    ],
)
def test_a_section_that_cannot_be(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(PAIRS + "def none(): return []\n")
    with pytest.raises(ConfigError) as refused:
        load_filters(config_of({"gopher": {}, "words": words}), tmp_path)
    assert message in str(refused.value)


def test_words_that_nothing_counts_are_an_error(words: dict[str, Any]) -> None:
    for section in (FiltersConfig, SignalsConfig):
        with pytest.raises(ValueError, match="expected no words: without gopher"):
            section.model_validate_json(json.dumps({"words": words}))
