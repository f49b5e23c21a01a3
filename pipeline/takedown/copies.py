"""What a takedown reads of a run: its tables, its stages and its stored texts, shard by shard;
every place where the run keeps text or tokens of documents, and the places out of its reach.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.manifest import StageManifest, read_manifest, read_sealed
from pipeline.engine.runner import STAGE_MANIFESTS
from pipeline.runs import layout
from pipeline.runs.catalogue import TEXT_INTERMEDIATES, story_entry
from pipeline.runs.held_texts import keys_of, quarantine_path, read_held_shard, with_texts
from pipeline.runs.records import wrap_read_errors

_COLUMNS = [
    "doc_key",
    "source",
    "path_id",
    "line",
    "byte_offset",
    "byte_length",
    "text_bytes",
    "state",
    "split",
    "tokens",
]


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


def open_run_tables(directory: Path) -> RunTables:
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


EMPTIED, MASKED, DELETED, WRITTEN_ANEW = "emptied", "masked", "deleted", "written again"
_LISTED_LINES = 1000


@dataclass(frozen=True)
class Copy:
    """One store of the run: its directory or file, how many files and documents are affected, and
    what a takedown does with them."""

    store: str
    files: int
    documents: int
    done: str


@dataclass(frozen=True)
class OutsideCopy:
    """A copy that a takedown cannot reach, and what somebody has to do about it."""

    what: str
    where: str
    lines: tuple[int, ...]
    instruction: str


def stored_copies(run: RunTables, taken: pa.Table) -> tuple[Copy, ...]:
    """What stands in the run directory."""
    keys = taken["doc_key"].combine_chunks()
    found = [
        _counted(run, "documents", "*.arrow", keys, EMPTIED),
        _counted(run, "drops", "*.parquet", keys, EMPTIED),
        _counted(run, "tokens", "*.arrow", keys, EMPTIED),
        _counted(run, "quarantine", "*.arrow", keys, EMPTIED),
        _in_table(run, layout.EVIDENCE, keys),
        _in_table(run, layout.DECISIONS, keys),
        *_written(run, taken),
        *_pages(run, keys),
    ]
    for name in TEXT_INTERMEDIATES:
        files = [p for p in (run.directory / name).rglob("*") if p.is_file()]
        if files:
            found.append(Copy(name, len(files), 0, DELETED))
    return tuple(copy for copy in found if copy.files)


def _counted(run: RunTables, store: str, pattern: str, keys: pa.Array, done: str) -> Copy:
    counts = [_holds(path, keys) for path in sorted((run.directory / store).glob(pattern))]
    return Copy(store, sum(count > 0 for count in counts), sum(counts), done)


def _in_table(run: RunTables, name: str, keys: pa.Array) -> Copy:
    path = run.directory / name
    count = _holds(path, keys) if path.exists() else 0
    return Copy(name, int(count > 0), count, EMPTIED)


def _holds(path: Path, keys: pa.Array) -> int:
    """How many of these documents a file names."""
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        column = pq.read_table(path, columns=["doc_key"])["doc_key"]
    else:
        column = pa.ipc.open_file(pa.memory_map(str(path))).read_all()["doc_key"]
    return len(pc.unique(column.filter(pc.is_in(column, keys))))


def _written(run: RunTables, taken: pa.Table) -> list[Copy]:
    """Records that `prep dedup` or `prep clean` wrote."""
    kept = pc.sum(pc.equal(taken["state"], "kept")).as_py() or 0
    found = []
    for store in (layout.RECORDS, layout.CLEANED):
        if (run.directory / store).is_dir() and kept:
            files = len(set(pc.filter(taken["file"], pc.equal(taken["state"], "kept")).to_pylist()))
            found.append(Copy(store, files, kept, WRITTEN_ANEW))
    return found


def _pages(run: RunTables, keys: pa.Array) -> list[Copy]:
    wanted = [key.hex().encode() for key in keys.to_pylist()]
    found = []
    for path in sorted(run.directory.glob("*.html")):
        data = path.read_bytes()
        count = sum(key in data for key in wanted)
        if count:
            found.append(Copy(path.name, 1, count, WRITTEN_ANEW))
    return found


def outside_copies(
    taken: pa.Table,
    model_dirs: Sequence[Path],
    exports: Sequence[Path],
    has_origin: bool = False,
) -> tuple[OutsideCopy, ...]:
    """Raw shards with the lines in them, weights, exports, the run that a repacked one was packed
    from, and what nobody can list."""
    found = [*_raw_shards(taken)]
    if has_origin:
        found.append(
            OutsideCopy(
                "texts",
                "",
                (),
                "this run was packed from the tokens of another run, which has the texts; apply "
                "the claim there too",
            )
        )
    for model_dir in model_dirs:
        found.append(
            OutsideCopy(
                "weights",
                model_dir.as_posix(),
                (),
                "checkpoints that were trained on these documents are not changed; whether to "
                "train again from an earlier one is for whoever is responsible for the model to "
                "decide",
            )
        )
    for export in exports:
        found.append(
            OutsideCopy(
                "export",
                export.as_posix(),
                (),
                "delete it and export again with `prep export`, which leaves these documents out",
            )
        )
    found.append(
        OutsideCopy(
            "backups",
            "",
            (),
            "not known here, and neither are snapshots, exports that were not named, runs repacked "
            "from this one, and other runs of the same raw shards; look for them",
        )
    )
    return tuple(found)


def _raw_shards(taken: pa.Table) -> list[OutsideCopy]:
    table = taken.select(["file", "line"]).group_by("file", use_threads=False)
    rows = table.aggregate([("line", "list")]).sort_by("file").to_pylist()
    return [
        OutsideCopy(
            "raw shard",
            row["file"],
            tuple(sorted(row["line_list"])[:_LISTED_LINES]),
            "delete these lines (in parquet, these rows) from the raw shard, or delete the shard; "
            "until then every run in this directory leaves their text out",
        )
        for row in rows
    ]
