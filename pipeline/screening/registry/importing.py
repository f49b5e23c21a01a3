"""The stories of `prep registry`: import lists of works, sketch one work, set fields of one."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import journal, storage
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.hashes import read_at_most
from pipeline.core.words import pluralise
from pipeline.screening.registry import sketches, texts
from pipeline.screening.registry import works as on_disk
from pipeline.screening.registry.entries import (
    EntryError,
    IncomingWork,
    ListEntry,
    Refusal,
    Remark,
    make_incoming_work,
    normalise_date,
    period_problem,
)
from pipeline.screening.registry.finding import find_one_work
from pipeline.screening.registry.read_lists import read_csv, read_usco, read_works_list
from pipeline.screening.registry.registry import Conflict, Merger
from pipeline.screening.registry.texts import References
from pipeline.screening.registry.works import CHOICES, Work, make_works, make_works_table

if TYPE_CHECKING:
    from pipeline.screening.fingerprints.sketch import Sketch


_READERS: Mapping[str, Callable[[Path, str], Iterator[ListEntry | Refusal | Remark]]] = {
    "csv": read_csv,
    "usco": read_usco,
    "works-list": read_works_list,
}
FORMATS = (*_READERS, "sketches")
MAX_BYTES = 1 << 30
_ARROW = b"ARROW1"
_RECORD = re.compile(
    r"^\s*Registration Number(?: ?/ ?Date)?\s*(?::|$|\t|\s{2})", re.IGNORECASE | re.M
)
_HEAD = 1 << 16


@dataclass(frozen=True)
class ListFile:
    """A file as it was read: name and sha256, its entries, and the sketches of some of them, by
    their `where`."""

    path: Path
    sha256: str
    form: str
    entries: tuple[ListEntry | Refusal | Remark, ...]
    sketches: "dict[str, Sketch]"

    @property
    def basis(self) -> str:
        """What `basis` says of a work that this file names: the document and its hash."""
        return f"{self.path.name} sha256:{self.sha256}"


def read_list_file(path: Path, form: str | None, salt: bytes) -> ListFile:
    """All that a file holds. Without a form it is what it looks like; a works list never does.

    Raises InputError, and ConfigError for a salt that does not fit.
    """
    try:
        data = read_at_most(path, MAX_BYTES)
        if data is None:
            raise InputError(f"{path}: expected a list of at most {MAX_BYTES:,} bytes; split it")
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    digest = hashlib.sha256(data).hexdigest()
    if form == "sketches" or (form is None and data.startswith(_ARROW)):
        pairs = sketches.read_exchange(path, data, salt)
        sketches_by_place = {entry.where: sketch for entry, sketch in pairs}
        return ListFile(
            path, digest, "sketches", tuple(entry for entry, _ in pairs), sketches_by_place
        )
    text = _decode(path, data)
    form = form or ("usco" if _RECORD.search(text[:_HEAD]) else "csv")
    return ListFile(path, digest, form, tuple(_READERS[form](path, text)), {})


def _decode(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}:{line}: not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    if "\0" in text:
        where = f"{path}:{text[: text.index(chr(0))].count(chr(10)) + 1}"
        raise InputError(
            f"{where}: holds a zero byte; expected {escape_text(path.name)} to be text"
        )
    return text


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """How to import. defaults: values for fields that a line leaves empty. texts: where reference
    texts lie. sketch_only: keep sketches instead of texts. replacing: new values win over old."""

    form: str | None = None
    name: str | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    texts: Path | None = None
    sketch_only: bool = False
    salt: bytes = b""
    replacing: bool = False
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """What an import did, or with dry_run would do. version: of the registry after it; fresh:
    whether it is a new one. lines: that were taken; several may describe one work. added, changed,
    unchanged: works. texts, sketches: works that gained one."""

    name: str
    version: int
    fresh: bool
    works: int
    lines: int
    added: int
    changed: int
    unchanged: int
    texts: int
    sketches: int
    refusals: tuple[Refusal, ...]
    conflicts: tuple[Conflict, ...]
    remarks: tuple[Remark, ...]


@dataclass
class _Lines:
    """The lines of all files: works with their file, and what is reported of the others."""

    accepted: list[tuple[IncomingWork, ListFile]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def import_works(files: Sequence[Path], directory: Path, settings: ImportOptions) -> ImportResult:
    """Import lists of works into a registry, which is made when it is not there.

    The same files again change nothing. Raises InputError when a file cannot be read or none of
    its lines is taken, ConfigError, IntegrityError, ResourceError.
    """
    on_disk.check_registry_directory(directory)
    lines = _Lines()
    sources = [read_list_file(path, settings.form, settings.salt) for path in files]
    if settings.salt and not any(source.sketches for source in sources):
        raise ConfigError("--salt-file: none of the files holds sketches; leave the option out")
    for source in sources:
        _parse(source, settings.defaults, lines)
    with ExitStack() as stack:
        if not settings.dry_run:
            stack.enter_context(journal.hold_lock(directory))
            storage.sweep_temps(directory)
        return _merge_and_commit(lines, directory, settings)


def _parse(source: ListFile, defaults: Mapping[str, str], lines: _Lines) -> None:
    before, refused = len(lines.accepted), len(lines.refusals)
    values = {"basis": source.basis, **defaults}
    for entry in source.entries:
        if isinstance(entry, Refusal):
            lines.refusals.append(entry)
        elif isinstance(entry, Remark):
            lines.remarks.append(entry)
        else:
            try:
                incoming = make_incoming_work(entry, values)
            except EntryError as error:
                lines.refusals.append(Refusal(entry.where, str(error)))
            else:
                lines.remarks += incoming.remarks
                lines.accepted.append((incoming, source))
    if len(lines.accepted) == before:
        first = next((f"; {r.where}: {r.why}" for r in lines.refusals[refused:]), "")
        raise InputError(f"{source.path}: no line of it describes a work{first}")


def _merge_and_commit(lines: _Lines, directory: Path, settings: ImportOptions) -> ImportResult:
    before = on_disk.read_committed_version(directory) if on_disk.is_registry(directory) else None
    merger = Merger(make_works(before.table) if before else (), settings.replacing)
    old = dict(merger.works)
    references = References(settings.texts, settings.sketch_only)
    touched, line_count = _merge(lines, merger, references)
    table = make_works_table(merger.works.values())
    fresh = before is None or not table.equals(before.table)
    name = before.name if before else settings.name or directory.resolve().name
    version = (before.last.version if before else 0) + fresh
    if fresh and not settings.dry_run:
        references.keep(directory, merger.works.values())
        sources = dict.fromkeys(source.basis for _, source in lines.accepted)
        on_disk.commit_version(directory, name, before, table, f"import {', '.join(sources)}")
    remarks = (*lines.remarks, *references.remarks)
    return ImportResult(
        name=name,
        version=version,
        fresh=fresh,
        works=len(table),
        lines=line_count,
        **_count_changes(old, merger.works, touched),
        refusals=tuple(lines.refusals),
        conflicts=tuple(merger.conflicts),
        remarks=remarks,
    )


def _merge(lines: _Lines, merger: Merger, references: References) -> tuple[set[str], int]:
    """Add every line, then the texts that no line names; returns the ids of the works meant, and
    how many lines were taken."""
    touched, line_count = set(), 0
    for incoming, source in lines.accepted:
        sketch = source.sketches.get(incoming.where)
        try:
            whole = references.attach(incoming, source.path.parent, sketch)
            touched.add(merger.add(whole))
            line_count += 1
        except EntryError as refused:
            lines.refusals.append(Refusal(incoming.where, str(refused)))
    for line in references.find_by_name(list(merger.works.values())):
        touched.add(merger.add(line))
    return touched, line_count


def _count_changes(
    old: Mapping[str, Work], new: Mapping[str, Work], touched: set[str]
) -> dict[str, int]:
    added = [new[i] for i in touched if i not in old]
    pairs = [(old[i], new[i]) for i in touched if i in old]
    changed = [after for before, after in pairs if before != after]
    pairs_touched = [(old.get(i), new[i]) for i in touched]

    def gains(name: str) -> int:
        return sum(
            bool(getattr(n, name)) and not (o and getattr(o, name)) for o, n in pairs_touched
        )

    return {
        "added": len(added),
        "changed": len(changed),
        "unchanged": len(pairs) - len(changed),
        "texts": gains("text_sha256"),
        "sketches": gains("sketch_hash"),
    }


@dataclass(frozen=True, kw_only=True)
class SketchFile:
    """What was written: the file, the work in it, how many words its text has, how many hashes
    it has, the parameters, and warnings."""

    out: Path
    work_id: str
    words: int
    hashes: int
    k: int
    s: int
    salted: bool
    warnings: tuple[str, ...]


def sketch_work(
    files: Sequence[Path], out: Path, description: Mapping[str, str], salt: bytes
) -> SketchFile:
    """Write the sketch of one work, whose text is in these files, in their order.

    description: fields of the work, its title and tier among them. Raises InputError for a text
    that cannot be used, ConfigError for a description that cannot be.
    """
    if out.suffix != ".arrow":
        raise ConfigError(f"--out {out}: expected a name that ends in .arrow")
    try:
        incoming = make_incoming_work(ListEntry(str(out), description), {})
        text = "\n".join(texts.read_text(path) for path in files)
    except EntryError as refused:
        raise ConfigError(f"cannot describe the work: {refused}") from refused
    except texts.UnusableText as error:
        raise InputError(str(error)) from error
    if incoming.remarks:
        raise ConfigError(f"cannot describe the work: {incoming.remarks[0].text}")
    work = incoming.work
    sketch = sketches.make_sketch(text, work.tier, salt)
    if not len(sketch):
        raise InputError(
            f"{files[0]}: too short for a sketch ({pluralise(sketch.words, 'word')}, "
            f"tier {work.tier})"
        )
    sketches.write_exchange(out, [work], {work.work_id: sketch})
    warnings: tuple[str, ...] = ()
    if not salt and sketch.words < sketches.SMALL:
        warnings = (
            f"a sketch of {sketch.words:,} words without a salt: whoever has it can try guessed "
            "phrases against it, and of a short text that can give much away; make it with "
            "--salt-file, or send it only to a recipient who may know the text",
        )
    return SketchFile(
        out=out,
        work_id=work.work_id,
        words=sketch.words,
        hashes=len(sketch),
        k=sketch.k,
        s=sketch.s,
        salted=bool(salt),
        warnings=warnings,
    )


@dataclass(frozen=True)
class WorkEdit:
    """A work that was changed: field -> (before, after); the registry's version after it."""

    work_id: str
    version: int
    changes: Mapping[str, tuple[Any, Any]]


