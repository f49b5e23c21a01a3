"""A registry of works as the rest of the program reads it, and how works are merged.

A line describes a work that is there by its work_id; else by registration number, ISBN, ASIN or
DOI; else by title and authors, and subtitle where both have one. Two registration numbers, or both
title and authors, tell works apart that share an ISBN. What disagrees is a Conflict, and the value
that was there stays unless new ones replace it, so the same lines again change nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.ids import table_hash
from pipeline.screening.registry import sketches, texts
from pipeline.screening.registry import works as on_disk
from pipeline.screening.registry.entries import EntryError, IncomingWork, choose_finer
from pipeline.screening.registry.names import normalise_author, normalise_title
from pipeline.screening.registry.works import (
    WORKS,
    Work,
    make_work_id,
    make_works,
    make_works_table,
)

if TYPE_CHECKING:
    from pipeline.screening.fingerprints.sketch import Sketch


_LISTS = ("isbn13", "asin")
_DATES = ("reg_date", "pub_date")
_TITLE = ("title_raw", "title_norm", "subtitle")
_OWN = ("work_id", "authors", "basis", *_LISTS, *_DATES, *_TITLE)
_BASES = "; "


@dataclass(frozen=True)
class Conflict:
    """Two values for one field of a work. where: the line that brings one; kept: what stays."""

    where: str
    work_id: str
    field: str
    kept: str
    other: str


class Merger:
    """Works by id, to which lines are added one by one. `replacing`: new values win."""

    def __init__(self, works: Iterable[Work] = (), replacing: bool = False) -> None:
        self.works: dict[str, Work] = {}
        self.conflicts: list[Conflict] = []
        self._replacing = replacing
        self._owner: dict[str, str] = {}
        self._by_name: dict[str, dict[str, None]] = {}
        for work in works:
            self._keep(work)

    def add(self, incoming: IncomingWork) -> str:
        """Add one line; returns the id of the work that it describes. Raises EntryError when it
        could mean several works, or has the registration number of another."""
        work_id = self._find(incoming)
        own_line = self._drop_foreign(incoming, work_id or incoming.work.work_id)
        if work_id is None:
            self._keep(own_line.work)
            return own_line.work.work_id
        self._keep(self._merge(self.works[work_id], own_line))
        return work_id

    def add_apart(self, incoming: IncomingWork, why: str) -> str:
        """Add a line as a work of its own although it could mean others; returns its id, which no
        other work may have."""
        work = self._drop_foreign(incoming, incoming.work.work_id).work
        self.conflicts.append(Conflict(incoming.where, work.work_id, "work", work.title_raw, why))
        self._keep(work)
        return work.work_id

    def _keep(self, work: Work) -> None:
        self.works[work.work_id] = work
        for key in _list_keys(work):
            self._owner.setdefault(key, work.work_id)
        if work.authors:
            self._by_name.setdefault(_make_name(work), {})[work.work_id] = None

    def _find(self, incoming: IncomingWork) -> str | None:
        work = incoming.work
        if "work_id" in incoming.given and work.work_id in self.works:
            return work.work_id
        registered = self._owner.get(f"reg_no:{work.reg_no}")
        if registered is not None:
            if _are_others(self.works[registered], work):
                raise EntryError(
                    f"{work.reg_no} is the registration number of work {registered}, whose title "
                    "and authors differ; correct one of the two"
                )
            return registered
        for key in _list_keys(work):
            owner = self._owner.get(key)
            if owner is not None and not _are_apart(self.works[owner], work):
                return owner
        return work.work_id if work.work_id in self.works else self._find_by_name(work)

    def _find_by_name(self, work: Work) -> str | None:
        work_ids = [i for i in self._by_name.get(_make_name(work), ()) if self._has_name(i, work)]
        if len(work_ids) > 1 and not work.reg_no:
            raise EntryError(
                f"could be {' or '.join(sorted(work_ids)[:4])}; give its registration number, or "
                "the work_id of one of them"
            )
        alone = len(work_ids) == 1 and not _are_apart(self.works[work_ids[0]], work)
        return work_ids[0] if alone else None

    def _has_name(self, work_id: str, work: Work) -> bool:
        other = self.works[work_id]
        subtitles = {_fold_subtitle(one) for one in (other, work) if one.subtitle}
        return _make_name(other) == _make_name(work) and len(subtitles) < 2

    def _drop_foreign(self, incoming: IncomingWork, this: str) -> IncomingWork:
        """The line without the identifiers that belong to another work, each a conflict."""
        work = incoming.work
        for key in _list_keys(work):
            owner = self._owner.get(key, this)
            if owner != this:
                name, _, value = key.partition(":")
                conflict = Conflict(incoming.where, this, name, f"{value} with work {owner}", value)
                self.conflicts.append(conflict)
                remaining: Any = ""
                if name in _LISTS:
                    remaining = tuple(other for other in getattr(work, name) if other != value)
                changes = {name: remaining}
                work = replace(work, **changes)
        return replace(incoming, work=work)

    def _merge(self, old: Work, incoming: IncomingWork) -> Work:
        new = incoming.work
        changes: dict[str, Any] = {
            name: tuple(sorted({*getattr(old, name), *getattr(new, name)})) for name in _LISTS
        }
        changes["basis"] = _BASES.join(
            dict.fromkeys(b for work in (old, new) for b in work.basis.split(_BASES) if b)
        )
        changes |= self._merge_title(old, incoming) | self._merge_authors(old, incoming)
        for name in _DATES:
            one, other = getattr(old, name), getattr(new, name)
            both = choose_finer(one, other) if one and other else one or other
            changes[name] = self._choose_value(old, incoming, name) if both is None else both
        for name in sorted(incoming.given.difference(_OWN)):
            changes[name] = self._choose_value(old, incoming, name)
        return replace(old, **changes)

    def _merge_title(self, old: Work, incoming: IncomingWork) -> dict[str, Any]:
        new = incoming.work
        same = old.title_norm == new.title_norm
        if same and (not new.subtitle or _fold_subtitle(old) == _fold_subtitle(new)):
            return {}
        if same and not old.subtitle:
            return {"title_raw": new.title_raw, "subtitle": new.subtitle}
        self._disagree(incoming, old.work_id, "title", old.title_raw, new.title_raw)
        return {name: getattr(new, name) for name in _TITLE} if self._replacing else {}

    def _merge_authors(self, old: Work, incoming: IncomingWork) -> dict[str, Any]:
        new = incoming.work
        if not new.authors or _fold_authors(old) == _fold_authors(new):
            return {}
        if not old.authors:
            return {"authors": new.authors}
        kept, other = ("; ".join(work.authors) for work in (old, new))
        self._disagree(incoming, old.work_id, "authors", kept, other)
        return {"authors": new.authors} if self._replacing else {}

    def _choose_value(self, old: Work, incoming: IncomingWork, name: str) -> Any:
        kept, other = getattr(old, name), getattr(incoming.work, name)
        if kept == other or other == "":
            return kept
        if kept == "" or (name == "legal_hold" and other):
            return other
        self._disagree(incoming, old.work_id, name, str(kept), str(other))
        return other if self._replacing else kept

    def _disagree(
        self, incoming: IncomingWork, work_id: str, name: str, kept: str, other: str
    ) -> None:
        if self._replacing:
            kept, other = other, kept
        self.conflicts.append(Conflict(incoming.where, work_id, name, kept, other))


def _are_apart(one: Work, other: Work) -> bool:
    """Whether two works are not the same although they share an ISBN or a title."""
    numbers = bool(one.reg_no and other.reg_no and one.reg_no != other.reg_no)
    return numbers or _are_others(one, other)


def _are_others(one: Work, other: Work) -> bool:
    authors = bool(one.authors and other.authors and _fold_authors(one) != _fold_authors(other))
    return authors and one.title_norm != other.title_norm


def _list_keys(work: Work) -> list[str]:
    """What distinguishes a work from others, the surest first."""
    keys = [f"reg_no:{work.reg_no}"] if work.reg_no else []
    keys += [f"{name}:{value}" for name in _LISTS for value in getattr(work, name)]
    return [*keys, f"doi:{work.doi}"] if work.doi else keys


def _make_name(work: Work) -> str:
    return "\n".join([work.title_norm, *_fold_authors(work)])


def _fold_subtitle(work: Work) -> str:
    return normalise_title(work.subtitle) if work.subtitle else ""


def _fold_authors(work: Work) -> list[str]:
    return sorted(map(normalise_author, work.authors))


@dataclass(frozen=True, eq=False, kw_only=True)
class Registry:
    """Works, in the order of their ids, with what is kept of their texts.

    works: WORKS, and a column `registry`, the names and versions of those that hold the work. name,
    version: of the directory; combined ones are joined by `+`, and have version 0. content_hash: of
    `works`, for fingerprints. conflicts: where combined registries disagree.
    """

    name: str
    version: int
    works: pa.Table
    content_hash: str
    directories: tuple[Path, ...]
    conflicts: tuple[Conflict, ...] = ()

    @property
    def label(self) -> str:
        """What messages and reports call it, such as `claims v3`."""
        return f"{self.name} v{self.version}" if self.version else self.name

    def work_list(self) -> list[Work]:
        """The works as records."""
        return make_works(self.works)

    def references(self) -> "Iterator[tuple[str, str, str | Sketch]]":
        """(work id, tier, text or else sketch) of every work that has one, in the order of ids, for
        `fingerprints.build.build_index`. Raises IntegrityError.
        """
        columns = ["work_id", "tier", "text_sha256", "sketch_hash"]
        for row in self.works.select(columns).to_pylist():
            digest, sketch = row["text_sha256"], row["sketch_hash"]
            if digest:
                text = texts.load_text(self._find_keeper(digest, texts.has_text), digest)
                yield row["work_id"], row["tier"], text
            elif sketch:
                place = self._find_keeper(sketch, sketches.has_sketch)
                yield row["work_id"], row["tier"], sketches.load_sketch(place, sketch)

    def _find_keeper(self, digest: str, has: Callable[[Path, str], bool]) -> Path:
        keepers = (place for place in self.directories if has(place, digest))
        return next(keepers, self.directories[0])


def load_registry(path: Path) -> Registry:
    """The registry in a directory, its table verified; texts and sketches are verified when read.

    Raises InputError when there is none, IntegrityError when it is damaged or of another format, or
    a text or sketch is missing.
    """
    committed = on_disk.read_committed_version(path)
    version = committed.last.version
    table = committed.table
    for digest in _list_distinct(table, "text_sha256"):
        if not texts.has_text(path, digest):
            raise IntegrityError(f"{path}: texts/{digest}.zst is missing; import it again")
    for digest in _list_distinct(table, "sketch_hash"):
        if not sketches.has_sketch(path, digest):
            raise IntegrityError(f"{path}: sketches/{digest}.arrow is missing; import it again")
    labels = [f"{committed.name} v{version}"] * len(table)
    works = table.append_column("registry", pa.array(labels, pa.string()))
    return Registry(
        name=committed.name,
        version=version,
        works=works,
        content_hash=table_hash(works),
        directories=(path,),
    )


def _list_distinct(table: pa.Table, column: str) -> list[str]:
    return sorted({value for value in table[column].to_pylist() if value})


def combine(registries: Sequence[Registry]) -> Registry:
    """One registry of several: a work that two of them describe is one work, with the id and, where
    they disagree, the values of the first that has it; a legal hold of any holds.

    Two works with one id keep apart: the later one gets an id from its content. Raises InputError
    without registries.
    """
    if not registries:
        raise InputError("no registry of works to combine")
    if len(registries) == 1:
        return registries[0]
    merger, labels_by_work = Merger(), dict[str, list[str]]()
    for registry in registries:
        for work in registry.work_list():
            own_work = _keep_apart(merger, work)
            fields = frozenset(n for n in WORKS.names if getattr(own_work, n)) | {"status"}
            incoming = IncomingWork(own_work, fields, f"{registry.label}:{work.work_id}")
            try:
                work_id = merger.add(incoming)
            except EntryError as refused:
                work_id = merger.add_apart(incoming, str(refused))
            labels_by_work.setdefault(work_id, []).append(registry.label)
    table = make_works_table(merger.works.values())
    labels = [", ".join(dict.fromkeys(labels_by_work[i])) for i in table["work_id"].to_pylist()]
    works = table.append_column("registry", pa.array(labels, pa.string()))
    places = [place for registry in registries for place in registry.directories]
    name = "+".join(registry.label for registry in registries)
    return Registry(
        name=name,
        version=0,
        works=works,
        content_hash=table_hash(works),
        directories=tuple(dict.fromkeys(places)),
        conflicts=tuple(merger.conflicts),
    )


def _keep_apart(merger: Merger, work: Work) -> Work:
    other = merger.works.get(work.work_id)
    if other is None or other.title_norm == work.title_norm:
        return work
    content = make_work_id(work.title_norm, work.subtitle, work.authors, work.reg_no)
    return replace(work, work_id=content)
