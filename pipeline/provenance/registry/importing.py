"""The story of `prep registry import`: read the files, bring their works together, commit."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core import lock, storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.provenance.registry import directory as on_disk
from pipeline.provenance.registry.entries import (
    EntryError,
    IncomingWork,
    ListEntry,
    Refusal,
    Remark,
    work_of,
)
from pipeline.provenance.registry.merge import Conflict, Merger
from pipeline.provenance.registry.read import ListFile, read_source
from pipeline.provenance.registry.referencing import References
from pipeline.provenance.registry.works import Work, works_of, works_table


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    """The lines of all files: works with their file, and what is to be told of the others."""

    taken: list[tuple[IncomingWork, ListFile]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def import_works(files: Sequence[Path], directory: Path, settings: ImportOptions) -> ImportResult:
    """Import lists of works into a registry, which is made when it is not there.

    The same files again change nothing. Raises InputError when a file cannot be read or none of
    its lines is taken, ConfigError, IntegrityError, ResourceError.
    """
    on_disk.prepare(directory)
    lines = _Lines()
    sources = [read_source(path, settings.form, settings.salt) for path in files]
    if settings.salt and not any(source.sketches for source in sources):
        raise ConfigError("--salt-file: none of the files holds sketches; leave the option out")
    for source in sources:
        _parse(source, settings.defaults, lines)
    with ExitStack() as held:
        if not settings.dry_run:
            held.enter_context(lock.hold(directory))
            storage.sweep_temps(directory)
        return _merge_and_commit(lines, directory, settings)


def _parse(source: ListFile, defaults: Mapping[str, str], lines: _Lines) -> None:
    before, refused = len(lines.taken), len(lines.refusals)
    values = {"basis": source.basis, **defaults}
    for entry in source.entries:
        if isinstance(entry, Refusal):
            lines.refusals.append(entry)
        elif isinstance(entry, Remark):
            lines.remarks.append(entry)
        else:
            _take(entry, values, source, lines)
    if len(lines.taken) == before:
        first = next((f"; {r.where}: {r.why}" for r in lines.refusals[refused:]), "")
        raise InputError(f"{source.path}: no line of it describes a work{first}")


def _take(entry: ListEntry, values: Mapping[str, str], source: ListFile, lines: _Lines) -> None:
    try:
        incoming = work_of(entry, values)
    except EntryError as refused:
        lines.refusals.append(Refusal(entry.where, str(refused)))
    else:
        lines.remarks += incoming.remarks
        lines.taken.append((incoming, source))


def _merge_and_commit(lines: _Lines, directory: Path, settings: ImportOptions) -> ImportResult:
    before = on_disk.read(directory) if on_disk.is_registry(directory) else None
    merger = Merger(works_of(before.table) if before else (), settings.replacing)
    old = dict(merger.works)
    references = References(settings.texts, settings.sketch_only)
    touched, taken = _merge(lines, merger, references)
    table = works_table(merger.works.values())
    fresh = before is None or not table.equals(before.table)
    name = before.name if before else settings.name or directory.resolve().name
    version = (before.last.version if before else 0) + fresh
    if fresh and not settings.dry_run:
        references.keep(directory, merger.works.values())
        sources = dict.fromkeys(source.basis for _, source in lines.taken)
        on_disk.commit(directory, name, before, table, f"import {', '.join(sources)}")
    remarks = (*lines.remarks, *references.remarks)
    return ImportResult(
        name, version, fresh, len(table), taken, **_counts(old, merger.works, touched),
        refusals=tuple(lines.refusals), conflicts=tuple(merger.conflicts), remarks=remarks,
    )  # fmt: skip


def _merge(lines: _Lines, merger: Merger, references: References) -> tuple[set[str], int]:
    """Add every line, then the texts that no line names; returns the ids of the works meant, and
    how many lines were taken."""
    touched, taken = set(), 0
    for incoming, source in lines.taken:
        sketch = source.sketches.get(incoming.where)
        try:
            whole = references.attach(incoming, source.path.parent, sketch)
            touched.add(merger.add(whole))
            taken += 1
        except EntryError as refused:
            lines.refusals.append(Refusal(incoming.where, str(refused)))
    for line in references.named_like(list(merger.works.values())):
        touched.add(merger.add(line))
    return touched, taken


def _counts(old: Mapping[str, Work], new: Mapping[str, Work], touched: set[str]) -> dict[str, int]:
    added = [new[i] for i in touched if i not in old]
    pairs = [(old[i], new[i]) for i in touched if i in old]
    changed = [after for before, after in pairs if before != after]
    gained = [(old.get(i), new[i]) for i in touched]

    def gains(name: str) -> int:
        return sum(bool(getattr(n, name)) and not (o and getattr(o, name)) for o, n in gained)

    return {
        "added": len(added),
        "changed": len(changed),
        "unchanged": len(pairs) - len(changed),
        "texts": gains("text_sha256"),
        "sketches": gains("sketch_hash"),
    }
