"""What a takedown reads of a run: its tables, its stages and its stored texts, shard by shard."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline import layout
from pipeline.catalogue import story_entry
from pipeline.core import ids
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.manifest import StageManifest, read_manifest, read_sealed
from pipeline.provenance.quarantined import keys_of, quarantine_path, read_held_shard, with_texts
from pipeline.provenance.records import wrap_read_errors
from pipeline.runner import STAGE_MANIFESTS

_COLUMNS = ["doc_key", "source", "path_id", "line", "byte_offset", "byte_length", "text_bytes",
            "state", "split", "tokens"]  # fmt: skip


@dataclass(frozen=True)
class RunTables:
    """A run directory that was finished once; `manifest` is empty while a takedown is applied."""

    directory: Path
    manifest: Mapping[str, Any]

    @cached_property
    def documents(self) -> pa.Table:
        """The table of documents, the columns that a takedown needs; row = dense index."""
        with wrap_read_errors(self.directory / layout.DOCUMENTS) as path:
            return pq.read_table(path, columns=_COLUMNS)

    @cached_property
    def files(self) -> list[str]:
        """Input and path of every raw shard, by path_id."""
        with wrap_read_errors(self.directory / layout.SOURCES) as path:
            rows = pq.read_table(path, columns=["input", "path"]).to_pylist()
        return [f"{row['input']}/{row['path']}" for row in rows]

    @cached_property
    def stages(self) -> dict[str, StageManifest]:
        """Every stage that is committed."""
        paths = sorted((self.directory / STAGE_MANIFESTS).glob("*.json"))
        found = {path.stem: read_manifest(path) for path in paths}
        return {name: stage for name, stage in found.items() if stage is not None}

    def rows_of(self, keys: pa.Array) -> I64:
        """Rows of the documents with these keys, ascending; keys of no document are left out."""
        found = pc.is_in(self.documents["doc_key"], keys).to_numpy()
        return np.flatnonzero(found).astype(np.int64)

    def keys_of(self, rows: I64) -> pa.Array:
        """The keys of these rows, fixed_size_binary(16)."""
        return self.documents["doc_key"].take(pa.array(rows)).combine_chunks()

    def text_shards(self) -> Iterator[pa.Table]:
        """Every shard of documents/ that is there, memory-mapped; and, once more, those of its rows
        whose texts are in quarantine, with these."""
        for path in sorted((self.directory / "documents").glob("*.arrow")):
            with wrap_read_errors(path):
                table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            yield table
            held = read_held_shard(self.directory / quarantine_path(path.name))
            if len(held):
                yield with_texts(table.filter(pc.is_in(table["doc_key"], keys_of(held))), held)

    def splits(self) -> list[str]:
        """The splits that have shards."""
        found = (self.directory / "hdf5").glob("*/data_params.json")
        return sorted(path.parent.name for path in found)


def open_run(directory: Path) -> RunTables:
    """A finished run that a takedown can reach. Raises InputError for anything else."""
    if not directory.is_dir():
        raise InputError(f"{directory}: no such run directory")
    try:
        manifest = read_sealed(directory / layout.MANIFEST)
    except IntegrityError as error:
        if (directory / layout.MANIFEST).exists():
            raise
        raise InputError(
            f"{directory}: no {layout.MANIFEST}: not a finished run; the command that began it "
            "finishes it"
        ) from error
    story = manifest.get("story", "prepare")
    if not story_entry(story).can_be_taken_down:
        raise InputError(
            f"{directory}: made by `prep {story}`; expected the run that the documents are "
            "from, with this directory as --export"
        )
    return RunTables(directory, manifest)


def key_array(keys: list[bytes]) -> pa.Array:
    """Document keys as fixed_size_binary(16)."""
    return pa.array(keys, pa.binary(ids.KEY_BYTES))
