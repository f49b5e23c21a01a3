"""What a document says of its title and its author: fields of its metadata, names of its files, the
first lines of its text."""

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

from pipeline.provenance.detectors.title_words import NOISE_WORDS
from pipeline.provenance.registry.names import normalise_title, split_title, strip_noise

TITLE_KEYS = ("title", "book_title", "name", "work", "headline")
AUTHOR_KEYS = ("author", "authors", "creator", "creators", "byline", "by")
FILE_KEYS = ("filename", "file_name", "file", "path", "filepath", "file_path", "member", "source",
             "url", "id")  # fmt: skip
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
    the words of whoever is named as the author beside it (empty: nobody). offset and length: bytes
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


def sources_of(values: list[tuple[str, str]], head: bytes) -> list[TitleSource]:
    """Everything that may name the work: `values` are (key of `KEYS`, value), `head` the beginning
    of the text."""
    named = [(key, value[:_LONGEST]) for key, value in values]
    author = tuple(w for key, value in named if key in AUTHOR_KEYS for w in words_of(value))
    found = [_field(key, value, author) for key, value in named if key in TITLE_KEYS]
    for key, value in named:
        if key in FILE_KEYS:
            found += _files(key, value, author)
    return [source for source in (*found, *_of_lines(_lines(head))) if source.words]


def words_of(text: str) -> tuple[str, ...]:
    """Folded words of a title, name or file name."""
    return tuple(normalise_title(text).split())


def without_noise(words: tuple[str, ...], wanted: frozenset[str]) -> tuple[str, ...]:
    """Words that may belong to a title; `wanted` ones stay whatever they are."""
    return tuple(word for word in words if word in wanted or not _is_noise(word))


def _is_noise(word: str) -> bool:
    return bool(word in NOISE_WORDS or _YEAR.match(word) or _NUMBER.match(word))


def _field(key: str, value: str, author: tuple[str, ...]) -> TitleSource:
    words = words_of(value)
    return TitleSource(key, value, words, _titles(value, words), author)


def _files(key: str, value: str, author: tuple[str, ...]) -> list[TitleSource]:
    """The last part of a path or address; the same with the folder it lies in."""
    parts = [part for part in _PATH.split(unquote(value).partition("?")[0]) if part.strip()]
    name = strip_noise(parts[-1]) if parts else ""
    found = [TitleSource(key, value, words_of(name), (words_of(name),), author)]
    if len(parts) > 1 and "://" not in value:
        found.append(found[0]._replace(words=words_of(f"{parts[-2]} {name}")))
    return found


def _of_lines(lines: list[tuple[int, str]]) -> Iterator[TitleSource]:
    """Each line as a title, with the lines after it as its author."""
    words = [words_of(line) for _, line in lines]
    for number, (offset, line) in enumerate(lines):
        author = tuple(w for other in words[number + 1 :][:_LINES_APART] for w in other)
        length, titles = len(line.encode()), _titles(line, words[number])
        yield TitleSource("text", line, words[number], titles, author, offset, length, whole=True)


def _titles(value: str, words: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    parts = split_title(strip_noise(value))
    readings = [words]
    if parts.subtitle or parts.responsibility:
        readings += [words_of(f"{parts.title} {parts.subtitle}"), words_of(parts.title)]
    return tuple(dict.fromkeys(reading for reading in readings if reading))


def _lines(head: bytes) -> list[tuple[int, str]]:
    """The first lines that hold something, with their offsets; the last may be cut."""
    found, offset = list[tuple[int, str]](), 0
    for raw in head.splitlines(keepends=True):
        text = raw.decode("utf-8", "ignore")
        line = text.strip()
        if line and len(line) <= _LONGEST_LINE:
            found.append((offset + len(text[: text.index(line)].encode()), line))
        offset += len(raw)
    return found[:_MOST_LINES]
