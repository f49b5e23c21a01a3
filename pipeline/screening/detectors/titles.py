"""Detector `title_author`: documents whose metadata, file names or first lines name a work.

`title_author` needs a surname with the first name or its initial, in either order, and the title:
two rare words under token_set_ratio, or the title and nothing more under token_sort_ratio. `title`
is the title alone, of two rare words or more, where no author or only a surname is named.
`partial_token_set_ratio` is 100 for almost any two titles, and is never used.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import compress
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from dedup.arrays import I64
from dedup.text import view_texts
from pipeline.screening.detectors import title_index
from pipeline.screening.detectors.sweep import Fields, find_fields
from pipeline.screening.detectors.title_words import NOISE_WORDS
from pipeline.screening.evidence import Finding, findings_table
from pipeline.screening.registry.names import normalise_title, split_title, strip_noise

TITLE_KEYS = ("title", "book_title", "name", "work", "headline")
AUTHOR_KEYS = ("author", "authors", "creator", "creators", "byline", "by")
PATH_KEYS = ("filename", "file_name", "file", "path", "filepath", "file_path", "member")
FILE_KEYS = (*PATH_KEYS, "source", "url", "id")
KEYS = (*TITLE_KEYS, *AUTHOR_KEYS, *FILE_KEYS)

_LONGEST = 512
"""Characters of a value that are read."""

_MOST_LINES, _LONGEST_LINE, _LINES_APART = 12, 120, 4
_PATH = re.compile(r"[/\\]+")
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d\Z")
_NUMBER = re.compile(r"\d{5,}x?\Z|(?=\w*\d)[0-9a-f]{16,}\Z")


class TitleSource(NamedTuple):
    """One string that may name a work.

    words: folded; titles: readings of it as a title, in words. Where `author` is not None, it is
    the words of whoever is named as the author next to it (empty: nobody). offset and length: bytes
    in the text; 0 for metadata. whole: it must be the title and nothing more.
    """

    where: str
    seen: str
    words: tuple[str, ...]
    titles: tuple[tuple[str, ...], ...]
    author: tuple[str, ...]
    offset: int = 0
    length: int = 0
    whole: bool = False


def find_title_sources(
    values: list[tuple[str, str]], head: bytes, title_words: set[str]
) -> list[TitleSource]:
    """Everything that may name a work in whose title is one of `title_words`: `values` are (key of
    `KEYS`, value), `head` the beginning of the text."""
    short_values = [(key, value[:_LONGEST]) for key, value in values]
    author = tuple(
        w for key, value in short_values if key in AUTHOR_KEYS for w in fold_words(value)
    )
    sources = []
    for key, value in short_values:
        if key in TITLE_KEYS:
            words = fold_words(value)
            if not title_words.isdisjoint(words):
                readings = _list_readings(value, words)
                sources.append(TitleSource(key, value, words, readings, author))
    for key, value in short_values:
        if key in FILE_KEYS:
            names = _read_file_name(key, value, author)
            sources += (source for source in names if not title_words.isdisjoint(source.words))
    return [*sources, *_read_lines(_list_lines(head), title_words)]


def fold_words(text: str) -> tuple[str, ...]:
    """Folded words of a title, name or file name."""
    return tuple(normalise_title(text).split())


def drop_noise(words: tuple[str, ...], title_words: frozenset[str]) -> tuple[str, ...]:
    """Words that may belong to a title; `title_words` stay whatever they are."""
    noise = {w for w in words if w in NOISE_WORDS or _YEAR.match(w) or _NUMBER.match(w)}
    return tuple(word for word in words if word in title_words or word not in noise)


def _read_file_name(key: str, value: str, author: tuple[str, ...]) -> list[TitleSource]:
    parts = [part for part in _PATH.split(unquote(value).partition("?")[0]) if part.strip()]
    name = strip_noise(parts[-1]) if parts else ""
    sources = [TitleSource(key, value, fold_words(name), (fold_words(name),), author)]
    if len(parts) > 1 and "://" not in value:
        sources.append(sources[0]._replace(words=fold_words(f"{parts[-2]} {name}")))
    return sources


def _read_lines(lines: list[tuple[int, str]], title_words: set[str]) -> Iterator[TitleSource]:
    words = [fold_words(line) for _, line in lines]
    for number, (offset, line) in enumerate(lines):
        if title_words.isdisjoint(words[number]):
            continue
        author = tuple(w for other in words[number + 1 :][:_LINES_APART] for w in other)
        length, titles = len(line.encode()), _list_readings(line, words[number])
        yield TitleSource(
            "text", line, words[number], titles, author, offset, length=length, whole=True
        )


def _list_readings(value: str, words: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    parts = split_title(strip_noise(value))
    readings = [words]
    if parts.subtitle or parts.responsibility:
        readings += [fold_words(f"{parts.title} {parts.subtitle}"), fold_words(parts.title)]
    return tuple(dict.fromkeys(reading for reading in readings if reading))


def _list_lines(head: bytes) -> list[tuple[int, str]]:
    """The first lines that hold something, with their offsets; the last may be cut."""
    lines, offset = list[tuple[int, str]](), 0
    for raw in head.splitlines(keepends=True):
        text = raw.decode("utf-8", "ignore")
        line = text.strip()
        if line and len(line) <= _LONGEST_LINE:
            lines.append((offset + len(text[: text.index(line)].encode()), line))
        offset += len(raw)
    return lines[:_MOST_LINES]


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
    score: float
    rare: int
    is_whole: bool


def find_best_match(name: title_index.WorkName, sources: list[TitleSource]) -> TitleMatch | None:
    """The best of the sources that name the work, or None."""
    sharing = (source for source in sources if not name.title_words.isdisjoint(source.words))
    matches = [match for source in sharing if (match := _match(name, source))]
    return max(matches, key=lambda m: (m.score, -m.source.offset, m.source.where), default=None)


def _match(name: title_index.WorkName, source: TitleSource) -> TitleMatch | None:
    beside, _ = find_author(name.authors, source.author)
    within, rest = find_author(name.authors, source.words)
    level = max(beside, within)
    if level == SURNAME and beside == SURNAME:
        is_surname = any(source.author == surname for surname, _ in name.authors)
        level = level if is_surname else within
    readings = source.titles if within == ABSENT else (*source.titles, rest)
    best = max((_compare_titles(name, reading) for reading in readings), default=None)
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


def find_author(
    authors: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...], words: tuple[str, ...]
) -> tuple[float, tuple[str, ...]]:
    """How well one of the authors is named in the words, and the words without the name.

    >>> find_author(((("james",), ("darius",)),), ("james", "darius", "negrophobia"))
    (1.0, ('negrophobia',))
    >>> find_author(((("james",), ("darius",)),), ("james", "david"))
    (0.5, ('david',))
    """
    best: tuple[float, tuple[str, ...]] = (ABSENT, words)
    for surname, first_names in authors:
        size = len(surname)
        for place in range(len(words) - size + 1):
            if words[place : place + size] == surname:
                match = _match_first_names(first_names, words, place, place + size)
                best = max(best, match, key=lambda one: one[0])
    return best


def _match_first_names(
    first_names: tuple[str, ...], words: tuple[str, ...], start: int, end: int
) -> tuple[float, tuple[str, ...]]:
    """The level of a surname at words[start:end], and the words without surname and first names."""
    if not first_names:
        return FULL, words[:start] + words[end:]
    near = range(max(0, start - _NEAR), min(len(words), end + _NEAR))
    initials = {word[0] for word in first_names}
    joined = "".join(word[0] for word in first_names)
    first, level = first_names[0], SURNAME
    for place in (p for p in near if not start <= p < end):
        word = words[place]
        adjacent = place in (start - 1, start - len(first_names), end)
        if word == first and len(word) > 1:
            level = FULL
        elif len(word) == 1 and word == first[0]:
            level = max(level, FULL if len(first) == 1 else INITIAL)
        elif adjacent and (word == joined if len(first) > 1 else word[0] == first):
            level = max(level, INITIAL)
    if level == SURNAME:
        return level, words[:start] + words[end:]
    own = {*first_names, *initials, joined}
    name_places = {
        p
        for p in near
        if start <= p < end
        or words[p] in own
        or (p in (start - len(first_names), end) and words[p][0] == first[0])
    }
    return level, tuple(word for place, word in enumerate(words) if place not in name_places)


def _compare_titles(name: title_index.WorkName, reading: tuple[str, ...]) -> _ComparedTitle:
    """The best of the work's titles for a reading. With two rare words the reading may say more."""
    from rapidfuzz import fuzz

    best = _ComparedTitle(0.0, 0, False)
    for title in name.titles:
        rest = drop_noise(reading, frozenset(title.words))
        if not rest:
            continue
        there = [_is_in(word, rest) for word in title.words]
        coverage = sum(compress(title.idf, there)) / sum(title.idf)
        shared = sum(compress(title.rare, there))
        text = " ".join(rest)
        whole = fuzz.token_sort_ratio(title.text, text)
        ratio = max(whole, fuzz.token_set_ratio(title.text, text)) if shared >= 2 else whole
        compared = _ComparedTitle(min(ratio / 100, coverage), shared, whole >= _LEAST_RATIO)
        best = max(best, compared)
    return best