def set_fields(directory: Path, work_name: str, values: Mapping[str, Any]) -> WorkEdit:
    """Set fields of one work: status, scope, tier, contact, basis, legal_hold, effective_from,
    effective_to. Values that are there already make no new version.

    Raises ConfigError for a value that cannot be, InputError unless `work_name` means one work.
    """
    on_disk.read_committed_version(directory)
    if not values:
        raise ConfigError("nothing to set: give --status, --legal-hold or another option")
    new_values = {name: _check_value(name, value) for name, value in values.items()}
    with journal.hold_lock(directory):
        storage.sweep_temps(directory)
        before = on_disk.read_committed_version(directory)
        works = {work.work_id: work for work in make_works(before.table)}
        work = find_one_work(list(works.values()), work_name)
        changes = {
            name: (getattr(work, name), value)
            for name, value in new_values.items()
            if getattr(work, name) != value
        }
        if not changes:
            return WorkEdit(work.work_id, before.last.version, {})
        changed = replace(work, **{name: new for name, (_, new) in changes.items()})
        if problem := period_problem(changed.effective_from, changed.effective_to):
            raise ConfigError(problem)
        works[work.work_id] = changed
        settings = ", ".join(f"{name}={new}" for name, (_, new) in changes.items())
        table = make_works_table(works.values())
        version = on_disk.commit_version(
            directory, before.name, before, table, f"set {work.work_id} {settings}"
        )
    return WorkEdit(work.work_id, version.version, changes)


def _check_value(name: str, value: Any) -> Any:
    option = f"--{name.replace('_', '-')}"
    if name in CHOICES and value not in CHOICES[name]:
        raise ConfigError(f"{option} {value}: expected one of {', '.join(CHOICES[name])}")
    if name.startswith("effective") and value:
        day = normalise_date(value)
        if day is None:
            raise ConfigError(f"{option} {value}: expected a date such as 2026-03-01")
        return day
    return value
