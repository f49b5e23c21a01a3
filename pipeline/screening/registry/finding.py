"""Works of a registry by what one knows of them: id, registration number, ISBN, title; and what
happened to a work from version to version.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from pipeline.core.errors import InputError, escape_text
from pipeline.screening.registry import works as on_disk
from pipeline.screening.registry.names import (
    normalise_asin,
    normalise_author,
    normalise_doi,
    normalise_isbn,
    normalise_lccn,
    normalise_title,
    normalise_usco,
    split_title,
)
from pipeline.screening.registry.works import FIELDS, Work, make_works

_SHORTEST_ID = 4
_CANDIDATES = 2000
_MOST_SHOWN = 5


def find_works(works: Sequence[Work], name: str) -> list[Work]:
    """The works with this work_id (or its beginning, if no other begins so), registration number,
    ISBN, ASIN, DOI, LCCN or title, with or without subtitle; the surest kind that any has.

    Raises InputError with a did-you-mean when there is none.
    """
    name = name.strip()
    kinds = (
        [w for w in works if w.work_id == name],
        _find_by_number(works, name),
        _find_by_title(works, name),
        [w for w in works if len(name) >= _SHORTEST_ID and w.work_id.startswith(name.lower())],
    )
    matches = next((kind for kind in kinds if kind), None)
    if matches is None:
        raise InputError(
            f"no work {escape_text(name, 80)!r} in the registry{_suggest_nearest(works, name)}"
        )
    return matches


def find_one_work(works: Sequence[Work], name: str) -> Work:
    """The work that `name` means. Raises InputError when there is none, or several."""
    matches = find_works(works, name)
    if len(matches) > 1:
        ids = ", ".join(
            f"{w.work_id} ({escape_text(w.title_raw, 40)})" for w in matches[:_MOST_SHOWN]
        )
        raise InputError(
            f"{escape_text(name, 80)!r} means {len(matches)} works: {ids}; give one work_id"
        )
    return matches[0]


def search_works(works: Sequence[Work], words: str) -> list[Work]:
    """The works in whose title, authors, claimant, publisher or numbers every word occurs."""
    search_words = normalise_title(words).split()
    matches = []
    for work in works:
        names = normalise_title(f"{work.title_raw} {work.claimant} {work.publisher}")
        numbers = (work.work_id, work.reg_no, work.doi, work.lccn, *work.isbn13, *work.asin)
        authors = map(normalise_author, work.authors)
        text = " ".join([work.title_norm, names, *authors, *numbers]).lower()
        if all(word in text for word in search_words):
            matches.append(work)
    return matches


def _find_by_number(works: Sequence[Work], name: str) -> list[Work]:
    number, isbn = normalise_usco(name), normalise_isbn(name)
    asin, doi, lccn = (f(name) for f in (normalise_asin, normalise_doi, normalise_lccn))
    return [
        work
        for work in works
        if (number and work.reg_no == number)
        or (isbn and isbn in work.isbn13)
        or (asin and asin in work.asin)
        or (doi and work.doi == doi)
        or (lccn and work.lccn == lccn)
    ]


def _find_by_title(works: Sequence[Work], name: str) -> list[Work]:
    whole = normalise_title(name)
    proper = normalise_title(split_title(name).title)
    if not whole:
        return []
    exact = [
        work
        for work in works
        if whole in (work.title_norm, normalise_title(f"{work.title_norm} {work.subtitle}"))
    ]
    return exact or [work for work in works if proper == work.title_norm and proper != whole]


def _suggest_nearest(works: Sequence[Work], name: str) -> str:
    asked_title = normalise_title(name)
    words = set(asked_title.split())
    by_title = {work.title_norm: work for work in works}
    titles = sorted(by_title, key=lambda title: (-len(words.intersection(title.split())), title))
    close = difflib.get_close_matches(asked_title, titles[:_CANDIDATES], n=3, cutoff=0.6)
    if not close and words:
        close = [title for title in titles[:3] if words & set(title.split()) - _COMMON]
    suggestions = [f"{by_title[t].title_raw!r} ({by_title[t].work_id})" for t in close]
    return f"; did you mean {escape_text(' or '.join(suggestions), 300)}?" if suggestions else ""


_COMMON = frozenset(["the", "a", "an", "of", "and", "in", "to", "or"])


@dataclass(frozen=True)
class WorkChange:
    """A version that added a work or changed it: the command, and each field `from -> to`."""

    version: int
    text: str


def list_changes(directory: Path, work_id: str) -> list[WorkChange]:
    """Every change to a work, oldest first. Raises IntegrityError when a version is damaged."""
    committed = on_disk.read_committed_version(directory)
    changes, before = [], None
    for version in committed.history:
        table = on_disk.read_version(directory, version, committed.last)
        rows = make_works(table.filter(pc.equal(table["work_id"], work_id)))
        after = rows[0] if rows else None
        if after is not None and after != before:
            how = "; ".join(_list_differences(before, after)) if before else version.change
            changes.append(WorkChange(version.version, how))
        before = after
    return changes


def _list_differences(before: Work, after: Work) -> Iterator[str]:
    for name in FIELDS:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"{name}: {_format_value(old)} -> {_format_value(new)}"


def _format_value(value: object) -> str:
    return "; ".join(value) if isinstance(value, tuple) else str(value) or "(none)"
