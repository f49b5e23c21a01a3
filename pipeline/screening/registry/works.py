"""The record of a work, and the registry on disk.

registry.json, sealed, is the commit: name and versions with the hash of works.parquet. While the
two disagree, as after an interrupted import, the version that it names is read from versions/.
texts/ and sketches/ hold what is kept of works, by hash.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.hashes import hash_bytes, hash_file, read_verified
from pipeline.core.ids import table_hash
from pipeline.core.manifest import read_sealed, write_sealed
from pipeline.core.storage import canonical_json
from pipeline.engine.stage import parquet_output
from pipeline.screening.registry.names import normalise_author, normalise_title

STATUSES = ("asserted", "verified", "licensed", "public_domain")
"""What is known of a work: someone asserts rights in it; that was verified with a source; its use
is licensed to the operator; it is in the public domain. The last two say that it may be matched
without a rule acting on it."""

SCOPES = ("exact", "derivatives")
"""exact: the text, whole, in part or edited. derivatives: translations and adaptations too."""

TIERS = ("excerpt", "whole_book")
"""How densely text is fingerprinted: to find excerpts, or most of a book only."""

CHOICES = {"status": STATUSES, "scope": SCOPES, "tier": TIERS}
"""Values of the fields that have few."""

WORK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_ID_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One row of WORKS; unknown is "" or an empty tuple.

    title_norm: the proper title, as `normalise_title` has it. Dates: ISO 8601, also 1992-08 or
    1992. text_sha256: of the UTF-8 text kept with the registry. sketch_hash: xxh3-128 of the sketch
    kept instead of a text.
    """

    work_id: str
    title_raw: str
    title_norm: str
    subtitle: str = ""
    authors: tuple[str, ...] = ()
    publisher: str = ""
    claimant: str = ""
    reg_no: str = ""
    reg_date: str = ""
    pub_date: str = ""
    isbn13: tuple[str, ...] = ()
    asin: tuple[str, ...] = ()
    doi: str = ""
    lccn: str = ""
    catalog_url: str = ""
    jurisdiction: str = ""
    status: str = "asserted"
    basis: str = ""
    scope: str = "exact"
    contact: str = ""
    legal_hold: bool = False
    effective_from: str = ""
    effective_to: str = ""
    tier: str = "excerpt"
    text_sha256: str = ""
    sketch_hash: str = ""


_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    bool: pa.bool_(),
    tuple[str, ...]: pa.list_(pa.string()),
}
WORKS = pa.schema([(field.name, _TYPES[field.type]) for field in fields(Work)])
"""Works by work_id, without nulls."""
FIELDS = tuple(WORKS.names)


def make_work_id(title: str, subtitle: str, authors: Sequence[str], reg_no: str) -> str:
    """12 hex digits from what a work is: proper title, subtitle, authors and registration number,
    all normalised, so that spelling and the order of an author's names do not count."""
    names = sorted(map(normalise_author, authors))
    identity = [normalise_title(title), normalise_title(subtitle), names, reg_no]
    return hash_bytes(canonical_json(identity))[:_ID_DIGITS]


def make_works_table(works: Iterable[Work]) -> pa.Table:
    """Works as WORKS, by work_id."""
    rows = sorted(works, key=lambda work: work.work_id)
    columns = {name: [getattr(row, name) for row in rows] for name in FIELDS}
    return pa.table(columns, schema=WORKS)


def make_works(table: pa.Table) -> list[Work]:
    """The rows of a table with the columns of WORKS."""
    columns: dict[str, list[Any]] = table.select(WORKS.names).to_pydict()
    for name in ("authors", "isbn13", "asin"):
        columns[name] = list(map(tuple, columns[name]))
    return [
        Work(**dict(zip(WORKS.names, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]


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


def read_committed_version(directory: Path) -> CommittedVersion:
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
    return CommittedVersion(name, history, _read_table(_works_path(directory, last), last))


def read_version(directory: Path, version: Version, newest: Version) -> pa.Table:
    """The works of an earlier version. Raises IntegrityError."""
    if version == newest:
        return _read_table(_works_path(directory, version), version)
    return _read_table(_version_path(directory, version.version), version)


def check_registry_directory(directory: Path) -> None:
    """Raises ConfigError when something other than a registry is there."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory}: is a file; --into expects a directory")
    if is_registry(directory) or not directory.exists():
        return
    if any(path.name not in _OURS for path in directory.iterdir()):
        raise ConfigError(
            f"{directory}: not empty and not a registry of works; choose another directory"
        )


def commit_version(
    directory: Path, name: str, before: CommittedVersion | None, table: pa.Table, change: str
) -> Version:
    """Publish a table of WORKS as the next version. The lock is held by the caller."""
    history: Sequence[Version] = before.history if before else ()
    if before is not None:
        old = read_verified(_works_path(directory, before.last), before.last.hash)
        storage.publish(_version_path(directory, before.last.version), old)
    published = storage.publish(directory / WORKS_FILE, parquet_output(WORKS_FILE, table).data)
    version = Version(len(history) + 1, table.num_rows, published.hash, table_hash(table), change)
    value: dict[str, Any] = {"name": name, "history": [asdict(v) for v in (*history, version)]}
    write_sealed(directory / REGISTRY, {"format": FORMAT, **value})
    return version


def _version_path(directory: Path, version: int) -> Path:
    return directory / VERSIONS / f"{version:06d}.parquet"


def _works_path(directory: Path, version: Version) -> Path:
    """works.parquet, or where an import that was interrupted has put its last version."""
    current, earlier = directory / WORKS_FILE, _version_path(directory, version.version)
    if earlier.is_file() and not (current.is_file() and hash_file(current) == version.hash):
        return earlier
    return current


def _read_table(path: Path, version: Version) -> pa.Table:
    import pyarrow.parquet as pq

    data = read_verified(path, version.hash)
    try:
        table = pq.read_table(pa.BufferReader(data)).cast(WORKS)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise IntegrityError(f"{path}: not a table of works ({type(error).__name__})") from error
    if table_hash(table) != version.content_hash:
        raise IntegrityError(f"{path}: not the works that {REGISTRY} lists")
    return table
