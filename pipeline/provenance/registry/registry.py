"""A registry of works as the rest of the program reads it: one directory, or several combined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.core.content import table_hash
from pipeline.core.errors import InputError, IntegrityError
from pipeline.provenance.registry import directory as on_disk
from pipeline.provenance.registry import sketches, texts
from pipeline.provenance.registry.entries import EntryError, IncomingWork
from pipeline.provenance.registry.merge import Conflict, Merger
from pipeline.provenance.registry.works import WORKS, Work, work_id_of, works_of, works_table

if TYPE_CHECKING:
    from pipeline.provenance.fingerprints.sketch import Sketch


@dataclass(frozen=True, eq=False)
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
        return works_of(self.works)

    def references(self) -> "Iterator[tuple[str, str, str | Sketch]]":
        """(work id, tier, text or else sketch) of every work that has one, in the order of ids, for
        `fingerprints.build.build_index`. Raises IntegrityError.
        """
        columns = ["work_id", "tier", "text_sha256", "sketch_hash"]
        for row in self.works.select(columns).to_pylist():
            digest, sketch = row["text_sha256"], row["sketch_hash"]
            if digest:
                text = texts.load_text(self._keeper_of_text(digest), digest)
                yield row["work_id"], row["tier"], text
            elif sketch:
                place = self._keeper_of_sketch(sketch)
                yield row["work_id"], row["tier"], sketches.load_sketch(place, sketch)

    def _keeper_of_text(self, digest: str) -> Path:
        kept = (place for place in self.directories if texts.has_text(place, digest))
        return next(kept, self.directories[0])

    def _keeper_of_sketch(self, digest: str) -> Path:
        kept = (place for place in self.directories if sketches.has_sketch(place, digest))
        return next(kept, self.directories[0])


def load_registry(path: Path) -> Registry:
    """The registry in a directory, its table verified; texts and sketches are verified when read.

    Raises InputError when there is none, IntegrityError when it is damaged or of another format, or
    a text or sketch is missing.
    """
    committed = on_disk.read(path)
    version = committed.last.version
    table = committed.table
    for digest in _distinct(table, "text_sha256"):
        if not texts.has_text(path, digest):
            raise IntegrityError(f"{path}: texts/{digest}.zst is missing; import it again")
    for digest in _distinct(table, "sketch_hash"):
        if not sketches.has_sketch(path, digest):
            raise IntegrityError(f"{path}: sketches/{digest}.arrow is missing; import it again")
    labels = [f"{committed.name} v{version}"] * len(table)
    works = _labelled(table, labels)
    return Registry(committed.name, version, works, table_hash(works), (path,))


def _distinct(table: pa.Table, column: str) -> list[str]:
    return sorted({value for value in table[column].to_pylist() if value})


def _labelled(table: pa.Table, labels: list[str]) -> pa.Table:
    return table.append_column("registry", pa.array(labels, pa.string()))


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
    merger, held = Merger(), dict[str, list[str]]()
    for registry in registries:
        for work in registry.work_list():
            known = _apart(merger, work)
            incoming = IncomingWork(known, _given(known), f"{registry.label}:{work.work_id}")
            try:
                work_id = merger.add(incoming)
            except EntryError as refused:
                work_id = merger.add_apart(incoming, str(refused))
            held.setdefault(work_id, []).append(registry.label)
    table = works_table(merger.works.values())
    works = _labelled(
        table, [", ".join(dict.fromkeys(held[i])) for i in table["work_id"].to_pylist()]
    )
    places = [place for registry in registries for place in registry.directories]
    name = "+".join(registry.label for registry in registries)
    return Registry(
        name, 0, works, table_hash(works), tuple(dict.fromkeys(places)), tuple(merger.conflicts)
    )


def _apart(merger: Merger, work: Work) -> Work:
    """The work, with another id if another work has its id."""
    other = merger.works.get(work.work_id)
    if other is None or other.title_norm == work.title_norm:
        return work
    content = work_id_of(work.title_norm, work.subtitle, work.authors, work.reg_no)
    return replace(work, work_id=content)


def _given(work: Work) -> frozenset[str]:
    return frozenset(name for name in WORKS.names if getattr(work, name)) | {"status"}
