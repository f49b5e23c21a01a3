"""The grams of a candidate's stretch of the document against the work's own.

Where the work's words are stored, every gram (s = 1) is looked up, and hits, longest run and equal
words are exact; of a work known by a sketch only sampled grams are, and they are estimates. Only
matches near the candidate's bands count, and no boilerplate. Shapes: N documents, C candidates, P
passages, W works.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.text import Texts, Whole
from pipeline.screening.fingerprints import match, sketch
from pipeline.screening.fingerprints.alphabet import Alphabet, make_alphabet
from pipeline.screening.fingerprints.index import FingerprintIndex, find_first
from pipeline.screening.fingerprints.words import Words, append_words, make_rows

GAP = 128
"""Words without a match that end a passage. At 30 % substituted words and k = 5 one stretch between
two matched runs in 600 is longer."""
GAP_PER_S = 8
"""And so many for each s of a sketch: what is sampled once in s is missed there so often in a row
with a chance of e^-8."""
SAME = 16
"""Places of one gram in a work that are looked at, the first ones."""

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class Passages(NamedTuple):
    """Passages of works in documents, by document, start and work; int64 except the last two.

    document, work; start, stop: bytes, half-open in the document's UTF-8; hits: different grams of
    the work matched; longest: words of the longest run that both hold; words; matched, grams: grams
    of the passage that the work holds, and all that were looked up; document_words; fraction,
    work_fraction (float64): the words that both hold, as a share of the document's and of the
    work's words, the same in all passages of one work in one document.
    """

    document: I64
    work: I64
    start: I64
    stop: I64
    hits: I64
    longest: I64
    words: I64
    matched: I64
    grams: I64
    document_words: I64
    fraction: npt.NDArray[np.float64]
    work_fraction: npt.NDArray[np.float64]


class GramTable(NamedTuple):
    """A hash table of a work's grams: keys uint64, places int64 (-1 where empty)."""

    keys: U64
    places: I64


class GramSearch(NamedTuple):
    """How grams of a document are looked up: those up to `last`, hashed with `keys` (none or one),
    in a work's table, without boilerplate."""

    k: int
    last: np.uint64
    keys: U64
    table: GramTable
    boilerplate: U64


def verify_candidates(
    chunk: Texts,
    candidates: match.Candidates,
    hits: match.GramHits,
    words_N: I64,
    index: FingerprintIndex,
) -> Passages:
    """The passages of all candidates, as `match.find_candidates` made them."""
    parts = [np.zeros((0, 11), np.int64)]
    for work in np.unique(candidates.work).tolist():
        of_this = candidates.work == work
        rows = np.stack([column[of_this] for column in candidates], axis=1)
        parts.append(_verify_work(chunk, np.ascontiguousarray(rows), hits, index, work))
    rows = np.concatenate(parts)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 2], rows[:, 0]))]
    columns = np.ascontiguousarray(rows.T)
    document, work, equal, of_work = columns[[0, 1, 9, 10]]
    key, which = np.unique(document * (len(index.starts)) + work, return_inverse=True)
    together = np.bincount(which, equal, minlength=len(key))[which]
    total = words_N[document]
    fraction = np.minimum(together / np.maximum(total, 1), 1.0)
    work_fraction = np.minimum(of_work / np.maximum(np.diff(index.starts)[work], 1), 1.0)
    return Passages._make((*columns[:9], total, fraction, work_fraction))


def _verify_work(
    chunk: Texts, candidates: I64, hits: match.GramHits, index: FingerprintIndex, work: int
) -> I64:
    """Rows of the passages of one work: document, work, bytes, hits, longest, words, matched,
    grams, equal words, words of the work that the document holds."""
    k, is_stored = index.parameters.k, bool(index.is_stored[work])
    s = 1 if is_stored else index.works["s"][work].as_py()
    work_words = index.read_words(work) if is_stored else np.zeros(0, np.uint64)
    if is_stored:
        hashes, places = sketch.sample_grams(work_words, k, _ALL)
        table = _make_table(hashes, places)
    else:
        of_work = hits.work == work
        places, first = np.unique((hits.diagonal + hits.place)[of_work], return_index=True)
        table = _make_table(index.postings.hashes[hits.gram[of_work][first]], places)
    gap = GAP + (0 if is_stored else GAP_PER_S * s)
    needed = index.parameters.dense if is_stored else index.parameters.m_sketch
    size = int(np.diff(index.starts)[work])
    low, high = index.works["key_low"][work].as_py(), index.works["key_high"][work].as_py()
    keys = np.array([] if low is None else [low, high], np.uint64).reshape(-1, 2)
    last = np.uint64(sketch.find_last_kept(s))
    search = GramSearch(k, last, keys, table, index.boilerplate)
    rows = _find_passages(
        chunk.data,
        chunk.offsets,
        make_alphabet(),
        candidates,
        search,
        gap,
        size,
        needed,
        work_words,
    )
    rows[:, 1] = work
    if not is_stored:
        rows[:, 9] = rows[:, 6] * rows[:, 7] // rows[:, 8]
        rows[:, 10] = np.bincount(rows[:, 0], rows[:, 9])[rows[:, 0]] if len(rows) else 0
    return rows


@kernel
def _make_table(hashes: U64, places: U32 | I64) -> GramTable:
    size = 16
    while size < 2 * len(hashes):
        size *= 2
    table = GramTable(np.empty(size, np.uint64), np.empty(size, np.int64))
    for empty in range(size):
        table.places[empty] = -1
    for i in range(len(hashes)):
        slot, same = np.int64((hashes[i] >> np.uint64(3)) & np.uint64(size - 1)), 0
        while table.places[slot] >= 0 and same < SAME:
            same += table.keys[slot] == hashes[i]
            slot = (slot + 1) & (size - 1)
        if same < SAME:
            table.keys[slot], table.places[slot] = hashes[i], places[i]
    return table


