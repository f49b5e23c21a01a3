"""A registry on disk, written so that an interrupted import leaves the version before it.

    registry.json             sealed: name, version, hash of works.parquet, every version's change
    works.parquet             WORKS of this version
    versions/NNNNNN.parquet   works.parquet of earlier versions
    texts/SHA256.zst          reference texts, by the sha256 of their UTF-8 bytes
    sketches/HASH.arrow       sketches of works without a text

registry.json is the commit. While it and works.parquet disagree, the version that it names is read
from versions/.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core import storage
from pipeline.core.content import table_hash
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.manifest import read_sealed, write_sealed
from pipeline.provenance.registry.works import WORKS
from pipeline.stage import parquet_output

FORMAT = 1
REGISTRY, WORKS_FILE, VERSIONS = "registry.json", "works.parquet", "versions"

_OURS = {".lock", WORKS_FILE, VERSIONS, "texts", "sketches"}
"""What an interrupted first import may leave."""


@dataclass(frozen=True)
class Version:
    """One version: its number, works.parquet's hash and the content's, how many works, and the
    command that made it."""

    version: int
    works: int
    hash: str
    content_hash: str
    change: str


@dataclass(frozen=True)
class CommittedVersion:
    """What registry.json says, and the works of that version."""

    name: str
    history: tuple[Version, ...]
    table: pa.Table

    @property
    def last(self) -> Version:
        """The version that is read."""
        return self.history[-1]


def is_registry(directory: Path) -> bool:
    """Whether a directory holds a registry."""
    return (directory / REGISTRY).is_file()


def read(directory: Path) -> CommittedVersion:
    """The committed version. Raises InputError when there is no registry, IntegrityError when it is
    damaged or of another format."""
    path = directory / REGISTRY
    if not is_registry(directory):
        raise InputError(
            f"{directory}: no registry of works here (no {REGISTRY}); "
            "`prep registry import FILE --into DIR` makes one"
        )
    value = read_sealed(path)
    if value.get("format") != FORMAT:
        raise IntegrityError(
            f"{path}: of format {value.get('format')!r}, expected {FORMAT}: it was written by "
            "another version of this program, or is not a registry of works"
        )
    try:
        history = tuple(Version(**version) for version in value["history"])
        name, last = str(value["name"]), history[-1]
    except (KeyError, TypeError, IndexError) as error:
        raise IntegrityError(f"{path}: damaged ({error!r})") from error
    return CommittedVersion(name, history, _table(_works_path(directory, last), last))


def read_version(directory: Path, version: Version, newest: Version) -> pa.Table:
    """The works of an earlier version. Raises IntegrityError."""
    if version == newest:
        return _table(_works_path(directory, version), version)
    return _table(_version_path(directory, version.version), version)


def prepare(directory: Path) -> None:
    """Raises ConfigError when something else than a registry stands there."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory}: is a file; --into expects a directory")
    if is_registry(directory) or not directory.exists():
        return
    if any(path.name not in _OURS for path in directory.iterdir()):
        raise ConfigError(
            f"{directory}: not empty and not a registry of works; choose another directory"
        )


def commit(
    directory: Path, name: str, before: CommittedVersion | None, table: pa.Table, change: str
) -> Version:
    """Publish a table of WORKS as the next version. The lock is held by the caller."""
    history: Sequence[Version] = before.history if before else ()
    if before is not None:
        old = storage.read_verified(_works_path(directory, before.last), before.last.hash)
        storage.publish(_version_path(directory, before.last.version), old)
    written = storage.publish(directory / WORKS_FILE, parquet_output(WORKS_FILE, table).data)
    version = Version(
        len(history) + 1, table.num_rows, written.hash, table_hash(table), change
    )  # fmt: skip
    value: dict[str, Any] = {"name": name, "history": [asdict(v) for v in (*history, version)]}
    write_sealed(directory / REGISTRY, {"format": FORMAT, **value})
    return version


def _version_path(directory: Path, version: int) -> Path:
    return directory / VERSIONS / f"{version:06d}.parquet"


def _works_path(directory: Path, version: Version) -> Path:
    """works.parquet, or where an import that was interrupted has put its last version."""
    current, kept = directory / WORKS_FILE, _version_path(directory, version.version)
    if kept.is_file() and not (current.is_file() and storage.hash_file(current) == version.hash):
        return kept
    return current


def _table(path: Path, version: Version) -> pa.Table:
    import pyarrow.parquet as pq

    data = storage.read_verified(path, version.hash)
    try:
        table = pq.read_table(pa.BufferReader(data)).cast(WORKS)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise IntegrityError(f"{path}: not a table of works ({type(error).__name__})") from error
    if table_hash(table) != version.content_hash:
        raise IntegrityError(f"{path}: not the works that {REGISTRY} lists")
    return table
