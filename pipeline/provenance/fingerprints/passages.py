"""Passages: stretches of a document whose grams a work holds, nearly on one diagonal.

A passage is a stretch in which no more than `gap` words in a row are without a matched gram. Which
of its words are the work's is counted word by word: runs of joined matches, as far as their words
are equal, and equal words between two runs on one diagonal. A document's words count against each
word of the work once, for turns of phrase that a document repeats are no second copy; a run of
nearly the whole work is one.

Shapes: M matches, P passages, R runs, S words of the stretch of a document, W words of a work.
"""

import numpy as np

from dedup.arrays import I64, U8, U64
from dedup.compiled import kernel
from dedup.text import Whole
from pipeline.provenance.fingerprints.growing import rows_for

PLACE, DIAGONAL, SIZE, IS_JOINED, ORDINAL = range(5)
"""Of a match, int64: first word of the gram in the document; place in the work minus that; words of
the gram; whether the gram looked up before it matched on the same diagonal; how many were looked up
before it."""
FIRST, STOP, HITS, MATCHED, GRAMS, LONGEST, EQUAL = range(7)
"""Of a passage, int64: its words [first, stop) of the document; different places of the work that
were matched; grams matched; grams looked up; words of the longest run of joined matches; words that
are the work's, which `count_equal` fills in."""
COPY = 0.9
"""Share of a work's words that a run has at least which counts as a copy of it."""
_BEGIN, _END, _SHIFT, _SEEDS, _PASSAGE = range(5)
"""Of a run: its words [begin, end) in the stretch; place in the work minus that; grams matched; the
passage it is in."""


@kernel
def passages_of(matches: I64, count: int, gap: int, stamp_W: I64, number: int) -> I64:
    """The passages of matches[:count], (P, 7), in order.

    stamp_W: the passage in which each place of the work was last matched; all of them below
    `number`, which is that of the first passage here.
    """
    found, used = np.empty((8, 7), np.int64), -1
    run_from = np.int64(0)
    for i in range(count):
        place, stop = matches[i, PLACE], matches[i, PLACE] + matches[i, SIZE]
        if used < 0 or place > found[used, STOP] + gap:
            used += 1
            found = rows_for(found, used, 1)
            found[used, FIRST], found[used, STOP] = place, stop
            found[used, HITS], found[used, MATCHED], found[used, EQUAL] = 0, 0, 0
            found[used, GRAMS], found[used, LONGEST] = matches[i, ORDINAL], 0
            run_from = place
        elif not matches[i, IS_JOINED]:
            run_from = place
        passage = found[used]
        passage[STOP] = max(passage[STOP], stop)
        passage[MATCHED] += 1
        passage[LONGEST] = max(passage[LONGEST], stop - run_from)
        at = place + matches[i, DIAGONAL]
        if stamp_W[at] != number + used:
            stamp_W[at] = number + used
            passage[HITS] += 1
        if i + 1 == count or matches[i + 1, PLACE] > passage[STOP] + gap:
            passage[GRAMS] = matches[i, ORDINAL] - passage[GRAMS] + 1
    return found[: used + 1]


@kernel
def _runs_of(matches: I64, count: int, first: int, passages: I64, needed: int) -> I64:
    """The runs of joined matches[:count] in passages of `needed` hits, (R, 5), in order; `first`
    is the stretch's first word in the document."""
    runs, used, at = np.empty((count, 5), np.int64), 0, 0
    for i in range(count):
        place = matches[i, PLACE]
        while place >= passages[at, STOP]:
            at += 1
        if passages[at, HITS] < needed:
            continue
        is_new = not matches[i, IS_JOINED] or place == passages[at, FIRST]
        if is_new:
            runs[used, _BEGIN], runs[used, _SHIFT] = place - first, matches[i, DIAGONAL] + first
            runs[used, _SEEDS], runs[used, _PASSAGE] = 0, at
            used += 1
        runs[used - 1, _END] = place - first + matches[i, SIZE]
        runs[used - 1, _SEEDS] += 1
    return runs[:used]


@kernel
def _mark(
    words_S: U64, work_W: U64, start: Whole, stop: Whole, step: int, shift: Whole, is_copy: bool,
    marked_S: U8, held_W: I64, number: int,
) -> tuple[Whole, int]:  # fmt: skip
    """Mark words from `start` towards `stop` that are the work's, up to the first that is not, or
    that is marked already. Returns (where it ended, words of the work marked for the first time).
    """
    at, fresh = start, 0
    while at != stop and not marked_S[at]:
        place = at + shift
        if place < 0 or place >= len(work_W) or words_S[at] != work_W[place]:
            break
        if held_W[place] != number:
            held_W[place] = number
            fresh += 1
        elif not is_copy:
            break
        marked_S[at] = 1
        at += step
    return at, fresh


@kernel
def count_equal(
    words_S: U64, first: int, work_W: U64, matches: I64, count: int, passages: I64, needed: int,
    held_W: I64, number: int,
) -> int:  # fmt: skip
    """Fill in EQUAL of passages of `needed` hits; returns how many words of the work they hold.

    words_S: the document's words from place `first` on, in which all passages are; held_W: the
    number of the last document that held each word of the work, this one being `number`.
    """
    runs = _runs_of(matches, count, first, passages, needed)
    marked_S, fresh = np.zeros(len(words_S), np.uint8), 0
    for is_copy in (True, False):
        for run in runs:
            if (run[_END] - run[_BEGIN] >= COPY * len(work_W)) != is_copy:
                continue
            passage, shift = passages[run[_PASSAGE]], run[_SHIFT]
            at: Whole = run[_BEGIN]
            while at < run[_END]:
                at, more = _mark(
                    words_S, work_W, at, run[_END], 1, shift, is_copy, marked_S, held_W, number
                )
                at, fresh = at + 1, fresh + more
            last, before = passage[STOP] - first, passage[FIRST] - first - 1
            _, more = _mark(
                words_S, work_W, run[_END], last, 1, shift, is_copy, marked_S, held_W, number
            )
            _, less = _mark(
                words_S, work_W, run[_BEGIN] - 1, before, -1, shift, is_copy, marked_S, held_W,
                number,
            )  # fmt: skip
            fresh += more + less
    for i in range(1, len(runs)):
        if runs[i, _PASSAGE] != runs[i - 1, _PASSAGE] or runs[i, _SHIFT] != runs[i - 1, _SHIFT]:
            continue
        for at in range(runs[i - 1, _END], runs[i, _BEGIN]):
            _, more = _mark(
                words_S, work_W, at, at + 1, 1, runs[i, _SHIFT], False, marked_S, held_W, number
            )
            fresh += more
    for passage in passages:
        if passage[HITS] >= needed:
            passage[EQUAL] = marked_S[passage[FIRST] - first : passage[STOP] - first].sum()
    return fresh
