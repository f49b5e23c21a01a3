"""What happened to a work from version to version of its registry."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from pipeline.provenance.registry import directory as on_disk
from pipeline.provenance.registry.works import FIELDS, Work, works_of


@dataclass(frozen=True)
class WorkChange:
    """A version that added a work or changed it: the command, and each field `from -> to`."""

    version: int
    text: str


def history_of(directory: Path, work_id: str) -> list[WorkChange]:
    """Every change to a work, oldest first. Raises IntegrityError when a version is damaged."""
    committed = on_disk.read(directory)
    found, before = [], None
    for version in committed.history:
        table = on_disk.read_version(directory, version, committed.last)
        rows = works_of(table.filter(pc.equal(table["work_id"], work_id)))
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
