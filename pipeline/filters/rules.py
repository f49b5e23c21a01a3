"""The rules of all families in their order, and which of them documents fail."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup.arrays import F64, I64
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.storage import read_at_most
from pipeline.core.words import did_you_mean
from pipeline.filters import c4, gopher, language, repetition
from pipeline.filters.settings import (
    C4Config,
    FiltersConfig,
    GopherConfig,
    GopherRepetitionConfig,
    LanguageConfig,
)

RULES = {
    "language_not_kept": "Its language is not one of those to keep.",
    "language_uncertain": "Its language was not identified with enough certainty.",
    "gopher_word_count": "It has too few or too many words.",
    "gopher_mean_word_length": "Its words are too short or too long on average.",
    "gopher_hash_ratio": "It has too many hash signs.",
    "gopher_ellipsis_ratio": "It has too many ellipses.",
    "gopher_bullet_lines": "Too many of its lines begin with a bullet.",
    "gopher_ellipsis_lines": "Too many of its lines end with an ellipsis.",
    "gopher_alphabetic_words": "Too few of its words contain a letter.",
    "gopher_stop_words": "It has too few different stop words.",
    "repetition_duplicate_lines": "Too many of its lines are repeated.",
    "repetition_duplicate_paragraphs": "Too many of its paragraphs are repeated.",
    "repetition_duplicate_line_characters": "Too much of its text is in repeated lines.",
    "repetition_duplicate_paragraph_characters": "Too much of its text is in repeated paragraphs.",
    "repetition_top_2_gram": "One run of 2 words makes up too much of its text.",
    "repetition_top_3_gram": "One run of 3 words makes up too much of its text.",
    "repetition_top_4_gram": "One run of 4 words makes up too much of its text.",
    **{f"repetition_duplicate_{n}_grams": f"Too much of its text is in repeated runs of {n} words."
       for n in range(5, 11)},
    "c4_lorem_ipsum": 'It contains "lorem ipsum".',
    "c4_curly_bracket": "It contains a curly bracket.",
    "c4_bad_words": "It contains a word from the list of bad words.",
    "c4_terminal_lines": "Too few of its lines end a sentence.",
    "c4_sentences": "It has too few sentences.",
}  # fmt: skip
"""Reason words of all rules and what they say of a document, in the order in which the first that
fails becomes the reason."""

_LARGEST_LIST = 64 << 20
_ORDER = {reason: number for number, reason in enumerate(RULES)}


def has_rules(config: FiltersConfig) -> bool:
    """Whether any family of rules is on."""
    families = (config.language, config.gopher, config.gopher_repetition, config.c4)
    return any(family is not None for family in families)


@dataclass(frozen=True)
class Filters:
    """The section `filters` with what it names: the bad words in lower case, in order."""

    config: FiltersConfig
    bad_words: tuple[str, ...] = ()

    @property
    def on(self) -> bool:
        """Whether there is any rule."""
        return has_rules(self.config)

    def software(self) -> dict[str, str]:
        """What the answers depend on besides the rules."""
        import unicodedata

        found = language.software() if self.config.language else {}
        return {**found, **({"unicode": unicodedata.unidata_version} if self.on else {})}


def load_filters(config: FiltersConfig, base: Path) -> Filters:
    """The rules with the files they name, relative to `base`. Raises ConfigError when a file, the
    library for languages or one of the languages is not there."""
    if config.language:
        _check_languages(config.language)
    path = config.c4.bad_words if config.c4 else None
    return Filters(config, _word_list(base / path) if path else ())


def _check_languages(config: LanguageConfig) -> None:
    language.check_installed()
    known = language.languages()
    for code in config.keep:
        if code not in known:
            hint = did_you_mean(code, sorted(known))
            raise ConfigError(
                f"filters.language.keep: {escape_text(code)}: expected ISO 639 codes of languages "
                f"that lid.176 knows, such as en{hint}"
            )


def _word_list(path: Path) -> tuple[str, ...]:
    try:
        data = read_at_most(path, _LARGEST_LIST)
        if data is None:
            raise ConfigError(
                f"filters.c4.bad_words: {path}: expected at most {_LARGEST_LIST:,} bytes; got more"
            )
        lines = data.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"filters.c4.bad_words: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"filters.c4.bad_words: {path}: not UTF-8: {error}") from error
    words = tuple(sorted({line.strip().lower() for line in lines if line.strip()}))
    if not words:
        raise ConfigError(
            f"filters.c4.bad_words: {path}: the file holds no words; expected one word or phrase "
            "a line"
        )
    return words


@dataclass(frozen=True)
class Failures:
    """Columns over failures (F), by document and then in the order of `RULES`.

    row: index of the document; reason; value and limit: what was measured and what was allowed, NaN
    where nothing was; target: what was found or measured.
    """

    row: I64
    reason: list[str]
    value: F64
    limit: F64
    target: list[str]


@dataclass(frozen=True)
class _RuleFailures:
    """One rule: the documents that fail it, and for each the columns of `Failures`."""

    reason: str
    row: I64
    value: F64
    limit: F64
    target: Sequence[str]


def find_failures(texts: pa.ChunkedArray | pa.Array, filters: Filters) -> Failures:
    """Every rule that each of N texts fails."""
    config = filters.config
    failed: list[_RuleFailures] = []
    if config.language:
        failed += _language(texts, config.language)
    if config.gopher:
        failed += _gopher(texts, config.gopher)
    if config.gopher_repetition:
        failed += _repetition(texts, config.gopher_repetition)
    if config.c4:
        failed += _c4(texts, config.c4, filters.bad_words)
    rows = np.concatenate([np.zeros(0, np.int64), *(f.row for f in failed)])
    rank = np.array([_ORDER[f.reason] for f in failed for _ in f.row], np.int64)
    order = np.lexsort((rank, rows)) if len(rows) else np.zeros(0, np.int64)
    reasons = [f.reason for f in failed for _ in f.row]
    targets = [target for f in failed for target in f.target]
    values, limits = (
        np.concatenate([np.zeros(0), *columns])[order]
        for columns in ([f.value for f in failed], [f.limit for f in failed])
    )
    return Failures(
        rows[order], [reasons[i] for i in order], values, limits, [targets[i] for i in order]
    )


def _outside(
    reason: str, values_N: F64, low: float | None, high: float | None = None
) -> Iterator[_RuleFailures]:
    """The documents whose value lies outside [low, high]."""
    least, most = -np.inf if low is None else low, np.inf if high is None else high
    rows = np.flatnonzero((values_N < least) | (values_N > most))
    if len(rows):
        found = values_N[rows]
        measured = reason.partition("_")[2].replace("_", " ")
        yield _RuleFailures(
            reason, rows, found, np.where(found < least, least, most), [measured] * len(rows)
        )


def _language(texts: pa.ChunkedArray | pa.Array, config: LanguageConfig) -> Iterator[_RuleFailures]:
    found = [language.detect(text.as_py(), config.max_characters) for text in texts]
    codes, probability = [code for code, _ in found], np.array([p for _, p in found], np.float64)
    kept = np.array([code in config.keep for code in codes], np.bool_)
    unsure = kept & (probability < config.min_probability)
    for reason, wrong in (("language_not_kept", ~kept), ("language_uncertain", unsure)):
        rows = np.flatnonzero(wrong)
        limit = config.min_probability if reason == "language_uncertain" else np.nan
        limits = np.full(len(rows), limit)
        yield _RuleFailures(reason, rows, probability[rows], limits, [codes[row] for row in rows])


def _gopher(texts: pa.ChunkedArray | pa.Array, config: GopherConfig) -> Iterator[_RuleFailures]:
    values = dict(zip(gopher.MEASURES, gopher.measure(texts, config.stop_words).T, strict=True))
    limits = {
        "word_count": (config.min_words, config.max_words),
        "mean_word_length": (config.min_mean_word_length, config.max_mean_word_length),
        "hash_ratio": (None, config.max_hash_ratio),
        "ellipsis_ratio": (None, config.max_ellipsis_ratio),
        "bullet_lines": (None, config.max_bullet_lines),
        "ellipsis_lines": (None, config.max_ellipsis_lines),
        "alphabetic_words": (config.min_alphabetic_words, None),
        "stop_words": (config.min_stop_words, None),
    }
    for name, (low, high) in limits.items():
        yield from _outside(f"gopher_{name}", values[name], low, high)


def _repetition(
    texts: pa.ChunkedArray | pa.Array, config: GopherRepetitionConfig
) -> Iterator[_RuleFailures]:
    limits = np.array([getattr(config, name) for name in repetition.MEASURES], np.float64)
    values = repetition.measure(texts, limits)
    for name, column, limit in zip(repetition.MEASURES, values.T, limits.tolist(), strict=True):
        yield from _outside(f"repetition_{name}", column, None, limit)


def _c4(
    texts: pa.ChunkedArray | pa.Array, config: C4Config, bad_words: tuple[str, ...]
) -> Iterator[_RuleFailures]:
    if config.lorem_ipsum:
        yield _found("c4_lorem_ipsum", np.flatnonzero(c4.holds(texts, c4.LOREM_IPSUM)))
    if config.curly_bracket:
        yield _found("c4_curly_bracket", np.flatnonzero(c4.holds(texts, c4.CURLY_BRACKET)))
    if bad_words:
        rows = np.flatnonzero(c4.holds_word(texts, bad_words))
        words = [c4.first_word(texts[int(row)].as_py(), bad_words) for row in rows]
        yield _found("c4_bad_words", rows, words)
    lines, sentences = c4.measure(texts, config.min_line_words).T
    yield from _outside("c4_terminal_lines", lines, config.min_terminal_lines)
    yield from _outside("c4_sentences", sentences, config.min_sentences)


def _found(reason: str, rows: I64, targets: Sequence[str] | None = None) -> _RuleFailures:
    nothing = np.full(len(rows), np.nan)
    what = reason.partition("_")[2].replace("_", " ")
    return _RuleFailures(reason, rows, nothing, nothing, targets or [what] * len(rows))
