"""Words, lines and paragraphs of a text as hashes: what `pipeline.filters.repetition` compares."""

import numpy as np

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.text import code_point
from pipeline.filters.characters import NEWLINE, SPACE, Whole, absorb, entry_of


@kernel
def read_units(
    data: U8, start: int, end: int, table: U32, words: U64, ends: I64, lines: U64, paragraphs: U64
) -> tuple[Whole, Whole, Whole, Whole]:
    """Split a text: hashes of its words, and the visible characters before each word's end; hash
    and length of every line and paragraph. Returns (words, characters, lines, paragraphs).

    words, lines and paragraphs hold min(bytes // 2 + 1, the most words to read), ends one more.
    """
    held = visible = characters = in_lines = in_paragraphs = 0
    value, line, paragraph = np.uint64(0), np.uint64(0), np.uint64(0)
    in_word, in_line, in_paragraph, blank = False, False, False, False
    line_start = paragraph_start = last = 0
    position = start
    ends[0] = 0
    while position <= end and held < len(words):
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
            words[held] = value
            held += 1
            ends[held] = visible
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
            paragraph, last - paragraph_start,
        )  # fmt: skip
        in_paragraphs += 1
    return held, characters, in_lines, in_paragraphs
