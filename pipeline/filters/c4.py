"""C4's rules for whole documents: Raffel et al. 2020, section 2.2 (arXiv:1910.10683).

C4 cuts lines; here no text is cut. A document is judged by the share of its lines that end a
sentence, and by the sentences in lines that C4 would keep. C4's lines about Javascript, cookies and
terms of use are not looked for. Sentences end with `rule.SENTENCE_ENDS` before white space;
abbreviations count as ends too, an ellipsis does not.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import F64, I64, U8, U32
from dedup.compiled import kernel
from dedup.text import TextArray, code_point, view_texts
from pipeline.config.filters import C4Config
from pipeline.filters.rule import (
    DOT,
    ELLIPSIS,
    NEWLINE,
    QUOTE,
    SPACE,
    STOP,
    Rule,
    RuleFailures,
    character_table,
    entry_of,
    find_outside,
    list_failures,
)

FAMILY = "c4"
RULES = (
    Rule(name="lorem_ipsum", looks_at='"lorem ipsum", in any case',
         allowed="none, unless `lorem_ipsum` is false", says='It contains "lorem ipsum".'),
    Rule(name="curly_bracket", looks_at="`{`, which code and LaTeX need",
         allowed="none, unless `curly_bracket` is false", says="It contains a curly bracket."),
    Rule(name="bad_words", looks_at="a word or phrase of your list `bad_words`, whole, in any case",
         allowed="none; no list is shipped", says="It contains a word from the list of bad words."),
    Rule(name="terminal_lines", least="min_terminal_lines",
         looks_at="share of lines that end a sentence; C4 removes the others",
         says="Too few of its lines end a sentence."),
    Rule(name="sentences", least="min_sentences",
         looks_at="sentences in lines that C4 would keep: those that end one and have "
                  "`min_line_words` words",
         says="It has too few sentences."),
)  # fmt: skip
MEASURES = ("terminal_lines", "sentences")
"""Columns of `measure`: share of lines that end a sentence; sentences in such lines of enough
words."""

LOREM_IPSUM = "lorem ipsum"
CURLY_BRACKET = "{"
_WORD = r"\p{L}\p{M}\p{N}_"

Truth = npt.NDArray[np.bool_]


def check(
    texts: pa.ChunkedArray | pa.Array, config: C4Config, bad_words: tuple[str, ...]
) -> Iterator[RuleFailures]:
    """The documents that fail each rule."""
    if config.lorem_ipsum:
        yield list_failures("c4_lorem_ipsum", np.flatnonzero(contains_phrase(texts, LOREM_IPSUM)))
    if config.curly_bracket:
        yield list_failures(
            "c4_curly_bracket", np.flatnonzero(contains_phrase(texts, CURLY_BRACKET))
        )
    if bad_words:
        rows = np.flatnonzero(holds_word(texts, bad_words))
        words = [find_first_word(texts[int(row)].as_py(), bad_words) for row in rows]
        yield list_failures("c4_bad_words", rows, words)
    lines, sentences = measure(texts, config.min_line_words).T
    yield from find_outside("c4_terminal_lines", lines, config.min_terminal_lines)
    yield from find_outside("c4_sentences", sentences, config.min_sentences)


def measure(texts: TextArray, min_line_words: int) -> F64:
    """What the rules on lines look at, (N, 2) float64 in the order of `MEASURES`; 0 for texts
    without lines. Raises as `dedup.text.view_texts`."""
    table = character_table()
    parts = [_measure(t.data, t.offsets, table, min_line_words) for t in view_texts(texts)]
    return np.concatenate([np.zeros((0, len(MEASURES))), *parts])


def contains_phrase(texts: pa.ChunkedArray | pa.Array, phrase: str) -> Truth:
    """Which texts hold a phrase, in any case of ASCII letters, (N,) bool."""
    return np.asarray(pc.match_substring(texts, phrase, ignore_case=True))


def holds_word(texts: pa.ChunkedArray | pa.Array, words: Sequence[str]) -> Truth:
    """Which texts hold one of these words or phrases, whole and in any case, (N,) bool."""
    return np.asarray(pc.match_substring_regex(texts, _pattern(words, _WORD)))


def find_first_word(text: str, words: Sequence[str]) -> str:
    """The first of the words in a text that holds one."""
    folded = {word.lower(): word for word in words}
    match = re.search(_pattern(words, r"\w"), text)
    return folded.get(match[1].lower(), match[1]) if match else ""


def _pattern(words: Sequence[str], letter: str) -> str:
    alternatives = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return f"(?i)(?:^|[^{letter}])({alternatives})(?:$|[^{letter}])"


@kernel
def _measure(data: U8, offsets_N1: I64, table: U32, min_line_words: int) -> F64:
    values = np.zeros((len(offsets_N1) - 1, 2))
    for row in range(len(offsets_N1) - 1):
        position, end = offsets_N1[row], offsets_N1[row + 1]
        lines = ended = sentences = 0
        while position < end:
            position, words, stops, ends_so = _line(data, position, end, table)
            lines += words > 0
            ended += ends_so
            if ends_so and words >= min_line_words:
                sentences += stops
        if lines:
            values[row, 0], values[row, 1] = ended / lines, sentences
    return values


@kernel
def _line(data: U8, position: int, end: int, table: U32) -> tuple[int, int, int, bool]:
    """Read a line: where the next one begins, its words and sentences, and whether it ends one."""
    words = stops = dots = 0
    in_word, stopped, ends_so = False, False, False
    while position < end:
        c, position = code_point(data, position)
        entry = entry_of(c, table)
        if entry & SPACE:
            if in_word:
                words += 1
                stops += stopped
                ends_so = stopped and dots < 3
            in_word, stopped, dots = False, False, 0
            if c == NEWLINE:
                return position, words, stops, ends_so
            continue
        in_word = True
        if entry & STOP:
            stopped = True
            dots = 3 if c == ELLIPSIS else dots + 1 if c == DOT else 0
        elif not entry & QUOTE:
            stopped, dots = False, 0
    if in_word:
        words += 1
        stops += stopped
        ends_so = stopped and dots < 3
    return position, words, stops, ends_so
