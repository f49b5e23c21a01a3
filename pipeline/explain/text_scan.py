"""The places of one text in many, word for word or with few words changed, at the speed of memory.

One pass over the bytes (`literals.find_literals`) finds the texts that hold enough of the query's
longest words; only those are read word by word (`fingerprints.near`). Words are compared as
fingerprints compare them: without case, accents, punctuation and line breaks. A query of few words
is looked for character by character too, except for case and white space, so that a part of a word
and a sign are found.

Limits: the first pass knows no accents and no words cut at a line end. A word that is spelled so
counts as changed there, so a query of less than five words misses it. Of an excerpt that is cut
between a letter and its combining marks the cut word is another one.
"""

import re
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, U64
from dedup.text import Texts, join_texts, view_texts
from pipeline.screening.fingerprints.literals import find_literals, find_near
from pipeline.screening.fingerprints.words import find_words

WORDS_PER_EDIT, MOST_EDITS = 5, 16
"""One word in so many may be changed, and so many at most."""
MOST_PLACES = 8
"""Places in one text that are listed; all are counted."""
_FEW_WORDS = 2 * WORDS_PER_EDIT
"""From here on cut words at both ends are two edits, which are allowed."""
_MOST_ANCHORS = 4 * MOST_EDITS
_AROUND = 256
"""Bytes on both sides of words that are the query's in which its characters are looked for."""
_BLANK = r"[\s\p{Z}]+"


@dataclass(frozen=True)
class TextPlace:
    """Where a text holds the query: bytes [start, stop) of its UTF-8, and how many of the query's
    words are changed there."""

    start: int
    stop: int
    edits: int


@dataclass(frozen=True)
class RowPlaces:
    """A text, by row, that holds the query: places where it does word for word, others, and the
    first MOST_PLACES of them, by edits and start; none overlap. by_characters: it holds the query's
    characters, which begin or end within a word there."""

    row: int
    exact: int
    near: int
    places: tuple[TextPlace, ...]
    by_characters: bool = False


@dataclass(frozen=True, eq=False)
class Query:
    """A text made ready to be looked for.

    words (W,): hashes; edits: that are allowed; anchors: words of which a text must hold `needed`,
    each in the spellings that are looked for; tokens: what white space parts.
    """

    words: U64
    edits: int
    anchors: tuple[tuple[str, ...], ...]
    needed: int
    tokens: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """The characters of the query, any white space for white space; for RE2."""
        return _BLANK.join(map(re.escape, self.tokens))


