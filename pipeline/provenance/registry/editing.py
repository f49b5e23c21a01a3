"""The story of `prep registry set`: a work changed by hand, as a new version of the registry."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.core import lock, storage
from pipeline.core.errors import ConfigError
from pipeline.provenance.registry import directory as on_disk
from pipeline.provenance.registry.dates import iso_date
from pipeline.provenance.registry.finding import find_one_work
from pipeline.provenance.registry.works import SCOPES, STATUSES, TIERS, works_of, works_table

_CHOICES = {"status": STATUSES, "scope": SCOPES, "tier": TIERS}


@dataclass(frozen=True)
class WorkEdit:
    """A work that was changed: field -> (before, after); the registry's version after it."""

    work_id: str
    version: int
    changes: Mapping[str, tuple[Any, Any]]


def set_fields(directory: Path, asked: str, values: Mapping[str, Any]) -> WorkEdit:
    """Set fields of one work: status, scope, tier, contact, basis, legal_hold, effective_from,
    effective_to. Values that stand already make no new version.

    Raises ConfigError for a value that cannot be, InputError unless `asked` means one work.
    """
    on_disk.read(directory)
    if not values:
        raise ConfigError("nothing to set: give --status, --legal-hold or another option")
    checked = {name: _checked(name, value) for name, value in values.items()}
    with lock.hold(directory):
        storage.sweep_temps(directory)
        before = on_disk.read(directory)
        works = {work.work_id: work for work in works_of(before.table)}
        work = find_one_work(list(works.values()), asked)
        changes = {
            name: (getattr(work, name), value)
            for name, value in checked.items()
            if getattr(work, name) != value
        }
        if not changes:
            return WorkEdit(work.work_id, before.last.version, {})
        works[work.work_id] = replace(work, **{name: new for name, (_, new) in changes.items()})
        said = ", ".join(f"{name}={new}" for name, (_, new) in changes.items())
        table = works_table(works.values())
        version = on_disk.commit(
            directory, before.name, before, table, f"set {work.work_id} {said}"
        )  # fmt: skip
    return WorkEdit(work.work_id, version.version, changes)


def _checked(name: str, value: Any) -> Any:
    option = f"--{name.replace('_', '-')}"
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigError(f"{option} {value}: expected one of {', '.join(_CHOICES[name])}")
    if name.startswith("effective") and value:
        day = iso_date(value)
        if day is None:
            raise ConfigError(f"{option} {value}: expected a date such as 2026-03-01")
        return day
    return value