@kernel
def _find_diagonal(
    key: np.uint64, place: Whole, table: GramTable, candidates: I64, preferred: Whole, none: Whole
) -> Whole:
    """The diagonal on which a gram matches near the bands of one of the candidates: the preferred
    one if it does, else the first; `none` if there is no such place."""
    size = len(table.keys)
    slot, best = np.int64((key >> np.uint64(3)) & np.uint64(size - 1)), none
    while table.places[slot] >= 0:
        diagonal = table.places[slot] - place
        if table.keys[slot] == key and (best == none or diagonal == preferred):
            band = diagonal // match.BAND
            for i in range(len(candidates)):
                if candidates[i, 2] - 1 <= band <= candidates[i, 3] + 1:
                    best = diagonal
                    break
            if best == preferred != none:
                break
        slot = (slot + 1) & (size - 1)
    return best


@kernel
def _read_stretch(data: U8, at: int, end: int, tables: Alphabet, first: int, stop: int) -> Words:
    block = Words(np.empty(1024, np.uint64), np.empty(1024, np.int64), np.empty(1024, np.int64))
    size = stop - first
    words = Words(np.empty(size, np.uint64), np.empty(size, np.int64), np.empty(size, np.int64))
    opened = np.zeros(3, np.uint64)
    before, count = 0, 0
    while at < end and before < stop:
        filled, at = append_words(data, at, end, tables, block, 0, opened)
        for i in range(max(0, first - before), min(filled, stop - before)):
            words.hashes[count] = block.hashes[i]
            words.starts[count], words.ends[count] = block.starts[i], block.ends[i]
            count += 1
        before += filled
    return Words(words.hashes[:count], words.starts[:count], words.ends[:count])


@kernel
def _match_grams(words: U64, first: int, candidates: I64, search: GramSearch) -> tuple[I64, int]:
    k, keys, boilerplate = search.k, search.keys, search.boilerplate
    hashes, places = np.empty(len(words), np.uint64), np.empty(len(words), np.uint32)
    state = sketch.make_state(k)
    grams = sketch.roll(words, 0, len(words), state, search.last, 0, hashes, places, 0)
    matches, count = np.empty((grams, 5), np.int64), 0
    none = np.int64(-(1 << 62))
    before: Whole = none
    for i in range(grams):
        key, place = hashes[i], first + np.int64(places[i])
        for salt in range(len(keys)):
            key = sketch.hash_with_key(key, keys[salt, 0], keys[salt, 1])
        diagonal = _find_diagonal(key, place, search.table, candidates, before, none)
        if diagonal != none:
            plain = find_first(boilerplate, hashes[i])
            if plain < len(boilerplate) and boilerplate[plain] == hashes[i]:
                before = none
                continue
            is_word = words[places[i]] & np.uint64(1) == 0
            matches[count, match.PLACE], matches[count, match.DIAGONAL] = place, diagonal
            matches[count, match.SIZE] = k if is_word else sketch.CHARACTERS
            matches[count, match.IS_JOINED], matches[count, match.ORDINAL] = diagonal == before, i
            count += 1
        before = diagonal
    return matches, count


@kernel
def _find_passages(
    data: U8,
    offsets_N1: I64,
    tables: Alphabet,
    candidates: I64,
    search: GramSearch,
    gap: int,
    size: int,
    needed: int,
    work_W: U64,
) -> I64:
    """`_verify_work`, from its candidates by document; `needed`: hits that a passage has at least;
    work_W: the work's words, none where only a sketch is known."""
    rows, used = np.empty((64, 11), np.int64), 0
    stamp_W, number = np.zeros(size, np.int64), 1
    holder_W = np.full(len(work_W), -1, np.int64)
    start = 0
    while start < len(candidates):
        document, stop = candidates[start, 0], start
        first, last_hit = candidates[start, 4], candidates[start, 5]
        while stop < len(candidates) and candidates[stop, 0] == document:
            first, last_hit = min(first, candidates[stop, 4]), max(last_hit, candidates[stop, 5])
            stop += 1
        mine = candidates[start:stop]
        first = max(0, first - gap)
        begin, end = offsets_N1[document], offsets_N1[document + 1]
        words = _read_stretch(data, begin, end, tables, first, last_hit + sketch.CHARACTERS + gap)
        matches, count = _match_grams(words.hashes, first, mine, search)
        passages = match.join_passages(matches, count, gap, stamp_W, number)
        number += len(passages)
        of_work = 0
        if len(work_W):
            of_work = match.count_equal(
                words.hashes, first, work_W, matches, count, passages, needed, holder_W, document
            )
        for passage in passages:
            if passage[match.HITS] < needed:
                continue
            rows = make_rows(rows, used, 1)
            row = rows[used]
            row[0], row[1] = document, 0
            row[2] = words.starts[passage[match.FIRST] - first] - begin
            row[3] = words.ends[passage[match.STOP] - first - 1] - begin
            row[4], row[5], row[6] = (
                passage[match.HITS],
                passage[match.LONGEST],
                passage[match.STOP] - passage[match.FIRST],
            )
            row[7], row[8] = passage[match.MATCHED], passage[match.GRAMS]
            row[9], row[10] = passage[match.EQUAL], of_work
            used += 1
        start = stop
    return rows[:used]