def make_query(text: str) -> Query:
    """The query for a text, which holds more than white space."""
    data, words = text.encode(), find_words(join_texts([text]))
    spans = zip(words.hashes.tolist(), words.starts.tolist(), words.ends.tolist(), strict=True)
    surfaces = {word: data[start:end].decode() for word, start, end in spans}
    tokens = tuple(text.split())
    plain = {s for s in surfaces.values() if s.isalnum()} or set(tokens)
    anchors = sorted((s for s in plain if len(s.encode()) > 1), key=lambda s: (-len(s), s))
    anchors = anchors[:_MOST_ANCHORS]
    edits = min(len(words.hashes) // WORDS_PER_EDIT, MOST_EDITS)
    return Query(
        words.hashes,
        edits,
        tuple(map(_list_spellings, anchors)),
        max(1, len(anchors) - edits),
        tokens,
    )


def _list_spellings(word: str) -> tuple[str, ...]:
    """As `find_literals` has to look for it, which knows no case but that of ASCII.

    >>> sorted(_list_spellings("été")), _list_spellings("ice")
    (['ÉTÉ', 'Été', 'été'], ('ice',))
    """
    if word.isascii():
        return (word,)
    return tuple({word, word.lower(), word.upper(), word.title()})


def find_matching_rows(texts: pa.ChunkedArray, query: Query) -> list[RowPlaces]:
    """The rows of these large strings without nulls that hold the query, ascending."""
    matches: list[RowPlaces] = []
    before = 0
    for array in texts.chunks:
        (chunk,) = view_texts(array)
        anchors = _count_anchors(chunk, query)
        rows = _find_by_words(chunk, np.flatnonzero(anchors >= query.needed), query)
        if len(query.words) < _FEW_WORDS:
            by_words = {row.row for row in rows if row.exact}
            others = np.flatnonzero(anchors == len(query.anchors)).tolist()
            by_characters = _find_by_characters(
                array, [r for r in others if r not in by_words], query
            )
            rows = sorted(
                {row.row: row for row in [*rows, *by_characters]}.values(), key=lambda row: row.row
            )
        matches += [replace(row, row=row.row + before) for row in rows]
        before += len(chunk)
    return matches


def _count_anchors(chunk: Texts, query: Query) -> I64:
    """How many of the anchors each text holds, (N,)."""
    of_needle = np.repeat(np.arange(len(query.anchors)), list(map(len, query.anchors)))
    if not len(of_needle):
        return np.zeros(len(chunk), np.int64)
    hits = find_literals(
        chunk, [spelling for every in query.anchors for spelling in every], places=1
    )
    pairs = np.unique(hits.text * len(query.anchors) + of_needle[hits.needle])
    return np.bincount(pairs // len(query.anchors), minlength=len(chunk))


def _find_by_words(chunk: Texts, rows: I64, query: Query) -> list[RowPlaces]:
    if not len(query.words):
        return []
    matches = find_near(chunk, rows, query.words, query.edits)
    order = np.lexsort((matches.start, matches.edits, matches.row))
    row, start, stop, edits = (column[order] for column in matches)
    of_row, first, count = np.unique(row, return_index=True, return_counts=True)
    exact = np.add.reduceat(edits == 0, first) if len(first) else first
    pattern = _compile_pattern(query) if len(query.words) >= _FEW_WORDS else None
    answer = []
    for number, at, places, same in zip(
        of_row.tolist(), first.tolist(), count.tolist(), exact.tolist(), strict=True
    ):
        here = slice(at, at + min(places, MOST_PLACES))
        columns = (start[here].tolist(), stop[here].tolist(), edits[here].tolist())
        text_places = [TextPlace(*place) for place in zip(*columns, strict=True)]
        if pattern is not None:
            text_places = [
                _forgive_cut_words(chunk, number, place, pattern) for place in text_places
            ]
            same = sum(not place.edits for place in text_places) if places <= MOST_PLACES else same
        answer.append(RowPlaces(number, same, places - same, tuple(text_places)))
    return answer


def _forgive_cut_words(
    chunk: Texts, row: int, place: TextPlace, pattern: re.Pattern[str]
) -> TextPlace:
    """The place, without edits where all characters are there: only the words at the ends of the
    query are parts of words."""
    if place.edits not in (1, 2):
        return place
    first, last = chunk.offsets[row], chunk.offsets[row + 1]
    start = max(first, first + place.start - _AROUND)
    stop = min(last, first + place.stop + _AROUND)
    around = chunk.data[start:stop].tobytes().decode(errors="ignore")
    return replace(place, edits=0) if pattern.search(around) else place


def _find_by_characters(array: pa.Array, rows: list[int], query: Query) -> list[RowPlaces]:
    """Those of these rows that hold all characters of the query."""
    texts = array.take(pa.array(rows, pa.int64()))
    holds = pc.match_substring_regex(texts, query.pattern, ignore_case=True)
    pattern, matches = _compile_pattern(query), []
    for number in np.flatnonzero(holds.to_numpy(zero_copy_only=False)).tolist():
        text = texts[number].as_py()
        spans = [match.span() for match in pattern.finditer(text)]
        ends = ([len(text[:end].encode()) for end in span] for span in spans[:MOST_PLACES])
        places = tuple(TextPlace(start, stop, 0) for start, stop in ends)
        if places:
            matches.append(RowPlaces(rows[number], len(spans), 0, places, bool(len(query.words))))
    return matches


def _compile_pattern(query: Query) -> re.Pattern[str]:
    return re.compile(query.pattern.replace(_BLANK, r"\s+"), re.IGNORECASE)