def _is_in(word: str, words: tuple[str, ...]) -> bool:
    if word in words:
        return True
    from rapidfuzz import fuzz, process

    return bool(process.extractOne(word, words, scorer=fuzz.ratio, score_cutoff=_SAME_WORD))


_MOST_WORKS = 8
"""Works named for one document; the best stay."""


def detect_titles(batch: pa.Table, index: title_index.TitleIndex) -> pa.Table:
    """FINDINGS on the works that a batch's documents are named after; target: the work's title.

    score: 0 to 1, 0.7 of the title and 0.3 of the author. attributes: author (full, initial,
    surname, absent), rare_words, title_score, where (a key of the metadata, or text).
    """
    if not len(index):
        return findings_table([])
    fields = find_fields(batch["meta"], KEYS)
    findings = list[Finding]()
    describe = cache(index.describe_work)
    first = 0
    for chunk in view_texts(batch["text"]):
        rows, works = index.find_candidates(fields, chunk, first)
        works_by_row = defaultdict[int, list[int]](list)
        for row, work in zip(rows.tolist(), works.tolist(), strict=True):
            works_by_row[row].append(work)
        values = _list_values(fields, rows)
        for row, of_row in works_by_row.items():
            start, end = chunk.offsets[row - first : row - first + 2]
            head = chunk.data[start : min(end, start + title_index.HEAD_BYTES)].tobytes()
            findings += _make_findings(row, [*map(describe, of_row)], values[row], head)
        first += len(chunk)
    return findings_table(findings)


