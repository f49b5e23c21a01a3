"""The story of `prep export`, and what is needed of the run that is exported, also after `prep
clean-up`.

`prep export`: the text of a finished run in stream order, as records that `prep` reads again.

The output directory is a run directory of its own: an interrupted export goes on, and `prep verify`
checks a finished one. The run it is made from is only read.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, IntegrityError, escape_text
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of, read_manifest, write_sealed
from pipeline.core.words import did_you_mean
from pipeline.engine.executor import Executor
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner, manifest_path, removed_note
from pipeline.engine.stage import Inputs
from pipeline.runs import layout
from pipeline.runs.run_directory import read_finished, sweep_strays
from pipeline.runs.splits import TRAIN
from pipeline.sources.output_format import Form
from pipeline.stages.export import (
    TableRows,
    TextJob,
    files_of,
    gather_text_stage,
    numbers_of,
    read_table_rows,
    scatter_text_stage,
)
from pipeline.stages.records import FIELDS
from pipeline.stories.loop import StageRecord, Stages, StoryRun
from pipeline.stories.status import read_story
from pipeline.takedown.record import read_takedown_state


@dataclass(frozen=True, kw_only=True)
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
        directory=directory.resolve(),
        name=str(manifest["config"]),
        identity=fingerprint_of({"stages": manifest["stages"]}),
        documents=documents,
        ends=_rows(table, counts),
        cuts=_cuts(directory) if "cut_table" in stages else nothing,
        copies=_stage(directory, "mixture").below("mixture") if "mixture" in stages else nothing,
        splits=(TRAIN, *(name for name, _ in held_out)),
        seed=int(_stage(directory, "scatter").fields["settings"]["seed"]),
        taken_down=read_takedown_state(directory).masked,
    )


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


STORY = "export"
SMALLEST_FILE, LARGEST_FILE = 1_000, 2_000_000_000
"""Bytes of text that may be asked for in one file."""
_SCRATCH = "shuffle"
"""The directory that is only there while an export is made."""


@dataclass(frozen=True)
class ExportOptions:
    """What of a run is exported, and how. `splits`: names, None for all; `file_bytes`: about so
    much text in one file, which one task holds in memory."""

    form: Form = "jsonl.zst"
    splits: tuple[str, ...] | None = None
    fields: tuple[str, ...] = FIELDS
    file_bytes: int = 256_000_000
    shuffle: bool = True


@dataclass(frozen=True)
class ExportedSplit:
    """What an export holds of one split, or will: `bytes` on disk are None in a forecast."""

    name: str
    documents: int
    text_bytes: int
    files: int
    bytes: int | None


@dataclass(frozen=True)
class ExportResult:
    """A finished export, and whether all of it was there already."""

    directory: Path
    splits: tuple[ExportedSplit, ...]
    reused: bool


def forecast_export(run: Path, request: ExportOptions) -> tuple[ExportedSplit, ...]:
    """What an export would hold. Lines that are still to be cut count as text. Writes nothing.

    Raises InputError for a run that cannot be exported, ConfigError for a split it does not have.
    """
    source = open_source(run)
    splits = _splits(source, request)
    rows, size = np.zeros((2, len(splits)), np.int64)
    for job in _jobs(source, request, splits):
        split, copies, text_bytes = _ends(job, Inputs(source.directory))
        rows += np.bincount(split, copies, len(splits)).astype(np.int64)
        size += np.bincount(split, copies * text_bytes, len(splits)).astype(np.int64)
    return tuple(
        ExportedSplit(name, int(n), int(s), files_of(int(n), int(s), request.file_bytes), None)
        for name, n, s in zip(splits, rows, size, strict=True)
    )


def _ends(
    job: TextJob, run: Inputs
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of the documents of one shard that are wanted: number of the split, copies, bytes of text."""
    kept = read_table_rows(job.ends, ["state", "split", "text_bytes"], run)
    kept = kept.filter(pc.equal(kept["state"], "kept"))
    number = numbers_of(kept["split"], job.splits)
    copies = np.ones(len(kept), np.int64)
    if job.copies is not None:
        copies = run.table(job.copies)["copies"].to_numpy().astype(np.int64)
    wanted = number >= 0
    size = kept["text_bytes"].to_numpy().astype(np.int64)
    return number[wanted], copies[wanted], size[wanted]


