"""The rules of all families in their order, and which of them documents fail. Their kernels are
compiled before the work begins, so that workers find them cached.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup.arrays import F64, I64
from dedup.compiled import first_use
from pipeline.config.filters import (
    C4Config,
    FiltersConfig,
    GopherConfig,
    GopherRepetitionConfig,
    LanguageConfig,
)
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.storage import read_at_most
from pipeline.core.words import did_you_mean
from pipeline.filters import c4, gopher, language, repetition
from pipeline.filters.ngram_model import measure_perplexity, open_trained
from pipeline.filters.ngram_training import NgramSettings, train_ngrams
from pipeline.filters.rule import RuleFailures

FAMILIES = (language, gopher, repetition, c4)

RULES = {f"{family.FAMILY}_{rule.name}": rule.says for family in FAMILIES for rule in family.RULES}
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

        versions = language.read_detector_versions() if self.config.language else {}
        return {**versions, **({"unicode": unicodedata.unidata_version} if self.on else {})}


def load_filters(config: FiltersConfig, base: Path) -> Filters:
    """The rules with the files they name, relative to `base`. Raises ConfigError when a file, the
    library for languages or one of the languages is not there."""
    if config.language:
        _check_languages(config.language)
    path = config.c4.bad_words if config.c4 else None
    return Filters(config, _word_list(base / path) if path else ())


def _check_languages(config: LanguageConfig) -> None:
    language.read_detector_versions()
    codes = language.languages()
    for code in config.keep:
        if code not in codes:
            hint = did_you_mean(code, sorted(codes))
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


def find_failures(texts: pa.ChunkedArray | pa.Array, filters: Filters) -> Failures:
    """Every rule that each of N texts fails."""
    config = filters.config
    failed: list[RuleFailures] = []
    if config.language:
        failed += language.check(texts, config.language)
    if config.gopher:
        failed += gopher.check(texts, config.gopher)
    if config.gopher_repetition:
        failed += repetition.check(texts, config.gopher_repetition)
    if config.c4:
        failed += c4.check(texts, config.c4, filters.bad_words)
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


def compile_filter_kernels(say: Callable[[str], None]) -> None:
    """`warm_up_filters`, and word of it, where nothing is compiled yet for this machine."""
    if first_use(Path(__file__).parent):
        say("compiling the kernels of the filters for this machine, once")
        warm_up_filters()


def warm_up_filters() -> None:
    """Run each kernel once, on a few words."""
    every = FiltersConfig(
        gopher=GopherConfig(), gopher_repetition=GopherRepetitionConfig(), c4=C4Config()
    )
    texts = pa.array(["One line.\n\nAnother one …"], pa.large_string())
    find_failures(texts, Filters(every))
    measure_perplexity(texts, open_trained(*train_ngrams(texts, NgramSettings())))
