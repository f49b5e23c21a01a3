"""From texts to candidates, and from matches to passages, in kernels.

A sampled gram of a document that the index holds is a hit; its diagonal is the place in the work
minus that in the document. A copied passage has its hits on near diagonals, chance anywhere. Bands
of BAND words that reach what the work needs, alone or with a neighbour, make a candidate.

A passage is a stretch with at most `gap` words in a row without a matched gram. Equal words are
counted one by one, each word of the work once, except in a run of nearly the whole work.

Shapes: N documents, H hits, C candidates, M matches, P passages, R runs, S words of a stretch, W of
a work.
"""

from typing import NamedTuple

import numpy as np

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.text import Texts, Whole
from pipeline.screening.fingerprints import sketch
from pipeline.screening.fingerprints.alphabet import Alphabet, make_alphabet
from pipeline.screening.fingerprints.index import (
    FingerprintIndex,
    Postings,
    choose_bits,
    find_first,
)
from pipeline.screening.fingerprints.words import Words, append_words, make_rows

BAND = 256
"""Words of one band of diagonals."""
_BLOCK = 4096


class GramHits(NamedTuple):
    """Sampled grams found, by document and place. document; place: the gram's first word in it;
    work; diagonal: place in the work minus place in the document; gram: its first posting. int64.
    """

    document: I64
    place: I64
    work: I64
    diagonal: I64
    gram: I64


class Candidates(NamedTuple):
    """Bands that reach what their work needs, by work, document and band, int64 (C,).

    low, high: first and last band (diagonal // BAND); first, last: places of the first and the last
    hit in the document; score: the best of two neighbouring bands.
    """

    document: I64
    work: I64
    low: I64
    high: I64
    first: I64
    last: I64
    score: I64


def find_candidates(chunk: Texts, index: FingerprintIndex) -> tuple[Candidates, GramHits, I64]:
    """Candidates of the texts of one chunk; the hits behind them; words of each text, (N,)."""
    postings = index.postings
    rows, words_N = _scan(
        chunk.data, chunk.offsets, make_alphabet(), index.parameters.k, index.last, postings
    )
    hits = _select_promising(rows, index)
    band = hits.diagonal // BAND
    order = np.lexsort((hits.gram, band, hits.document, hits.work))
    sorted_ = [column[order] for column in (*hits, band)]
    bands = _find_bands(np.ascontiguousarray(np.stack(sorted_, axis=1)), index.needed)
    return Candidates(*np.ascontiguousarray(bands.T)), hits, words_N


def _select_promising(rows: I64, index: FingerprintIndex) -> GramHits:
    document, place, gram, at = np.ascontiguousarray(rows.T)
    work = np.searchsorted(index.starts, at, "right") - 1
    diagonal = at - index.starts[work] - place
    _, which, times = np.unique(
        document * len(index.starts) + work, return_inverse=True, return_counts=True
    )
    is_enough = times[which] >= index.needed[work] if len(rows) else np.zeros(0, bool)
    return GramHits(*(column[is_enough] for column in (document, place, work, diagonal, gram)))


class _Grams(NamedTuple):
    """Grams of a block of words: hashes uint64; places uint32, of the first word in the document;
    passed int64, the numbers of those that the filter lets through."""

    hashes: U64
    places: U32
    passed: I64


@kernel
def _look_up(
    grams: _Grams, keys: U64, count: int, document: int, postings: Postings, rows: I64, used: int
) -> tuple[I64, int]:
    """Append (document, place, first posting, place among all works) of every posting of
    keys[:count], the hashes of the first `count` grams, salted or not.

    All are tested before any is searched for, so that tests wait for memory together: the filter of
    10,000 works is larger than a processor's second cache.
    """
    room, passed = np.uint64(len(postings.filter) - 1), 0
    for i in range(count):
        bits = choose_bits(keys[i])
        grams.passed[passed] = i
        passed += postings.filter[(keys[i] >> np.uint64(20)) & room] & bits == bits
    for i in grams.passed[:passed]:
        gram = find_first(postings.hashes, keys[i])
        at = gram
        while at < len(postings.hashes) and postings.hashes[at] == keys[i]:
            rows = make_rows(rows, used, 1)
            rows[used, 0], rows[used, 1], rows[used, 2] = document, np.int64(grams.places[i]), gram
            rows[used, 3] = np.int64(postings.positions[at])
            used += 1
            at += 1
    return rows, used


@kernel
def _drop_repeats(grams: _Grams, count: int, previous: np.uint64) -> int:
    """Drop grams that are the one before them, `previous` for the first; returns how many stay."""
    kept = 0
    for i in range(count):
        key = grams.hashes[i]
        grams.hashes[kept], grams.places[kept] = key, grams.places[i]
        kept += key != previous
        previous = key
    return kept


