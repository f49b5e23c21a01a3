"""Works of a registry by what one knows of them: id, registration number, ISBN, title; and what
happened to a work from version to version.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from pipeline.core.errors import InputError, escape_text
from pipeline.screening.registry import identifiers
from pipeline.screening.registry import works as on_disk
from pipeline.screening.registry.names import normalise_author, normalise_title, split_title
from pipeline.screening.registry.works import FIELDS, Work, make_works

_SHORTEST_ID = 4
_CANDIDATES = 2000
_SHOWN = 5


def find_works(works: Sequence[Work], asked: str) -> list[Work]:
    """The works with this work_id (or its beginning, if no other begins so), registration number,
    ISBN, ASIN, DOI, LCCN or title, with or without subtitle; the surest kind that any has.

    Raises InputError with a did-you-mean when there is none.
    """
    asked = asked.strip()
    kinds = (
        [w for w in works if w.work_id == asked],
        _by_number(works, asked),
        _by_title(works, asked),
        [w for w in works if len(asked) >= _SHORTEST_ID and w.work_id.startswith(asked.lower())],
    )
    found = next((kind for kind in kinds if kind), None)
    if found is None:
        raise InputError(
            f"no work {escape_text(asked, 80)!r} in the registry{_nearest(works, asked)}"
        )
    return found


def find_one_work(works: Sequence[Work], asked: str) -> Work:
    """The work that `asked` means. Raises InputError when there is none, or several."""
    found = find_works(works, asked)
    if len(found) > 1:
        ids = ", ".join(f"{w.work_id} ({escape_text(w.title_raw, 40)})" for w in found[:_SHOWN])
        raise InputError(
            f"{escape_text(asked, 80)!r} means {len(found)} works: {ids}; give one work_id"
        )
    return found[0]


def search_works(works: Sequence[Work], words: str) -> list[Work]:
    """The works in whose title, authors, claimant, publisher or numbers every word occurs."""
    wanted = normalise_title(words).split()
    return [work for work in works if all(word in _searched(work) for word in wanted)]


def _searched(work: Work) -> str:
    numbers = [work.work_id, work.reg_no, work.doi, work.lccn, *work.isbn13, *work.asin]
    texts = [work.title_norm, normalise_title(f"{work.title_raw} {work.claimant} {work.publisher}")]
    return " ".join([*texts, *map(normalise_author, work.authors), *numbers]).lower()


def _by_number(works: Sequence[Work], asked: str) -> list[Work]:
    number, isbn = identifiers.usco(asked), identifiers.isbn13(asked)
    asin, doi, lccn = (f(asked) for f in (identifiers.asin, identifiers.doi, identifiers.lccn))
    return [
        work
        for work in works
        if (number and work.reg_no == number)
        or (isbn and isbn in work.isbn13)
        or (asin and asin in work.asin)
        or (doi and work.doi == doi)
        or (lccn and work.lccn == lccn)
    ]


def _by_title(works: Sequence[Work], asked: str) -> list[Work]:
    whole = normalise_title(asked)
    proper = normalise_title(split_title(asked).title)
    if not whole:
        return []
    exact = [
        work
        for work in works
        if whole in (work.title_norm, normalise_title(f"{work.title_norm} {work.subtitle}"))
    ]
    return exact or [work for work in works if proper == work.title_norm and proper != whole]


def _nearest(works: Sequence[Work], asked: str) -> str:
    wanted = normalise_title(asked)
    words = set(wanted.split())
    by_title = {work.title_norm: work for work in works}
    titles = sorted(by_title, key=lambda title: (-len(words.intersection(title.split())), title))
    close = difflib.get_close_matches(wanted, titles[:_CANDIDATES], n=3, cutoff=0.6)
    if not close and words:
        close = [title for title in titles[:3] if words & set(title.split()) - _COMMON]
    shown = [f"{by_title[t].title_raw!r} ({by_title[t].work_id})" for t in close]
    return f"; did you mean {escape_text(' or '.join(shown), 300)}?" if shown else ""


_COMMON = frozenset(["the", "a", "an", "of", "and", "in", "to", "or"])


@dataclass(frozen=True)
class WorkChange:
    """A version that added a work or changed it: the command, and each field `from -> to`."""

    version: int
    text: str


def history_of(directory: Path, work_id: str) -> list[WorkChange]:
    """Every change to a work, oldest first. Raises IntegrityError when a version is damaged."""
    committed = on_disk.read_committed_version(directory)
    found, before = [], None
    for version in committed.history:
        table = on_disk.read_version(directory, version, committed.last)
        rows = make_works(table.filter(pc.equal(table["work_id"], work_id)))
        after = rows[0] if rows else None
        if after is not None and after != before:
            how = "; ".join(_differences(before, after)) if before else version.change
            found.append(WorkChange(version.version, how))
        before = after
    return found


def _differences(before: Work, after: Work) -> Iterator[str]:
    for name in FIELDS:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"{name}: {_shown(old)} -> {_shown(new)}"


def _shown(value: object) -> str:
    return "; ".join(value) if isinstance(value, tuple) else str(value) or "(none)"
