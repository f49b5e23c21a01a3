"""Gopher's repetition rules: Rae et al. 2021, table A1 (arXiv:2112.11446).

Words are those of `str.split`; lines and paragraphs are equal when the hashes of their words are,
and the first of equal ones is no duplicate. Shares are of all characters, white space included. The
most frequent n-gram counts with one space between words, and nothing if it occurs once; duplicate
n-grams are found from the left without overlap, and count without spaces. Except for words and
comparison this is datatrove's `GopherRepetitionFilter`. Only the first 4,194,304 words are
measured.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dedup.arrays import F64, I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.text import TextArray, code_point, view_texts
from pipeline.config.filters import GopherRepetitionConfig
from pipeline.filters.rule import (
    NEWLINE,
    SPACE,
    Rule,
    RuleFailures,
    Whole,
    absorb,
    character_table,
    entry_of,
    find_outside,
)


@kernel
def read_units(
    data: U8, start: int, end: int, table: U32, words: U64, ends: I64, lines: U64, paragraphs: U64
) -> tuple[Whole, Whole, Whole, Whole]:
    """Split a text: hashes of its words, and the visible characters before each word's end; hash
    and length of every line and paragraph. Returns (words, characters, lines, paragraphs).

    words, lines and paragraphs hold min(bytes // 2 + 1, the most words to read), ends one more.
    """
    in_words = visible = characters = in_lines = in_paragraphs = 0
    value, line, paragraph = np.uint64(0), np.uint64(0), np.uint64(0)
    in_word, in_line, in_paragraph, blank = False, False, False, False
    line_start = paragraph_start = last = 0
    position = start
    ends[0] = 0
    while position <= end and in_words < len(words):
        if position < end:
            c, position = code_point(data, position)
            entry = entry_of(c, table)
            characters += 1
        else:
            c, entry, position = NEWLINE, SPACE, end + 1
        if not entry & SPACE:
            if not in_word:
                if in_paragraph and blank:
                    paragraphs[in_paragraphs, 0] = paragraph
                    paragraphs[in_paragraphs, 1] = last - paragraph_start
                    in_paragraphs += 1
                    in_paragraph = False
                if not in_paragraph:
                    paragraph, paragraph_start, in_paragraph = np.uint64(0), characters - 1, True
                if not in_line:
                    line, line_start, in_line = np.uint64(0), characters - 1, True
                in_word, blank, value = True, False, np.uint64(0)
            value = absorb(value, np.uint64(c))
            visible += 1
            last = characters
            continue
        if in_word:
            words[in_words] = value
            in_words += 1
            ends[in_words] = visible
            line, paragraph = absorb(line, value), absorb(paragraph, value)
            in_word = False
        if c == NEWLINE:
            blank = not in_line
            if in_line:
                lines[in_lines, 0], lines[in_lines, 1] = line, last - line_start
                in_lines += 1
                in_line = False
    if in_line:
        lines[in_lines, 0], lines[in_lines, 1] = line, last - line_start
        in_lines += 1
    if in_paragraph:
        paragraphs[in_paragraphs, 0], paragraphs[in_paragraphs, 1] = (
            paragraph,
            last - paragraph_start,
        )
        in_paragraphs += 1
    return in_words, characters, in_lines, in_paragraphs


FAMILY = "repetition"
_TOP = "share of characters in the most frequent run of {} words"
_DUPLICATE = "share of characters in duplicate runs of {} words"
RULES = (
    Rule(name="duplicate_lines", most="duplicate_lines",
         looks_at="share of lines that are duplicates",
         says="Too many of its lines are repeated."),
    Rule(name="duplicate_paragraphs", most="duplicate_paragraphs",
         looks_at="share of paragraphs that are duplicates",
         says="Too many of its paragraphs are repeated."),
    Rule(name="duplicate_line_characters", most="duplicate_line_characters",
         looks_at="share of characters in duplicate lines",
         says="Too much of its text is in repeated lines."),
    Rule(name="duplicate_paragraph_characters", most="duplicate_paragraph_characters",
         looks_at="share of characters in duplicate paragraphs",
         says="Too much of its text is in repeated paragraphs."),
    *(Rule(name=f"top_{n}_gram", most=f"top_{n}_gram", looks_at=_TOP.format(n),
           says=f"One run of {n} words makes up too much of its text.") for n in (2, 3, 4)),
    *(Rule(name=f"duplicate_{n}_grams", most=f"duplicate_{n}_grams",
           looks_at=_DUPLICATE.format(n),
           says=f"Too much of its text is in repeated runs of {n} words.") for n in range(5, 11)),
)  # fmt: skip
MEASURES = tuple(rule.name for rule in RULES)
"""Columns of `measure`: what each rule looks at."""

MOST_WORDS = 1 << 22
_BASE = np.uint64(0x9E3779B97F4A7C15)


def check(texts: TextArray, config: GopherRepetitionConfig) -> Iterator[RuleFailures]:
    """The documents that fail each rule."""
    limits = np.array([getattr(config, rule.most) for rule in RULES], np.float64)
    for rule, values, limit in zip(RULES, measure(texts, limits).T, limits.tolist(), strict=True):
        yield from find_outside(f"{FAMILY}_{rule.name}", values, None, limit)


def measure(texts: TextArray, limits: F64 | None = None) -> F64:
    """What the rules look at, (N, 13) float64 in the order of `MEASURES`.

    With `limits`, (13,), values of n-grams that cannot exceed theirs may stay 0, which saves most
    of the time. Raises as `dedup.text.view_texts`.
    """
    table = character_table()
    at_most = np.full(len(MEASURES), -1.0) if limits is None else limits
    parts = [_measure(t.data, t.offsets, table, at_most) for t in view_texts(texts)]
    return np.concatenate([np.zeros((0, len(MEASURES))), *parts])


@kernel
def _measure(data: U8, offsets_N1: I64, table: U32, limits: F64) -> F64:
    values = np.zeros((len(offsets_N1) - 1, 13))
    longest = 0
    for row in range(len(offsets_N1) - 1):
        longest = max(longest, offsets_N1[row + 1] - offsets_N1[row])
    room = min(longest // 2 + 1, MOST_WORDS)
    words, grams = np.empty(room, np.uint64), np.empty(room, np.uint64)
    ends, counts = np.empty(room + 1, np.int64), np.empty(room, np.int32)
    lines, paragraphs = np.empty((room, 2), np.uint64), np.empty((room, 2), np.uint64)
    places = np.empty(_slots(room), np.int32)
    for row in range(len(offsets_N1) - 1):
        start, end, value = offsets_N1[row], offsets_N1[row + 1], values[row]
        in_words, characters, in_lines, in_paragraphs = read_units(
            data, start, end, table, words, ends, lines, paragraphs
        )
        if not in_words:
            continue
        _duplicates(lines[:in_lines], places, characters, value, 0)
        _duplicates(paragraphs[:in_paragraphs], places, characters, value, 1)
        _grams(words[:in_words], grams, ends, counts, places, characters, limits, value)
    return values


@kernel
def _slots(entries: int) -> int:
    """Places of a hash table for so many entries: a power of two, at most half of them taken."""
    slots = 8
    while slots < 2 * entries:
        slots *= 2
    return slots


@kernel
def _find(
    value: np.uint64, values: U64, places: npt.NDArray[np.int32], mask: np.uint64
) -> np.uint64:
    """The place in a hash table, of indices from 1 into `values`, that holds this value, or the
    free one where it belongs."""
    mixed = (value ^ (value >> np.uint64(29))) * _BASE
    slot = (mixed >> np.uint64(32)) & mask
    while places[slot] and values[places[slot] - 1] != value:
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def _duplicates(
    units_M2: U64, places: npt.NDArray[np.int32], characters: Whole, values: F64, column: int
) -> None:
    slots = _slots(len(units_M2))
    places[:slots] = 0
    hashes, mask = units_M2[:, 0], np.uint64(slots - 1)
    duplicates = duplicated = 0
    for index in range(len(units_M2)):
        slot = _find(hashes[index], hashes, places, mask)
        if places[slot]:
            duplicates += 1
            duplicated += units_M2[index, 1]
        else:
            places[slot] = index + 1
    values[column], values[column + 2] = duplicates / len(units_M2), duplicated / characters


@kernel
def _grams(
    words: U64,
    grams: U64,
    ends: I64,
    counts: npt.NDArray[np.int32],
    places: npt.NDArray[np.int32],
    characters: Whole,
    limits: F64,
    values: F64,
) -> None:
    for i in range(len(words)):
        grams[i] = words[i]
    most: Whole = len(words)
    bound = 1.0
    for n in range(2, 11):
        count = len(words) - n + 1
        if count < 2 or most < 2:
            return
        for i in range(count):
            grams[i] = (grams[i] + np.uint64(1)) * _BASE + words[i + n - 1]
        column = n + 2
        if n < 5:
            if n == 2 or _longest(ends, count, n) * most > limits[column] * characters:
                most, first = _most_frequent(grams[:count], counts, places)
                if most > 1:
                    length = ends[first + n] - ends[first] + n - 1
                    values[column] = length * most / characters
            continue
        if n == 5:
            bound = _covered(grams[:count], ends, places) / characters
        if bound > limits[column]:
            values[column] = _repeated(grams[:count], ends, n, places) / characters


@kernel
def _longest(ends: I64, count: int, n: int) -> Whole:
    """Characters of the longest of `count` n-grams, spaces included."""
    longest: Whole = 0
    for i in range(count):
        longest = max(longest, ends[i + n] - ends[i])
    return longest + n - 1


@kernel
def _most_frequent(
    grams: U64, counts: npt.NDArray[np.int32], places: npt.NDArray[np.int32]
) -> tuple[Whole, Whole]:
    """How often the most frequent n-gram occurs, and where first."""
    slots = _slots(len(grams))
    places[:slots] = 0
    mask = np.uint64(slots - 1)
    most, best = 0, 0
    for index in range(len(grams)):
        slot = _find(grams[index], grams, places, mask)
        first = places[slot] - 1
        if first < 0:
            places[slot], counts[index], first = index + 1, 0, index
        counts[first] += 1
        if counts[first] > most or (counts[first] == most and first < best):
            most, best = counts[first], first
    return most, best


@kernel
def _covered(grams: U64, ends: I64, places: npt.NDArray[np.int32]) -> Whole:
    """Characters of words in any 5-gram that occurred before: at least what `_repeated` finds for
    n of 5 and more, because the 5-grams in a longer duplicate are duplicates."""
    slots = _slots(len(grams))
    places[:slots] = 0
    mask = np.uint64(slots - 1)
    characters, until = 0, 0
    for index in range(len(grams)):
        slot = _find(grams[index], grams, places, mask)
        if places[slot]:
            characters += ends[index + 5] - ends[max(index, until)]
            until = index + 5
        else:
            places[slot] = index + 1
    return characters


@kernel
def _repeated(grams: U64, ends: I64, n: int, places: npt.NDArray[np.int32]) -> Whole:
    """Characters of duplicate n-grams that do not overlap, from the left."""
    slots = _slots(len(grams))
    places[:slots] = 0
    mask = np.uint64(slots - 1)
    characters, index = 0, 0
    while index < len(grams):
        slot = _find(grams[index], grams, places, mask)
        if places[slot]:
            characters += ends[index + n] - ends[index]
            index += n
        else:
            places[slot] = index + 1
            index += 1
    return characters
