"""`prep export`: the text of a finished run in stream order, as records that `prep` reads again.

The output is a run directory of its own: an interrupted export resumes, and `prep verify` checks a
finished one. The run it is made from is only read, also after `prep clean-up`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from pipeline.config.cluster import LOCAL, Cluster
from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.manifest import Shard, fingerprint_of, write_sealed
from pipeline.core.words import did_you_mean
from pipeline.engine.executor import Executor
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner, removed_note
from pipeline.engine.stage import Inputs, top_directory
from pipeline.runs.catalogue import INTERMEDIATE_DIRECTORIES
from pipeline.runs.run_directory import commit_run, read_finished, read_stage
from pipeline.runs.splits import TRAIN
from pipeline.runs.views.cuts import CutsOutput
from pipeline.runs.views.data_set import (
    CutTableOutput,
    DocumentsOutput,
    GatheredTextOutput,
    MixtureOutput,
    ScatteredTextOutput,
    TokensOutput,
)
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.sources.output_format import FIELDS, Form
from pipeline.stages.shuffle import export
from pipeline.stories.loop import StageRecord, Stages, StoryRun
from pipeline.takedown.record import read_takedown_state

STORY = "export"
SMALLEST_FILE, LARGEST_FILE = 1_000, 2_000_000_000
"""Bytes of text that may be asked for in one file."""


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


@dataclass(frozen=True)
class ExportSource:
    """A run: where it is, its config's name, a hash of its content; the splits that are asked for,
    and a job for each of its documents shards."""

    directory: Path
    name: str
    identity: str
    splits: tuple[str, ...]
    jobs: tuple[export.TextJob, ...]


def open_source(directory: Path, request: ExportOptions) -> ExportSource:
    """A finished run whose documents are all there. Raises InputError saying what is missing,
    ConfigError for a split that the run does not have."""
    manifest = read_finished(directory)
    clean = CleanOutput(read_stage(directory, "clean"))
    keep = KeepOutput(read_stage(directory, "keep"))
    for shard in clean.documents:
        if not (directory / shard.path).is_file():
            raise InputError(
                f"{directory / shard.path}: missing, and the text with it; to rebuild it, run "
                "again the command that made this run"
            )
    documents = DocumentsOutput(read_stage(directory, "documents"))
    ends = _rows(documents.parts, documents.tasks_of_parts(clean), clean.records)
    stages = {stage["stage"] for stage in manifest["stages"]}
    nothing = [None] * len(clean.documents)
    cuts: Iterable[export.TableRows | None] = nothing
    if "cut_table" in stages:
        counts = CutsOutput(read_stage(directory, "cuts")).counts
        table = CutTableOutput(read_stage(directory, "cut_table"))
        cuts = _rows(table.parts, table.tasks_of_parts(clean), counts)
    copies: Iterable[Shard | None] = nothing
    if "mixture" in stages:
        copies = MixtureOutput(read_stage(directory, "mixture")).copies
    seed = TokensOutput(read_stage(directory, "tokenize")).seed
    taken_down = read_takedown_state(directory).masked
    splits = _choose_splits((TRAIN, *(name for name, _ in keep.held_out)), request.splits)
    place = directory.resolve()
    shards = zip(clean.documents, ends, cuts, copies, strict=True)
    jobs = tuple(
        export.TextJob(
            location=str(place),
            index=index,
            documents=shard,
            ends=rows,
            cuts=cut,
            copies=copied,
            splits=splits,
            fields=request.fields,
            seed=seed if request.shuffle else None,
            piece_bytes=request.file_bytes,
            taken_down=taken_down,
        )
        for index, (shard, rows, cut, copied) in enumerate(shards)
    )
    identity = fingerprint_of({"stages": manifest["stages"]})
    return ExportSource(place, str(manifest["config"]), identity, splits, jobs)


def _rows(
    table: tuple[Shard, ...], tasks_of_parts: list[range], counts: list[int]
) -> Iterator[export.TableRows]:
    """The parts of a table cut into so many rows for each documents shard."""
    for part, group in zip(table, tasks_of_parts, strict=True):
        rows = counts[group.start : group.stop]
        for end, count in zip(accumulate(rows), rows, strict=True):
            yield export.TableRows(part, end - count, count)


def _choose_splits(there: tuple[str, ...], requested: tuple[str, ...] | None) -> tuple[str, ...]:
    for name in requested or ():
        if name not in there:
            hint = did_you_mean(name, there)
            raise ConfigError(
                f"--split: the run has no split {escape_text(name)!r}{hint}; splits: "
                f"{', '.join(there)}"
            )
    return tuple(name for name in there if requested is None or name in requested)


def forecast_export(run: Path, request: ExportOptions) -> tuple[ExportedSplit, ...]:
    """What an export would hold. Lines that are still to be cut count as text. Writes nothing.

    Raises InputError for a run that cannot be exported, ConfigError for a split it does not have.
    """
    source = open_source(run, request)
    splits = source.splits
    rows, size = np.zeros((2, len(splits)), np.int64)
    for job in source.jobs:
        split, copies, text_bytes = _ends(job, Inputs(source.directory))
        rows += np.bincount(split, copies, len(splits)).astype(np.int64)
        size += np.bincount(split, copies * text_bytes, len(splits)).astype(np.int64)
    return tuple(
        ExportedSplit(
            name, int(n), int(s), export.count_files(int(n), int(s), request.file_bytes), None
        )
        for name, n, s in zip(splits, rows, size, strict=True)
    )


def _ends(
    job: export.TextJob, run: Inputs
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of the documents of one shard that are wanted: number of the split, copies, bytes of text."""
    rows = export.read_table_rows(job.ends, ["state", "split", "text_bytes"], run)
    rows = rows.filter(pc.equal(rows["state"], "kept"))
    number = export.number_splits(rows["split"], job.splits)
    copies = np.ones(len(rows), np.int64)
    if job.copies is not None:
        copies = run.table(job.copies)["copies"].to_numpy().astype(np.int64)
    is_wanted = number >= 0
    size = rows["text_bytes"].to_numpy().astype(np.int64)
    return number[is_wanted], copies[is_wanted], size[is_wanted]