def warm_up_titles() -> None:
    """Compile the kernels, so that workers find them cached."""
    work = {"work_id": ["w"], "title_raw": ["Warm"], "subtitle": [""], "authors": [["A Up"]]}
    batch = {"meta": pa.array(['{"title": "x"}']), "text": pa.array(["y"], pa.large_string())}
    detect_titles(pa.table(batch), title_index.build_title_index(pa.table(work)))


def _list_values(fields: Fields, rows: I64) -> Mapping[int, list[tuple[str, str]]]:
    """(key of `KEYS`, value) of the fields of each of the rows, in order."""
    of_rows = fields.select(np.flatnonzero(np.isin(fields.row, rows)))
    values = defaultdict[int, list[tuple[str, str]]](list)
    columns = (of_rows.row.tolist(), of_rows.key.tolist(), of_rows.values().to_pylist())
    for row, key, value in zip(*columns, strict=True):
        values[row].append((KEYS[key], value))
    return values


def _make_findings(
    row: int, names: list[title_index.WorkName], values: list[tuple[str, str]], head: bytes
) -> Iterator[Finding]:
    title_words = set[str]().union(*(name.title_words for name in names))
    sources = find_title_sources(values, head, title_words)
    matches = [(match, name) for name in names if (match := find_best_match(name, sources))]
    matches.sort(key=lambda pair: (-pair[0].score, pair[1].work_id))
    for match, name in matches[:_MOST_WORKS]:
        source = match.source
        yield Finding(
            row=row,
            kind="title_author" if match.author >= INITIAL else "title",
            target=name.title[:200],
            seen=source.seen,
            byte_offset=source.offset,
            byte_length=source.length,
            work_id=name.work_id,
            score=match.score,
            attributes={
                "author": LEVELS[match.author],
                "rare_words": match.rare,
                "title_score": round(match.title, 4),
                "where": source.where,
            },
        )
