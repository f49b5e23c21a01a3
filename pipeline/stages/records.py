"""Records: the kept records, byte for byte, which is what `prep dedup` hands over.

Those of every raw shard, under records/ with the shard's own path, format and compression.

Blank lines, bad records and duplicates are left out. The raw shard is read again, and must still
have the content that the clean stage noted.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from dedup.arrays import I64
from pipeline import layout
from pipeline.core.content import array_hash
from pipeline.core.errors import InputError
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.sources.copy import copy_records
from pipeline.sources.files import HashingReader, InputFile, change_error
from pipeline.stage import Inputs, Output, Result, Stage, Task
from pipeline.stages.keep import STATES
from pipeline.stages.plan import Reading


@dataclass(frozen=True)
class RecordsJob:
    """One raw shard, the hash it was read with, and the shards that tell which records stay: those
    of its first task, of its second, …"""

    file: InputFile
    path_id: int
    digest: str
    documents: tuple[Shard, ...]
    keep: tuple[Shard, ...]


def _records(job: RecordsJob, inputs: Inputs) -> Result:
    pairs = zip(job.documents, job.keep, strict=True)
    places = [_kept_places(job, *pair, inputs) for pair in pairs]
    starts, sizes = (np.concatenate(column) for column in zip(*places, strict=True))
    content = {"input": job.digest, "starts": array_hash(starts)}
    path = f"{layout.RECORDS}/{job.file.path}"
    output = Output(path, _copy(job, starts, sizes), fingerprint_of(content))
    return Result((output,), {"documents": len(starts)})


def _kept_places(job: RecordsJob, documents: Shard, keep: Shard, inputs: Inputs) -> tuple[I64, I64]:
    """Byte offset in the decompressed shard and length of the kept records, ascending; of a file of
    rows, the rows and 0."""
    table = inputs.table(documents, ["path_id", "byte_offset", "byte_length"])
    state = inputs.table(keep, ["state"])["state"].to_numpy()
    here = table["path_id"].to_numpy() == job.path_id
    chosen = np.flatnonzero(here & (state == STATES.index("kept")))
    starts, sizes = (table[name].to_numpy()[chosen] for name in ("byte_offset", "byte_length"))
    return starts.astype(np.int64), sizes.astype(np.int64)


def _copy(job: RecordsJob, starts: I64, sizes: I64) -> Iterator[bytes]:
    """The output file, piece by piece. Raises InputError at its end when the raw shard is not what
    it was."""
    file = job.file
    with closing(HashingReader(file.location)) as reader:
        problem = None
        try:
            yield from copy_records(file, reader, starts, sizes)
        except InputError as error:
            problem = error
        if reader.hash_rest() != job.digest:
            raise change_error(file.shown)
    if problem is not None:
        raise problem


def records_stage(reading: Reading, clean: StageManifest, keep: StageManifest) -> Stage:
    """One task per raw shard that was read."""
    documents, kept = clean.below("documents"), keep.below("keep")
    noted = {(i, p): digest for t in clean.tasks for i, p, _, digest in t.counters["inputs"]}
    skipped = {(i, p) for t in clean.tasks for i, p, _ in t.counters["skipped_shards"]}
    tasks = []
    for path_id, (file, of) in enumerate(zip(reading.files, reading.tasks_of_file, strict=True)):
        place = (file.input, file.path)
        if place not in skipped:
            shards = (documents[of.start : of.stop], kept[of.start : of.stop])
            job = RecordsJob(file, path_id, noted[place], *shards)
            work = file.text_estimate
            tasks.append(Task(f"records of {file.path}", job, (*shards[0], *shards[1]), work))
    return Stage("records", 2, _records, tuple(tasks))
