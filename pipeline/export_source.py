"""A finished run as the source of an export: what is needed of it, also after `prep clean-up`."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from pipeline import layout
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of, read_manifest
from pipeline.run_directory import read_finished
from pipeline.runner import manifest_path
from pipeline.splits import TRAIN
from pipeline.stages.export import TableRows
from pipeline.takedown.later_runs import read_takedown_state


@dataclass(frozen=True)
class ExportSource:
    """A run: where it is, its config's name, a hash of its content, its documents shards; parallel
    to these their rows of documents.parquet, their rows of lines.parquet if lines were cut, and the
    copies of their documents if there is a mixture; its splits and its seed; tables of documents
    that were taken down from it since, with their hashes."""

    directory: Path
    name: str
    identity: str
    documents: tuple[Shard, ...]
    ends: tuple[TableRows, ...]
    cuts: tuple[TableRows | None, ...]
    copies: tuple[Shard | None, ...]
    splits: tuple[str, ...]
    seed: int
    taken_down: tuple[tuple[str, str], ...]


def open_source(directory: Path) -> ExportSource:
    """A finished run whose documents are all there. Raises InputError saying what is missing."""
    manifest = read_finished(directory)
    clean, keep = (_stage(directory, name) for name in ("clean", "keep"))
    documents = clean.below("documents")
    for shard in documents:
        if not (directory / shard.path).is_file():
            raise InputError(
                f"{directory / shard.path}: missing, and the text with it; to rebuild it, run "
                "again the command that made this run"
            )
    held_out = keep.fields["settings"].get("splits")
    if held_out is None:
        raise InputError(
            f"{directory}: made by an earlier version; to update it, run again the command that "
            "made it"
        )
    table = _stage(directory, "documents").find(layout.DOCUMENTS)
    counts = [int(task.counters["records"]) for task in clean.tasks]
    stages = {stage["stage"] for stage in manifest["stages"]}
    nothing = (None,) * len(documents)
    return ExportSource(
        directory.resolve(), str(manifest["config"]),
        fingerprint_of({"stages": manifest["stages"]}), documents, _rows(table, counts),
        _cuts(directory) if "cut_table" in stages else nothing,
        _stage(directory, "mixture").below("mixture") if "mixture" in stages else nothing,
        (TRAIN, *(name for name, _ in held_out)),
        int(_stage(directory, "scatter").fields["settings"]["seed"]),
        read_takedown_state(directory).masked,
    )  # fmt: skip


def _stage(directory: Path, stage: str) -> StageManifest:
    path = manifest_path(directory, stage)
    found = read_manifest(path)
    if found is None:
        raise IntegrityError(
            f"{path}: missing; to rebuild it, run again the command that made this run"
        )
    return found


def _cuts(directory: Path) -> tuple[TableRows, ...]:
    counts = [int(task.counters["cuts"]) for task in _stage(directory, "cuts").tasks]
    return _rows(_stage(directory, "cut_table").find(layout.CUTS), counts)


def _rows(table: Shard, counts: list[int]) -> tuple[TableRows, ...]:
    """A table cut into so many rows for each documents shard."""
    ends = accumulate(counts)
    return tuple(TableRows(table, e - n, n) for e, n in zip(ends, counts, strict=True))
