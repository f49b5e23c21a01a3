"""Records of takedowns, and what they ask of later runs.

    DIR/takedowns/ID.pending.json   a takedown that was begun: all that is needed to go on with it
                  ID.parquet        its documents (`resolve.TAKEN_SCHEMA`)
                  ID.json           the record, sealed, once it is done
                  takedown-ID.md    the same as a form for people, and .html

From the moment ID.pending.json is there, the texts of its documents are withheld from every later
run (`pipeline.stages.findings.withheld`). As long as nothing from the keep-list on has to be made
again, a masked data set stays as it is; else it is written again, and the documents are dropped by
the rule `takedown`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.manifest import read_manifest, read_sealed, write_sealed
from pipeline.core.mirror.fetching import fetch
from pipeline.engine.runner import manifest_path
from pipeline.runs import layout
from pipeline.runs.catalogue import CHANGED_BY_TAKEDOWNS
from pipeline.runs.views.documents import WithheldOutput

FORMAT = 1
MASK, REWRITE, PURGE = "mask", "rewrite", "purge"


@dataclass(frozen=True)
class Takedown:
    """One takedown of a run as its record says."""

    id: str
    mode: str
    pending: bool
    value: Mapping[str, Any]

    def documents(self, directory: Path, columns: list[str] | None = None) -> pa.Table:
        """Its documents. Raises IntegrityError when the file does not fit the record."""
        path = takedown_file(directory, f"{self.id}.parquet")
        try:
            table = pq.read_table(fetch(path), columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(f"{path}: missing or damaged; put it back from a copy") from error
        expected = self.value["documents"]["count"]
        if len(table) != expected:
            raise IntegrityError(f"{path}: {len(table):,} documents, its record has {expected:,}")
        return table

    def describe_pending(self, directory: Path) -> str:
        """What to say of one that is not finished."""
        return (
            f"{directory}: the takedown {self.id} is not finished; run the `prep takedown` "
            "command that began it again, with --apply"
        )


def takedown_file(directory: Path, name: str) -> Path:
    """A file about takedowns of a run."""
    return directory / layout.TAKEDOWNS / name


def write_takedown(path: Path, value: Mapping[str, Any]) -> None:
    """Publish a record, done or pending."""
    write_sealed(path, {"format": FORMAT, **value})


def read_takedowns(directory: Path) -> tuple[Takedown, ...]:
    """Every takedown of a run by id, the pending ones included. Raises IntegrityError for a damaged
    record or one of another version."""
    takedowns: dict[str, Takedown] = {}
    for path in sorted((directory / layout.TAKEDOWNS).glob("*.json")):
        value = read_sealed(path)
        if value.get("format") != FORMAT:
            raise IntegrityError(f"{path}: of format {value.get('format')}, expected {FORMAT}")
        pending = path.name.endswith(layout.PENDING)
        name = value["id"]
        if pending or name not in takedowns:
            takedowns[name] = Takedown(name, value["mode"], pending, value)
    return tuple(takedowns[name] for name in sorted(takedowns))


def check_none_pending(directory: Path) -> None:
    """Raises InputError when a takedown was begun and not finished."""
    for takedown in read_takedowns(directory):
        if takedown.pending:
            raise InputError(takedown.describe_pending(directory))


def read_taken_keys(directory: Path, takedowns: tuple[Takedown, ...]) -> pa.Array:
    """Keys of the documents of all these, each once."""
    parts = [t.documents(directory, ["doc_key"])["doc_key"].combine_chunks() for t in takedowns]
    empty = pa.array([], pa.binary(ids.KEY_BYTES))
    return pc.unique(pa.concat_arrays([empty, *parts]))


_STAGE = "withheld"
Named = tuple[str, str]
"""A table of keys, relative to the run directory, and the hash of its content."""


@dataclass(frozen=True)
class TakedownState:
    """Takedowns by what became of them: the data set is masked, or written without them."""

    masked: tuple[Named, ...] = ()
    dropped: tuple[Named, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Tables of the keys whose texts are withheld."""
        return tuple(sorted(file for file, _ in (*self.masked, *self.dropped)))

    @property
    def frozen(self) -> frozenset[str]:
        """Stages that must not be made again as long as the data set is masked."""
        return CHANGED_BY_TAKEDOWNS if self.masked else frozenset()

    def write_again(self) -> "TakedownState":
        """The same takedowns, all of them dropped."""
        return replace(self, masked=(), dropped=tuple(sorted((*self.masked, *self.dropped))))


def read_takedown_state(directory: Path) -> TakedownState:
    """Read the takedowns of a run directory, which may not exist yet. Raises InputError while one
    is not finished."""
    check_none_pending(directory)
    manifest = read_manifest(manifest_path(directory, _STAGE))
    withheld = WithheldOutput(manifest).takedowns if manifest else ()
    dropped_before = {file for file, _ in withheld}  # a run was written without them, or begun
    masked: list[Named] = []
    dropped: list[Named] = []
    for takedown in read_takedowns(directory):
        file = f"{layout.TAKEDOWNS}/{takedown.id}.parquet"
        stays = takedown.mode != REWRITE and file not in dropped_before
        content_hash = takedown.value["documents"]["content_hash"]
        (masked if stays else dropped).append((file, content_hash))
    return TakedownState(tuple(masked), tuple(dropped))


def list_raw_copies(directory: Path, takedowns: TakedownState) -> frozenset[str]:
    """Directories with copies of raw shards, which a run with takedowns does not keep."""
    there = takedowns.files and (directory / layout.PIECES).is_dir()
    return frozenset({layout.PIECES} if there else ())


def check_is_masked_nowhere(directory: Path, what: str) -> None:
    """Raises InputError when the tokens of a run lack documents that its tables still count."""
    if read_takedown_state(directory).masked:
        raise InputError(
            f"{directory}: documents in it were taken down by masking, so {what} cannot be made "
            "from its tokens; run its config again with another setting (`prep run` then writes "
            "the data set without them), or take them down with --mode rewrite"
        )
