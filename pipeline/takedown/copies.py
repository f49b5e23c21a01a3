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
from pipeline.core.manifest import read_sealed
from pipeline.core.mirror.fetching import fetch
from pipeline.runs import layout
from pipeline.runs.catalogue import TEXT_INTERMEDIATES, story_entry
from pipeline.runs.held_texts import keys_of, quarantine_path, read_held_shard, with_texts
from pipeline.runs.records import DocumentTable, map_arrow


@dataclass(frozen=True)
class RunTables:
    """A run directory that was finished once; `manifest` is empty while a takedown is applied."""

    directory: Path
    manifest: Mapping[str, Any]

    @cached_property
    def documents(self) -> DocumentTable:
        """The table of documents; row = dense index."""
        return DocumentTable(self.directory)

    def count_tokens(self, rows: I64) -> I64:
        """The tokens of the documents in these rows."""
        tokens = self.documents.take(rows, ["tokens"])["tokens"]
        return np.asarray(tokens.to_numpy().astype(np.int64))

    def open_text_shards(self) -> Iterator[pa.Table]:
        """Every shard of documents/ that is there, memory-mapped; and, once more, those of its rows
        whose texts are in quarantine, with these."""
        for path in sorted((self.directory / "documents").glob("*.arrow")):
            table = map_arrow(path)
            yield table
            held_texts = read_held_shard(self.directory / quarantine_path(path.name))
            if len(held_texts):
                yield with_texts(
                    table.filter(pc.is_in(table["doc_key"], keys_of(held_texts))), held_texts
                )

    def list_splits(self) -> list[str]:
        """The splits that have shards."""
        paths = (self.directory / "hdf5").glob("*/data_params.json")
        return sorted(path.parent.name for path in paths)


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


def make_key_array(keys: list[bytes]) -> pa.Array:
    """Document keys as fixed_size_binary(16)."""
    return pa.array(keys, pa.binary(ids.KEY_BYTES))


EMPTIED, DELETED, WRITTEN_AGAIN = "emptied", "deleted", "written again"
_LISTED_LINES = 1000
_NAMING_KEYS = ("documents", "drops", "tokens", "quarantine", layout.EVIDENCE, layout.DECISIONS)


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


def list_stored_copies(run: RunTables, taken: pa.Table) -> tuple[Copy, ...]:
    """What is in the run directory."""
    keys = taken["doc_key"].combine_chunks()
    copies = [_count_copies(run, store, keys) for store in _NAMING_KEYS]
    kept = taken.filter(pc.equal(taken["state"], "kept"))
    for store in (layout.RECORDS, layout.CLEANED):
        if (run.directory / store).is_dir() and len(kept):
            files = len(pc.unique(kept["file"]))
            copies.append(Copy(store, files, len(kept), WRITTEN_AGAIN))
    names = [key.hex().encode() for key in keys.to_pylist()]
    for path in sorted(run.directory.glob("*.html")):
        data = fetch(path).read_bytes()
        count = sum(name in data for name in names)
        copies.append(Copy(path.name, int(count > 0), count, WRITTEN_AGAIN))
    for name in TEXT_INTERMEDIATES:
        count = sum(path.is_file() for path in (run.directory / name).rglob("*"))
        copies.append(Copy(name, count, 0, DELETED))
    return tuple(copy for copy in copies if copy.files)


def _count_copies(run: RunTables, store: str, keys: pa.Array) -> Copy:
    """The files of a directory, or the one file, that name these documents, and how many."""
    path = run.directory / store
    paths = sorted([*path.glob("*.arrow"), *path.glob("*.parquet"), *([path] * path.is_file())])
    counts = []
    for file in paths:
        if file.suffix == ".parquet":
            column = pq.read_table(fetch(file), columns=["doc_key"])["doc_key"]
        else:
            column = map_arrow(file)["doc_key"]
        counts.append(len(pc.unique(column.filter(pc.is_in(column, keys)))))
    return Copy(store, sum(count > 0 for count in counts), sum(counts), EMPTIED)


_INSTRUCTIONS = {
    "raw shard": "delete these lines (in parquet, these rows) from the raw shard, or delete the "
    "shard; until then every run in this directory leaves their text out",
    "texts": "this run was packed from the tokens of another run, which has the texts; apply the "
    "claim there too",
    "weights": "checkpoints that were trained on these documents are not changed; whether to train "
    "again from an earlier one is for whoever is responsible for the model to decide",
    "export": "delete it and export again with `prep export`, which leaves these documents out",
    "backups": "not known here, and neither are snapshots, exports that were not named, runs "
    "repacked from this one, and other runs of the same raw shards; look for them",
}


def list_outside_copies(
    taken: pa.Table,
    model_dirs: Sequence[Path],
    exports: Sequence[Path],
    has_origin: bool = False,
) -> tuple[OutsideCopy, ...]:
    """Raw shards with the lines in them, weights, exports, the run that a repacked one was packed
    from, and what nobody can list."""
    table = taken.select(["file", "line"]).group_by("file", use_threads=False)
    rows = table.aggregate([("line", "list")]).sort_by("file").to_pylist()
    copies = [("raw shard", row["file"], sorted(row["line_list"])[:_LISTED_LINES]) for row in rows]
    copies += [("texts", "", [])] if has_origin else []
    copies += [("weights", model_dir.as_posix(), []) for model_dir in model_dirs]
    copies += [("export", export.as_posix(), []) for export in exports]
    copies.append(("backups", "", []))
    return tuple(
        OutsideCopy(what, where, tuple(lines), _INSTRUCTIONS[what]) for what, where, lines in copies
    )