@kernel
def carry(words: Words, count: int) -> int:
    """Bring the last words to the front, as many as a gram may need; returns how many."""
    carried = min(count, sketch.CHARACTERS)
    for i in range(carried):
        words.hashes[i] = words.hashes[count - carried + i]
    return carried


@kernel
def _scan(
    data: U8, offsets_N1: I64, tables: Alphabet, k: int, last: np.uint64, postings: Postings
) -> tuple[I64, I64]:
    """Rows of `_look_up`, and words of each document.

    A gram that is the one kept before it is passed over: a document of one word over and over.
    """
    room = _BLOCK + sketch.CHARACTERS
    words = Words(np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64))
    grams = _Grams(np.empty(room, np.uint64), np.empty(room, np.uint32), np.empty(room, np.int64))
    salted = np.empty(room, np.uint64)
    opened, state = np.zeros(3, np.uint64), sketch.make_state(k)
    rows, used = np.empty((1024, 4), np.int64), 0
    words_N = np.zeros(len(offsets_N1) - 1, np.int64)
    for document in range(len(offsets_N1) - 1):
        position, end = offsets_N1[document], offsets_N1[document + 1]
        sketch.forget(opened)
        sketch.forget(state)
        carried, before, previous = 0, 0, ~np.uint64(0)
        while position < end:
            filled, position = append_words(data, position, end, tables, words, carried, opened)
            count = sketch.roll(
                words.hashes, carried, filled, state, last, before, grams.hashes, grams.places, 0
            )
            count = _drop_repeats(grams, count, previous)
            if count:
                previous = grams.hashes[count - 1]
            if postings.has_plain:
                rows, used = _look_up(grams, grams.hashes, count, document, postings, rows, used)
            for low, high in postings.keys:
                for i in range(count):
                    salted[i] = sketch.hash_with_key(grams.hashes[i], low, high)
                rows, used = _look_up(grams, salted, count, document, postings, rows, used)
            words_N[document] = before + filled
            carried = carry(words, filled)
            before += filled - carried
    return rows[:used], words_N


@kernel
def _count_different(rows: I64, start: int, middle: int, stop: int) -> int:
    """Different grams in rows [start, middle) and [middle, stop), both ordered by gram (4)."""
    one, other, count = start, middle, 0
    previous = np.int64(-1)
    while one < middle or other < stop:
        if other == stop or (one < middle and rows[one, 4] <= rows[other, 4]):
            gram = rows[one, 4]
            one += 1
        else:
            gram = rows[other, 4]
            other += 1
        count += gram != previous
        previous = gram
    return count


@kernel
def _find_end(rows: I64, start: int) -> int:
    """Where the rows of one document (0), work (2) and band (5) end."""
    stop = start + 1
    while (
        stop < len(rows)
        and rows[stop, 5] == rows[start, 5]
        and rows[stop, 0] == rows[start, 0]
        and rows[stop, 2] == rows[start, 2]
    ):
        stop += 1
    return stop