def export_run(
    run: Path,
    out: Path,
    request: ExportOptions,
    workers: int | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Write the text of a finished run to `out`/records/SPLIT/; finished work is reused.

    The same run and request give byte-identical files for any number of workers and after any
    number of kills. Raises the errors of `pipeline.core.errors`.
    """
    source = open_source(run)
    splits = _splits(source, request)
    _check_out(source.directory, out)
    work = StoryRun(
        out=out,
        config=source.name,
        story=STORY,
        workers=workers,
        size=sum(shard.size for shard in source.documents),
        progress=progress or Progress(quiet=True),
    )

    def tell(run: StageRecord) -> None:
        scatter = run(scatter_text_stage(tuple(_jobs(source, request, splits))))
        gather = run(
            gather_text_stage(
                scatter, splits, request.form, request.fields, request.file_bytes, request.shuffle
            )
        )
        if not gather.tasks:
            raise InputError(f"{source.directory}: no document was kept in {', '.join(splits)}")

    def publish(stages: Stages, _: Runner, where: Executor) -> Stages:
        _commit(out, source, request, stages)
        return stages

    made = work.hold(tell, publish)
    found = tuple(_found(name, made.stages["gather_text"]) for name in splits)
    return ExportResult(out, found, len(made.reused) == len(made.stages))


def _splits(source: ExportSource, request: ExportOptions) -> tuple[str, ...]:
    for name in request.splits or ():
        if name not in source.splits:
            hint = did_you_mean(name, source.splits)
            raise ConfigError(
                f"--split: the run has no split {escape_text(name)!r}{hint}; splits: "
                f"{', '.join(source.splits)}"
            )
    return tuple(n for n in source.splits if request.splits is None or n in request.splits)


def _check_out(run: Path, out: Path) -> None:
    place = out.resolve()
    if place == run or run in place.parents:
        raise ConfigError(f"--out: {out} lies in the run that is exported; give another directory")
    begun = any((out / name).exists() for name in (layout.MANIFEST, "manifests", "journal"))
    if begun and read_story(out) != STORY:
        raise ConfigError(f"--out: {out} is the directory of another run; give one of its own")


def _jobs(
    source: ExportSource, request: ExportOptions, splits: tuple[str, ...]
) -> Iterator[TextJob]:
    for index, document in enumerate(source.documents):
        yield TextJob(
            location=str(source.directory),
            index=index,
            documents=document,
            ends=source.ends[index],
            cuts=source.cuts[index],
            copies=source.copies[index],
            splits=splits,
            fields=request.fields,
            seed=source.seed if request.shuffle else None,
            piece_bytes=request.file_bytes,
            taken_down=source.taken_down,
        )


def _found(name: str, gather: StageManifest) -> ExportedSplit:
    tasks = [task for task in gather.tasks if task.counters["split"] == name]
    return ExportedSplit(
        name,
        sum(t.counters["documents"] for t in tasks),
        sum(t.counters["text_bytes"] for t in tasks),
        len(tasks),
        sum(shard.size for t in tasks for shard in t.shards),
    )


def _commit(
    out: Path,
    source: ExportSource,
    request: ExportOptions,
    stages: Stages,
) -> None:
    """Publish manifest.json, then delete the scratch and what no manifest names."""
    scatter, gather = stages["scatter_text"], stages["gather_text"]
    paths = [manifest_path(out, name).relative_to(out).as_posix() for name in stages]
    files: list[dict[str, Any]] = [
        {"path": path, "size": (out / path).stat().st_size, "hash": storage.hash_file(out / path)}
        for path in paths
    ]
    for task in gather.tasks:
        shard, facts = task.shards[0], task.counters
        told = {name: facts[name] for name in ("split", "documents", "text_bytes", "sha256")}
        files.append({"path": shard.path, "size": shard.size, "hash": shard.hash, **told})
    value = {
        "format": 1,
        "config": source.name,
        "story": STORY,
        "removed": [_SCRATCH],
        "exported": {"run": source.identity, **asdict(request)},
        "stages": [
            {"stage": s.stage, "fingerprint": s.fingerprint, "content_hash": s.content_hash}
            for s in stages.values()
        ],
        "files": sorted(files, key=lambda file: str(file["path"])),
    }
    write_sealed(removed_note(out), {"removed": [_SCRATCH]})
    sweep_strays(out, {str(file["path"]) for file in files} | {s.path for s in scatter.shards})
    write_sealed(out / layout.MANIFEST, value)
    storage.remove_tree(out / _SCRATCH)
