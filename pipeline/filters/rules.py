"""The rules of all families in their order, and which of them documents fail. Their kernels are
compiled before the work begins, so that workers find them cached.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup.arrays import F64, I64
from dedup.text import TextArray
from pipeline.config.filters import (
    MAX_CHARACTERS,
    C4Config,
    FiltersConfig,
    GopherConfig,
    GopherRepetitionConfig,
)
from pipeline.core.errors import ConfigError
from pipeline.core.hashes import read_at_most
from pipeline.filters import c4, fineweb, gopher, language, repetition
from pipeline.filters.ngram_model import measure_perplexity, open_trained
from pipeline.filters.ngram_training import NgramSettings, train_ngrams
from pipeline.filters.rule import RuleFailures
from pipeline.filters.word_functions import (
    Describe,
    WordFunctions,
    cut_texts,
    load_word_functions,
)

FAMILIES = (language, gopher, repetition, c4)

RULES = {f"{family.FAMILY}_{rule.name}": rule.says for family in FAMILIES for rule in family.RULES}
"""Reason words of all rules and what they say of a document, in the order in which the first that
fails becomes the reason."""

_LARGEST_LIST = 64 << 20
_ORDER = {reason: number for number, reason in enumerate(RULES)}


def has_rules(config: FiltersConfig) -> bool:
    """Whether any family of rules is on."""
    return bool(config.families)


@dataclass(frozen=True)
class Filters:
    """The section `filters` with what it names: the bad words in lower case, in order."""

    config: FiltersConfig
    bad_words: tuple[str, ...] = ()
    words: WordFunctions = ()

    @property
    def named_languages(self) -> tuple[str, ...]:
        """The codes of languages that are judged apart from others, in order."""
        cut = (code for code, _ in self.words)
        return tuple(sorted({*self.config.named_languages, *cut}))

    @property
    def on(self) -> bool:
        """Whether there is any rule."""
        return has_rules(self.config)

    def software(self) -> dict[str, str]:
        """What the answers depend on besides the rules."""
        import unicodedata

        versions = language.read_detector_versions() if _needs_languages(self) else {}
        return {**versions, **({"unicode": unicodedata.unidata_version} if self.on else {})}


def load_filters(config: FiltersConfig, base: Path) -> Filters:
    """The rules with the files they name, relative to `base`. Raises ConfigError when a file, the
    library for languages or one of the languages is not there."""
    if config.language:
        language.check_codes(config.language.keep, "filters.language.keep")
    for name, family in config.families.items():
        if family.languages:
            language.check_codes(family.languages, f"filters.{name}.languages")
    path = config.c4.bad_words if config.c4 else None
    words = load_word_functions(config.words, base, "filters.words")
    return Filters(config, _word_list(base / path) if path else (), words)


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


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Columns over failures (F), by document and then in the order of `RULES`.

    row: index of the document; reason; value and limit: what was measured and what was allowed, NaN
    where nothing was; target: what was found or measured; language: whose values of the keys the
    document was judged by, "" for those of the families.
    """

    row: I64
    reason: list[str]
    value: F64
    limit: F64
    target: list[str]
    language: list[str]


def find_failures(
    texts: TextArray, filters: Filters, describe: Describe = "text {}".format
) -> Failures:
    """Every rule that each of N texts fails. Texts in a language for which the config has other
    values, or a function that cuts words, are looked at together. Raises FunctionError."""
    config, functions = filters.config, dict(filters.words)
    guesses, judged_by = _guess_languages(texts, filters), np.full(len(texts), "", np.object_)
    failed: list[RuleFailures] = []
    groups = language.group_by_language(texts, guesses, filters.named_languages)
    for code, rows, in_language in groups:
        judged_by[rows] = code
        if code in functions:
            in_language = cut_texts(functions[code], in_language, rows, describe)
        rules = replace(filters, config=config.of_language(code))
        found = _check(in_language, guesses.take(rows), rules)
        failed += (replace(failures, row=rows[failures.row]) for failures in found)
    return _sort(failed, judged_by.tolist())


def _needs_languages(filters: Filters) -> bool:
    return filters.config.language is not None or bool(filters.named_languages)


def _guess_languages(texts: TextArray, filters: Filters) -> language.Guesses:
    """The languages of the texts where the rules depend on them, else nothing of each."""
    config = filters.config
    if not _needs_languages(filters):
        return language.Guesses.none(len(texts))
    most = config.language.max_characters if config.language else MAX_CHARACTERS
    return language.detect_languages(texts, most)


def _check(texts: TextArray, guesses: language.Guesses, filters: Filters) -> Iterator[RuleFailures]:
    """The documents that fail each rule of each family."""
    config = filters.config
    if config.language:
        yield from language.check(guesses, config.language)
    if config.gopher:
        yield from gopher.check(texts, config.gopher)
    if config.gopher_repetition:
        yield from repetition.check(texts, config.gopher_repetition)
    if config.c4:
        yield from c4.check(texts, config.c4, filters.bad_words)


def _sort(failed: Sequence[RuleFailures], judged_by: Sequence[str]) -> Failures:
    """Failures by document and rule; `judged_by` are the languages of all documents."""
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
        row=rows[order],
        reason=[reasons[i] for i in order],
        value=values,
        limit=limits,
        target=[targets[i] for i in order],
        language=[judged_by[row] for row in rows[order]],
    )


def warm_up_filters() -> None:
    """Run each kernel once, on a few words."""
    every = FiltersConfig(
        gopher=GopherConfig(), gopher_repetition=GopherRepetitionConfig(), c4=C4Config()
    )
    texts = pa.array(["One line.\n\nAnother one …"], pa.large_string())
    find_failures(texts, Filters(every))
    fineweb.measure(texts)
    if language.is_installed():
        language.detect_languages(texts, 1)
    measure_perplexity(texts, open_trained(*train_ngrams(texts, NgramSettings())))