def export_run(
    run: Path,
    out: Path,
    request: ExportOptions,
    workers: int | None = None,
    *,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Write the text of a finished run to `out`/records/SPLIT/; finished work is reused.

    The same run and request give byte-identical files for any number of workers and after any
    number of kills. Raises the errors of `pipeline.core.errors`.
    """
    source = open_source(run, request)
    splits = source.splits
    _check_out(source.directory, out)
    work = StoryRun(
        out=out,
        config=source.name,
        story=STORY,
        workers=workers,
        cluster=cluster or LOCAL,
        size=sum(job.documents.size for job in source.jobs),
        progress=progress or Progress(quiet=True),
    )

    def tell(run: StageRecord) -> None:
        scatter = ScatteredTextOutput(run(export.scatter_text_stage(source.jobs)))
        files = export.FileOptions(
            form=request.form,
            fields=request.fields,
            file_bytes=request.file_bytes,
            shuffled=request.shuffle,
        )
        gather = export.gather_texts(scatter, splits, files, run)
        if not gather.manifest.tasks:
            raise InputError(f"{source.directory}: no document was kept in {', '.join(splits)}")

    def publish(stages: Stages, _: Runner, where: Executor) -> Stages:
        _commit(out, source, request, stages)
        return stages

    manifest = work.hold(tell, publish)
    results = tuple(
        _describe_split(name, GatheredTextOutput(manifest.stages["gather_text"])) for name in splits
    )
    return ExportResult(out, results, len(manifest.reused) == len(manifest.stages))


def _check_out(run: Path, out: Path) -> None:
    place = out.resolve()
    if place == run or run in place.parents:
        raise ConfigError(f"--out: {out} lies in the run that is exported; give another directory")


def _describe_split(name: str, gather: GatheredTextOutput) -> ExportedSplit:
    files = gather.of_split(name, gather.manifest.shards)
    return ExportedSplit(
        name,
        sum(gather.of_split(name, gather.documents)),
        sum(gather.of_split(name, gather.text_bytes)),
        len(files),
        sum(shard.size for shard in files),
    )


def _commit(out: Path, source: ExportSource, request: ExportOptions, stages: Stages) -> None:
    """Publish manifest.json, with the facts of every exported file; the scratch goes before."""
    gather = GatheredTextOutput(stages["gather_text"])
    columns = (gather.split, gather.documents, gather.text_bytes, gather.sha256)
    names = ("split", "documents", "text_bytes", "sha256")
    facts = {
        shard.path: dict(zip(names, values, strict=True))
        for shard, *values in zip(gather.manifest.shards, *columns, strict=True)
    }
    written = {top_directory(shard) for stage in stages.values() for shard in stage.shards}
    removed = written.intersection(INTERMEDIATE_DIRECTORIES)
    write_sealed(removed_note(out), {"removed": sorted(removed)})
    for name in sorted(removed):
        storage.remove_tree(out / name)
    exported = {"run": source.identity, **asdict(request)}
    commit_run(out, (source.name, STORY), stages, frozenset(removed), facts, exported=exported)
