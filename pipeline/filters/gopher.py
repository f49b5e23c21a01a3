"""Gopher's quality rules: Rae et al. 2021, appendix A1.1 (arXiv:2112.11446), without its language.

Words are those of `str.split`; lines of white space alone do not count. The hash and ellipsis
ratios are signs per word, "..." counting as one sign like "…".
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dedup.arrays import F64, I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.text import TextArray, code_point, view_texts
from pipeline.config.filters import GopherConfig
from pipeline.filters.rule import (
    ALNUM,
    ALPHA,
    BULLET,
    DOT,
    ELLIPSIS,
    HASH,
    LOWER,
    NEWLINE,
    SPACE,
    Rule,
    RuleFailures,
    absorb,
    character_table,
    entry_of,
    find_outside,
    hash_numbers,
)

Truth = npt.NDArray[np.bool_]

FAMILY = "gopher"
RULES = (
    Rule(name="word_count", least="min_words", most="max_words", looks_at="words",
         says="It has too few or too many words."),
    Rule(name="mean_word_length", least="min_mean_word_length", most="max_mean_word_length",
         looks_at="characters per word", says="Its words are too short or too long on average."),
    Rule(name="hash_ratio", most="max_hash_ratio", looks_at="hash signs per word",
         says="It has too many hash signs."),
    Rule(name="ellipsis_ratio", most="max_ellipsis_ratio",
         looks_at="ellipses (`...` or `…`) per word", says="It has too many ellipses."),
    Rule(name="bullet_lines", most="max_bullet_lines",
         looks_at="share of lines that begin with one of `-*•‣⁃◦▪▫■□●○`",
         says="Too many of its lines begin with a bullet."),
    Rule(name="ellipsis_lines", most="max_ellipsis_lines",
         looks_at="share of lines that end with an ellipsis",
         says="Too many of its lines end with an ellipsis."),
    Rule(name="alphabetic_words", least="min_alphabetic_words",
         looks_at="share of words with an alphabetic character",
         says="Too few of its words contain a letter."),
    Rule(name="stop_words", least="min_stop_words",
         looks_at="different ones of the, be, to, of, and, that, have, with",
         says="It has too few different stop words."),
)  # fmt: skip
MEASURES = tuple(rule.name for rule in RULES)
"""Columns of `measure`: what each rule looks at."""

MOST_STOP_WORDS = 63
"""A document's stop words are bits of one integer."""


def check(texts: TextArray, config: GopherConfig) -> Iterator[RuleFailures]:
    """The documents that fail each rule."""
    for rule, values in zip(RULES, measure(texts, config.stop_words).T, strict=True):
        yield from find_outside(f"{FAMILY}_{rule.name}", values, *rule.limits(config))


def measure(texts: TextArray, stop_words: Sequence[str]) -> F64:
    """What the rules look at, (N, 8) float64 as `MEASURES` names it; 0 without words.

    Stop words are compared without case and marks: letters and digits alone count. Raises
    ValueError for more than 63 stop words, and as `dedup.text.view_texts`.
    """
    if len(stop_words) > MOST_STOP_WORDS:
        raise ValueError(f"{len(stop_words)} stop words: expected at most {MOST_STOP_WORDS}")
    stops, table = (
        np.array([_hash(word) for word in stop_words], np.uint64),
        character_table(),
    )
    parts = [_measure(t.data, t.offsets, table, stops) for t in view_texts(texts)]
    return np.concatenate([np.zeros((0, len(MEASURES))), *parts])


def _hash(word: str) -> np.uint64:
    return hash_numbers(ord(c) for c in word.lower() if c.isalnum())


@kernel
def _measure(data: U8, offsets_N1: I64, table: U32, stops: U64) -> F64:
    """`measure` for texts that lie end to end; every array as long as its name says."""
    values = np.zeros((len(offsets_N1) - 1, 8))
    heads = np.zeros(256, np.bool_)
    for stop in stops:
        heads[stop >> np.uint64(56)] = True
    for row in range(len(offsets_N1) - 1):
        _measure_one(data, offsets_N1[row], offsets_N1[row + 1], table, stops, heads, values[row])
    return values


@kernel
def _measure_one(
    data: U8, start: int, end: int, table: U32, stops: U64, heads: Truth, values: F64
) -> None:
    words = letters = alphabetic = hashes = ellipses = dots = 0
    lines = bullets = ellipsis_lines = 0
    stop_bits = np.uint64(0)
    value, in_word, has_alpha = np.uint64(0), False, False
    in_line, ends_so = False, False
    position = start
    while position <= end:
        if position < end:
            c, position = code_point(data, position)
            entry = entry_of(c, table)
        else:
            c, entry, position = NEWLINE, SPACE, end + 1
        if c == DOT:
            dots += 1
        elif dots:
            ellipses += dots // 3
            ends_so, dots = dots >= 3, 0
        if entry & SPACE:
            if in_word:
                words += 1
                alphabetic += has_alpha
                if heads[value >> np.uint64(56)]:
                    stop_bits |= _bit_of(value, stops)
                in_word, has_alpha, value = False, False, np.uint64(0)
            if c == NEWLINE and in_line:
                lines += 1
                ellipsis_lines += ends_so
                in_line = False
            continue
        letters += 1
        hashes += c == HASH
        ellipses += c == ELLIPSIS
        if c != DOT:
            ends_so = c == ELLIPSIS
        if not in_line:
            in_line = True
            bullets += (entry & BULLET) != 0
        in_word = True
        if entry & ALNUM:
            has_alpha |= (entry & ALPHA) != 0
            value = absorb(value, np.uint64(entry & LOWER))
    if words:
        values[0], values[1] = words, letters / words
        values[2], values[3] = hashes / words, ellipses / words
        values[4], values[5] = bullets / lines, ellipsis_lines / lines
        values[6] = alphabetic / words
        while stop_bits:
            values[7] += 1
            stop_bits &= stop_bits - np.uint64(1)


@kernel
def _bit_of(value: np.uint64, stops: U64) -> np.uint64:
    for index in range(len(stops)):
        if stops[index] == value:
            return np.uint64(1) << np.uint64(index)
    return np.uint64(0)