@kernel
def _find_bands(rows: I64, needed_W: I64) -> I64:
    """Candidates (C, 7) from rows (document, place, work, diagonal, gram, band), ordered by work,
    document, band and gram."""
    bands, used = np.empty((64, 7), np.int64), 0
    start, score_before, is_open = 0, 0, False
    while start < len(rows):
        stop = _find_end(rows, start)
        follows = (
            stop < len(rows)
            and rows[stop, 0] == rows[start, 0]
            and rows[stop, 2] == rows[start, 2]
            and rows[stop, 5] == rows[start, 5] + 1
        )
        score = _count_different(rows, start, stop, _find_end(rows, stop) if follows else stop)
        needed = needed_W[rows[start, 2]]
        if max(score, score_before) >= needed:
            if not is_open:
                bands = make_rows(bands, used, 1)
                bands[used, 0], bands[used, 1] = rows[start, 0], rows[start, 2]
                bands[used, 2], bands[used, 6] = rows[start, 5], 0
                bands[used, 4], bands[used, 5] = rows[start, 1], rows[start, 1]
                used += 1
                is_open = True
            bands[used - 1, 3] = rows[start, 5]
            bands[used - 1, 6] = max(bands[used - 1, 6], max(score, score_before))
            for row in range(start, stop):
                bands[used - 1, 4] = min(bands[used - 1, 4], rows[row, 1])
                bands[used - 1, 5] = max(bands[used - 1, 5], rows[row, 1])
        else:
            is_open = False
        if not follows:
            is_open = False
        score_before = score if follows else 0
        start = stop
    return bands[:used]


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
def join_passages(matches: I64, count: int, gap: int, stamp_W: I64, number: int) -> I64:
    """The passages of matches[:count], (P, 7), in order.

    stamp_W: the passage in which each place of the work was last matched; all of them below
    `number`, which is that of the first passage here.
    """
    passages, used = np.empty((8, 7), np.int64), -1
    run_from = np.int64(0)
    for i in range(count):
        place, stop = matches[i, PLACE], matches[i, PLACE] + matches[i, SIZE]
        if used < 0 or place > passages[used, STOP] + gap:
            used += 1
            passages = make_rows(passages, used, 1)
            passages[used, FIRST], passages[used, STOP] = place, stop
            passages[used, HITS], passages[used, MATCHED], passages[used, EQUAL] = 0, 0, 0
            passages[used, GRAMS], passages[used, LONGEST] = matches[i, ORDINAL], 0
            run_from = place
        elif not matches[i, IS_JOINED]:
            run_from = place
        passage = passages[used]
        passage[STOP] = max(passage[STOP], stop)
        passage[MATCHED] += 1
        passage[LONGEST] = max(passage[LONGEST], stop - run_from)
        at = place + matches[i, DIAGONAL]
        if stamp_W[at] != number + used:
            stamp_W[at] = number + used
            passage[HITS] += 1
        if i + 1 == count or matches[i + 1, PLACE] > passage[STOP] + gap:
            passage[GRAMS] = matches[i, ORDINAL] - passage[GRAMS] + 1
    return passages[: used + 1]


@kernel
def _find_runs(matches: I64, count: int, first: int, passages: I64, needed: int) -> I64:
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


class _Marks(NamedTuple):
    """Words of the stretch (S,) and the work (W,); marked (S,) uint8: those that are the work's;
    holder (W,): the last document that held each word of the work, this one being `number`."""

    words: U64
    work: U64
    marked: U8
    holder: I64
    number: int


@kernel
def _mark(
    marks: _Marks, start: Whole, stop: Whole, step: int, shift: Whole, is_copy: bool
) -> tuple[Whole, int]:
    """Mark words from `start` towards `stop` that are the work's, up to the first that is not, or
    that is marked already. Returns (where it ended, words of the work marked for the first time).
    """
    at, fresh = start, 0
    while at != stop and not marks.marked[at]:
        place = at + shift
        if not 0 <= place < len(marks.work) or marks.words[at] != marks.work[place]:
            break
        if marks.holder[place] != marks.number:
            marks.holder[place] = marks.number
            fresh += 1
        elif not is_copy:
            break
        marks.marked[at] = 1
        at += step
    return at, fresh


@kernel
def count_equal(
    words_S: U64,
    first: int,
    work_W: U64,
    matches: I64,
    count: int,
    passages: I64,
    needed: int,
    holder_W: I64,
    number: int,
) -> int:
    """Fill in EQUAL of passages of `needed` hits; returns how many words of the work they hold.

    words_S: the document's words from place `first` on, in which all passages are; holder_W: the
    number of the last document that held each word of the work, this one being `number`.
    """
    runs = _find_runs(matches, count, first, passages, needed)
    marked_S, fresh = np.zeros(len(words_S), np.uint8), 0
    marks = _Marks(words_S, work_W, marked_S, holder_W, number)
    for is_copy in (True, False):
        for run in runs:
            if (run[_END] - run[_BEGIN] >= COPY * len(work_W)) != is_copy:
                continue
            passage, shift = passages[run[_PASSAGE]], run[_SHIFT]
            at: Whole = run[_BEGIN]
            while at < run[_END]:
                at, more = _mark(marks, at, run[_END], 1, shift, is_copy)
                at, fresh = at + 1, fresh + more
            last, before = passage[STOP] - first, passage[FIRST] - first - 1
            _, more = _mark(marks, run[_END], last, 1, shift, is_copy)
            _, less = _mark(marks, run[_BEGIN] - 1, before, -1, shift, is_copy)
            fresh += more + less
    for i in range(1, len(runs)):
        if runs[i, _PASSAGE] != runs[i - 1, _PASSAGE] or runs[i, _SHIFT] != runs[i - 1, _SHIFT]:
            continue
        for at in range(runs[i - 1, _END], runs[i, _BEGIN]):
            _, more = _mark(marks, at, at + 1, 1, runs[i, _SHIFT], False)
            fresh += more
    for passage in passages:
        if passage[HITS] >= needed:
            passage[EQUAL] = marked_S[passage[FIRST] - first : passage[STOP] - first].sum()
    return fresh
