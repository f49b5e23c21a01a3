"""DIR/takedowns/: what was taken down, sealed; and what is being taken down right now.

    ID.pending.json   a takedown that was begun: all that is needed to go on with it
    ID.parquet        its documents (`resolve.TAKEN_SCHEMA`)
    ID.json           the record, once it is done
    takedown-ID.md    the same as a form for people, and .html

From the moment ID.pending.json stands, the texts of its documents are withheld from every later run
(`pipeline.stages.withheld`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core import ids
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.manifest import read_sealed, write_sealed

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
        path = documents_path(directory, self.id)
        try:
            table = pq.read_table(path, columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(f"{path}: missing or damaged; put it back from a copy") from error
        expected = self.value["documents"]["count"]
        if len(table) != expected:
            raise IntegrityError(f"{path}: {len(table):,} documents, its record has {expected:,}")
        return table


def record_path(directory: Path, name: str) -> Path:
    """The record of a takedown that is done."""
    return directory / layout.TAKEDOWNS / f"{name}.json"


def pending_path(directory: Path, name: str) -> Path:
    """What is known of a takedown that is not done yet."""
    return directory / layout.TAKEDOWNS / f"{name}{layout.PENDING}"


def documents_path(directory: Path, name: str) -> Path:
    """The documents of a takedown."""
    return directory / layout.TAKEDOWNS / f"{name}.parquet"


def form_path(directory: Path, name: str, suffix: str) -> Path:
    """The form of a takedown, `.md` or `.html`."""
    return directory / layout.TAKEDOWNS / f"takedown-{name}{suffix}"


def write_takedown(path: Path, value: Mapping[str, Any]) -> None:
    """Publish a record, done or pending."""
    write_sealed(path, {"format": FORMAT, **value})


def read_takedowns(directory: Path) -> tuple[Takedown, ...]:
    """Every takedown of a run by id, the pending ones included. Raises IntegrityError for a damaged
    record or one of another version."""
    found: dict[str, Takedown] = {}
    for path in sorted((directory / layout.TAKEDOWNS).glob("*.json")):
        value = read_sealed(path)
        if value.get("format") != FORMAT:
            raise IntegrityError(f"{path}: of format {value.get('format')}, expected {FORMAT}")
        pending = path.name.endswith(layout.PENDING)
        name = value["id"]
        if pending or name not in found:
            found[name] = Takedown(name, value["mode"], pending, value)
    return tuple(found[name] for name in sorted(found))


def check_none_pending(directory: Path) -> None:
    """Raises InputError when a takedown was begun and not finished."""
    for takedown in read_takedowns(directory):
        if takedown.pending:
            raise InputError(
                f"{directory}: the takedown {takedown.id} is not finished; run the `prep takedown` "
                "command that began it again, with --apply"
            )


def keys_taken(directory: Path, takedowns: tuple[Takedown, ...]) -> pa.Array:
    """Keys of the documents of all these, each once."""
    parts = [t.documents(directory, ["doc_key"])["doc_key"].combine_chunks() for t in takedowns]
    empty = pa.array([], pa.binary(ids.KEY_BYTES))
    return pc.unique(pa.concat_arrays([empty, *parts]))
