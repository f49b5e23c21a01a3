"""Every place where a run keeps text or tokens of documents, and the places out of its reach."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import layout
from pipeline.catalogue import TEXT_INTERMEDIATES
from pipeline.takedown.run_tables import RunTables

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
    taken: pa.Table, model_dirs: Sequence[Path], exports: Sequence[Path],
    has_origin: bool = False,
) -> tuple[OutsideCopy, ...]:  # fmt: skip
    """Raw shards with the lines in them, weights, exports, the run that a repacked one was packed
    from, and what nobody can list."""
    found = [*_raw_shards(taken)]
    if has_origin:
        found.append(
            OutsideCopy(
                "texts", "", (),
                "this run was packed from the tokens of another run, which has the texts; apply "
                "the claim there too",
            )
        )  # fmt: skip
    for model_dir in model_dirs:
        found.append(
            OutsideCopy(
                "weights", model_dir.as_posix(), (),
                "checkpoints that were trained on these documents are not changed; whether to "
                "train again from an earlier one is for whoever is responsible for the model to "
                "decide",
            )
        )  # fmt: skip
    for export in exports:
        found.append(
            OutsideCopy(
                "export", export.as_posix(), (),
                "delete it and export again with `prep export`, which leaves these documents out",
            )
        )  # fmt: skip
    found.append(
        OutsideCopy(
            "backups", "", (),
            "not known here, and neither are snapshots, exports that were not named, runs repacked "
            "from this one, and other runs of the same raw shards; look for them",
        )
    )  # fmt: skip
    return tuple(found)


def _raw_shards(taken: pa.Table) -> list[OutsideCopy]:
    table = taken.select(["file", "line"]).group_by("file", use_threads=False)
    rows = table.aggregate([("line", "list")]).sort_by("file").to_pylist()
    return [
        OutsideCopy(
            "raw shard", row["file"], tuple(sorted(row["line_list"])[:_LISTED_LINES]),
            "delete these lines (in parquet, these rows) from the raw shard, or delete the shard; "
            "until then every run in this directory leaves their text out",
        )
        for row in rows
    ]  # fmt: skip
