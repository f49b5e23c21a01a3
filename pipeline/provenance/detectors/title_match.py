"""Whether a string names a work: words of its title by idf and rapidfuzz, and its author.

Title and author together are needed: at least two rare words of the title under token_set_ratio, or
the title and nothing more under token_sort_ratio; and a surname with the first name or its initial,
in either order. `partial_token_set_ratio` is 100 for almost any two titles, and is never used.
"""

from itertools import compress
from typing import NamedTuple

from rapidfuzz import fuzz, process

from pipeline.provenance.detectors.title_index import WorkName
from pipeline.provenance.detectors.title_sources import TitleSource, without_noise

FULL, INITIAL, SURNAME, ABSENT = 1.0, 0.9, 0.5, 0.0
LEVELS = {FULL: "full", INITIAL: "initial", SURNAME: "surname", ABSENT: "absent"}

_LEAST_RATIO = 90.0
_SAME_WORD = 85.0
_NEAR = 3
"""Words between a surname and a first name at most."""

_TITLE_WEIGHT = 0.7


class TitleMatch(NamedTuple):
    """A source that names a work. title: 0 to 1; author: of `LEVELS`; rare: rare words shared."""

    source: TitleSource
    title: float
    author: float
    rare: int

    @property
    def score(self) -> float:
        """0.7 of the title, 0.3 of the author."""
        return round(_TITLE_WEIGHT * self.title + (1 - _TITLE_WEIGHT) * self.author, 4)


class _ComparedTitle(NamedTuple):
    """A title in words, compared."""

    score: float
    rare: int
    is_whole: bool


def best_match(name: WorkName, sources: list[TitleSource]) -> TitleMatch | None:
    """The best of the sources that name the work, or None."""
    own = {word for title in name.titles for word in title.words}
    sharing = (source for source in sources if not own.isdisjoint(source.words))
    matches = [match for source in sharing if (match := _match(name, source))]
    return max(matches, key=lambda m: (m.score, -m.source.offset, m.source.where), default=None)


def _match(name: WorkName, source: TitleSource) -> TitleMatch | None:
    beside, _ = author_in(name.authors, source.author)
    within, rest = author_in(name.authors, source.words)
    level = max(beside, within)
    if level == SURNAME and beside == SURNAME and not _is_surname(name, source.author):
        level = within
    readings = source.titles if within == ABSENT else (*source.titles, rest)
    best = max((_compared(name, reading) for reading in readings), default=None)
    if best is None or best.score * 100 < _LEAST_RATIO:
        return None
    if source.whole and not best.is_whole:
        return None
    if level in (FULL, INITIAL):
        return TitleMatch(source, best.score, level, best.rare)
    is_contradicted = bool(source.author and name.authors and level == ABSENT)
    least = 1 if level == SURNAME else 2
    if is_contradicted or source.whole or best.rare < least or not best.is_whole:
        return None
    return TitleMatch(source, best.score, level, best.rare)


def _is_surname(name: WorkName, author: tuple[str, ...]) -> bool:
    """Whether nothing but a surname stands beside the title."""
    return any(author == surname for surname, _ in name.authors)


def author_in(
    authors: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...], words: tuple[str, ...]
) -> tuple[float, tuple[str, ...]]:
    """How well one of the authors is named in the words, and the words without the name.

    >>> author_in(((("james",), ("darius",)),), ("james", "darius", "negrophobia"))
    (1.0, ('negrophobia',))
    >>> author_in(((("james",), ("darius",)),), ("james", "david"))
    (0.5, ('david',))
    """
    best: tuple[float, tuple[str, ...]] = (ABSENT, words)
    for surname, given in authors:
        size = len(surname)
        for place in range(len(words) - size + 1):
            if words[place : place + size] == surname:
                found = _given_near(given, words, place, place + size)
                best = max(best, found, key=lambda one: one[0])
    return best


def _given_near(
    given: tuple[str, ...], words: tuple[str, ...], start: int, end: int
) -> tuple[float, tuple[str, ...]]:
    """The level of a surname at words[start:end], and the words without surname and first names."""
    if not given:
        return FULL, words[:start] + words[end:]
    near = range(max(0, start - _NEAR), min(len(words), end + _NEAR))
    initials = {word[0] for word in given}
    joined = "".join(word[0] for word in given)
    level = SURNAME
    for place in (p for p in near if not start <= p < end):
        word = words[place]
        adjacent = place in (start - 1, start - len(given), end)
        if word == given[0] and len(word) > 1:
            level = FULL
        elif len(word) == 1 and word == given[0][0]:
            level = max(level, FULL if len(given[0]) == 1 else INITIAL)
        elif adjacent and (word == joined if len(given[0]) > 1 else word[0] == given[0]):
            level = max(level, INITIAL)
    if level == SURNAME:
        return level, words[:start] + words[end:]
    own = {*given, *initials, joined}
    taken = {p for p in near if start <= p < end or words[p] in own or (
        p in (start - len(given), end) and words[p][0] == given[0][0])}  # fmt: skip
    return level, tuple(word for place, word in enumerate(words) if place not in taken)


def _compared(name: WorkName, reading: tuple[str, ...]) -> _ComparedTitle:
    """The best of the work's titles for a reading. With two rare words the reading may say more."""
    best = _ComparedTitle(0.0, 0, False)
    for title in name.titles:
        rest = without_noise(reading, frozenset(title.words))
        if not rest:
            continue
        there = [_is_in(word, rest) for word in title.words]
        coverage = sum(compress(title.idf, there)) / sum(title.idf)
        shared = sum(compress(title.rare, there))
        text = " ".join(rest)
        whole = fuzz.token_sort_ratio(title.text, text)
        ratio = max(whole, fuzz.token_set_ratio(title.text, text)) if shared >= 2 else whole
        found = _ComparedTitle(min(ratio / 100, coverage), shared, whole >= _LEAST_RATIO)
        best = max(best, found)
    return best


def _is_in(word: str, words: tuple[str, ...]) -> bool:
    return word in words or bool(
        process.extractOne(word, words, scorer=fuzz.ratio, score_cutoff=_SAME_WORD)
    )
