"""Stage manifests and task records: what was published, from what, and the hashes to prove it.

A task commits by its record, a stage by its manifest; readers trust manifests only. A record lives
in the journal until the manifest takes over its content. Every document here carries a `seal`, the
hash of the rest of it, so a damaged manifest is known as such.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from pipeline.core import storage
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import hash_bytes
from pipeline.core.mirror.fetching import fetch
from pipeline.core.storage import canonical_json

Counters = Mapping[str, Any]

APART = "quarantine"
"""What a shard of documents/ is marked with while texts of it stand in quarantine/ instead."""


@dataclass(frozen=True)
class ShardEnd:
    """The last bytes of a file, which hold the hashes of its blocks (`pipeline.engine.blocks`): how
    many they are, and their hash."""

    size: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One published file: path relative to the run directory, size in bytes, and both hashes; its
    end, where tasks may read parts of it.

    A takedown takes text or tokens out of a published file. Then path, size and hash are those of
    what is left; `content_hash` and `first_path` (empty: the path) stay those of what the task
    made, so that nothing after it counts as changed; `scrubbed` names what took something out.
    """

    path: str
    size: int
    hash: str
    content_hash: str
    end: ShardEnd | None = None
    first_path: str = ""
    scrubbed: tuple[str, ...] = ()

    def rewrite(self, size: int, hash: str, **changes: Any) -> "Shard":
        """The shard when its file has other bytes."""
        return replace(self, size=size, hash=hash, **{"end": None, **changes})

    @property
    def identity(self) -> tuple[str, str]:
        """What fingerprints chain on: the path and the content that the task published."""
        return self.first_path or self.path, self.content_hash

    @property
    def is_apart(self) -> bool:
        """Whether texts of it stand in quarantine/."""
        return APART in self.scrubbed


@dataclass(frozen=True)
class TaskRecord:
    """What one task published: its shards and counters, under the task's fingerprint."""

    fingerprint: str
    shards: tuple[Shard, ...]
    counters: Counters = field(default_factory=dict)


@dataclass(frozen=True)
class StageManifest:
    """The commit of a stage: its fingerprint, the fields behind it, and every task's record."""

    stage: str
    fingerprint: str
    fields: Mapping[str, Any]
    tasks: tuple[TaskRecord, ...]

    @property
    def shards(self) -> list[Shard]:
        """All shards, in task order."""
        return [shard for task in self.tasks for shard in task.shards]

    @cached_property
    def content_hash(self) -> str:
        """Hash over the content of all shards: what downstream fingerprints chain on."""
        return fingerprint_of({"shards": [s.identity for s in self.shards]})

    def find(self, path: str) -> Shard:
        """The shard with this path, which the stage is known to publish."""
        return next(s for s in self.shards if s.path == path)

    def below(self, directory: str) -> tuple[Shard, ...]:
        """The shards that stand in a directory, in task order."""
        return tuple(s for s in self.shards if s.path.startswith(f"{directory}/"))

    def parts(self, table: str) -> tuple[Shard, ...]:
        """The parts of a table in task order, or the one file that an earlier version wrote."""
        return self.below(table) or (self.find(table),)


def fingerprint_of(fields: Mapping[str, Any]) -> str:
    """Hash of a mapping of plain data; 32 hex digits."""
    return hash_bytes(canonical_json(dict(fields)))


def changed_fields(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the fields that differ.

    >>> changed_fields({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2})
    ['a.b']
    """
    names = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            names += changed_fields(before, after, f"{prefix}{key}.")
        elif json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
            names.append(prefix + key)
    return names


def write_sealed(path: Path, value: dict[str, Any], durable: bool = True) -> None:
    """Publish a JSON document with a `seal`: the hash of the canonical JSON of everything else."""
    data = canonical_json({**value, "seal": ""})
    rest = data.replace(b'\n "seal": "",', b"", 1)
    if rest == data:  # no key comes after it
        rest = canonical_json(value)
    line = f'\n "seal": "{hash_bytes(rest)}"'
    storage.publish(path, data.replace(b'\n "seal": ""', line.encode(), 1), durable=durable)


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a sealed JSON document. Raises IntegrityError when missing, unreadable or damaged."""
    try:
        data = fetch(path).read_bytes()
        value = _decode(data)
        stored = value.pop("seal")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{path}: missing or damaged ({type(error).__name__})") from error
    # As these files are written, the rest is canonical JSON once the line of the seal is left out.
    if hash_bytes(data.replace(f'\n "seal": "{stored}",'.encode(), b"", 1)) == stored:
        return dict(value)
    actual = hash_bytes(canonical_json(value))
    if actual != stored:
        raise IntegrityError(f"{path}: damaged: expected seal {stored}, found {actual}")
    return dict(value)


def _decode(data: bytes) -> Any:
    """A JSON document; the standard library, which is slower, also knows NaN. Raises ValueError."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def write_record(path: Path, record: TaskRecord, durable: bool = True) -> None:
    """Commit one task."""
    write_sealed(path, _as_dict(record), durable)


def _as_dict(record: TaskRecord) -> dict[str, Any]:
    """Plain data; what only some shards have is left out of all others."""
    value = asdict(record)
    for shard in value["shards"]:
        for name in ("end", "first_path", "scrubbed"):
            if not shard[name]:
                del shard[name]
    return value


def read_record(path: Path) -> TaskRecord | None:
    """The record at `path`, or None when it is missing or damaged (the task then runs again)."""
    try:
        return msgspec.convert(read_sealed(path), TaskRecord)
    except (IntegrityError, msgspec.ValidationError):
        return None


def write_manifest(path: Path, manifest: StageManifest) -> None:
    """Commit a stage."""
    named = {"stage": manifest.stage, "fingerprint": manifest.fingerprint}
    tasks = [_as_dict(task) for task in manifest.tasks]
    write_sealed(path, {**named, "fields": manifest.fields, "tasks": tasks})


def read_manifest(path: Path) -> StageManifest | None:
    """The manifest at `path`; None when it is missing. Raises IntegrityError when damaged."""
    if not path.exists():
        return None
    value = read_sealed(path)
    try:
        return msgspec.convert(value, StageManifest)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"{path}: damaged, or written by another version ({error})") from error
