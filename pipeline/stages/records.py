"""Records: what `prep dedup` hands over. The kept records of every raw shard, byte for byte, under
records/ with the shard's own path, format and compression.

A line of jsonl keeps its bytes and its newline; blank lines, bad records and duplicates are left
out. A row of parquet keeps all its columns. The raw shard is read again, and must still have the
content that the clean stage noted.
"""

import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.content import array_hash
from pipeline.core.errors import InputError
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.sources.files import FORMATS, HashingReader, InputFile
from pipeline.sources.streams import decompressed, zstd
from pipeline.stage import Inputs, Output, Result, Stage, Task
from pipeline.stages.keep import STATES
from pipeline.stages.plan import Plan

ZSTD_LEVEL = 3
GZIP_LEVEL = 6
_GZIP_WINDOW = 31
"""zlib's number for the largest window and a gzip header, whose time is then 0."""

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordsJob:
    """One raw shard, the hash it was read with, and the shards that tell which records stay."""

    file: InputFile
    path_id: int
    digest: str
    documents: Shard
    keep: Shard


def _records(job: RecordsJob, inputs: Inputs) -> Result:
    starts, stops = _kept_places(job, inputs)
    try:
        reader = HashingReader(job.file.location)
    except OSError as error:
        raise InputError(f"{job.file.location}: cannot read: {error.strerror}") from error
    with closing(reader):
        data, problem = b"", None
        try:
            data = _copy(job.file, reader, starts, stops)
        except InputError as error:
            problem = error
        if reader.hash_rest() != job.digest:
            raise InputError(
                f"{job.file.location}: changed while this run was going on; "
                "run the same command again to read it anew"
            )
    if problem is not None:
        raise problem
    content = {"input": job.digest, "starts": array_hash(starts)}
    output = Output(f"{layout.RECORDS}/{job.file.path}", data, fingerprint_of(content))
    return Result((output,), {"documents": len(starts)})


def _kept_places(job: RecordsJob, inputs: Inputs) -> tuple[I64, I64]:
    """Byte ranges of the kept records in the decompressed shard, newlines included, ascending; for
    parquet, rows."""
    table = inputs.table(job.documents, ["path_id", "byte_offset", "byte_length"])
    state = inputs.table(job.keep, ["state"])["state"].to_numpy()
    here = table["path_id"].to_numpy() == job.path_id
    chosen = np.flatnonzero(here & (state == STATES.index("kept")))
    starts = table["byte_offset"].to_numpy()[chosen].astype(np.int64)
    return starts, starts + table["byte_length"].to_numpy()[chosen].astype(np.int64) + 1


def _copy(file: InputFile, reader: HashingReader, starts: I64, stops: I64) -> bytes:
    """The whole output file."""
    kind, compression, _ = FORMATS[file.suffix]
    if kind == "parquet":
        return _copy_rows(file, reader, starts)
    compressor = _compressor(compression)
    blocks = decompressed(Path(file.location), reader, compression)  # type: ignore[arg-type]
    pieces = [compressor.compress(piece) for piece in cut(blocks, starts, stops)]
    return b"".join([*pieces, compressor.flush()])


def cut(blocks: Iterator[bytes], starts: I64, stops: I64) -> Iterator[bytes]:
    """The bytes in [start, stop) for ascending ranges of a stream, which may end before the last.

    >>> list(cut(iter([b"abc", b"defg"]), np.array([1, 4]), np.array([4, 9])))
    [b'bc', b'd', b'efg']
    """
    position, index = 0, 0
    for block in blocks:
        end = position + len(block)
        while index < len(starts) and starts[index] < end:
            first = max(int(starts[index]), position)
            if first < stops[index]:
                yield block[first - position : int(stops[index]) - position]
            if stops[index] > end:
                break
            index += 1
        position = end


class _Plain:
    """No compression behind the interface of a compressor."""

    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def _compressor(compression: str | None) -> Any:
    if compression == "zst":
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
            zstd.CompressionParameter.checksum_flag: True,
        }
        return zstd.ZstdCompressor(options=options)
    if compression == "gz":
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return _Plain()


def _copy_rows(file: InputFile, reader: HashingReader, rows: I64) -> bytes:
    """Rows with all their columns, a row group for each that keeps any."""
    sink = pa.BufferOutputStream()
    try:
        source = pq.ParquetFile(reader.file)
        with pq.ParquetWriter(sink, source.schema_arrow, compression="zstd") as writer:
            first = 0
            for group in range(source.num_row_groups):
                table = source.read_row_group(group)
                mask = np.zeros(len(table), np.bool_)
                low, high = np.searchsorted(rows, (first, first + len(table)))
                mask[rows[low:high] - first] = True
                first += len(table)
                if mask.any():
                    writer.write_table(table.filter(pa.array(mask)), row_group_size=len(table))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{file.location}: cannot copy its rows: {error}") from error
    data: bytes = sink.getvalue().to_pybytes()
    return data


def count_records(path: Path) -> int:
    """Records in a file of this stage. Raises InputError when it is damaged."""
    kind, compression, _ = next(v for suffix, v in FORMATS.items() if path.name.endswith(suffix))
    if kind == "parquet":
        return int(pq.read_metadata(path).num_rows)
    found, last = 0, b"\n"
    with open(path, "rb") as file:
        for block in decompressed(path, file, compression):
            found += block.count(b"\n")
            last = block[-1:]
    return found + (last != b"\n")


def records_stage(plan: Plan, clean: StageManifest, keep: StageManifest) -> Stage:
    """One task per raw shard that was read."""
    documents, kept = clean.below("documents"), keep.below("keep")
    noted = {(i, p): digest for t in clean.tasks for i, p, _, digest in t.counters["inputs"]}
    skipped = {(i, p) for t in clean.tasks for i, p, _ in t.counters["skipped_shards"]}
    tasks = []
    for path_id, (file, task) in enumerate(zip(plan.files, plan.task_of_file, strict=True)):
        place = (file.input, file.path)
        if place not in skipped:
            job = RecordsJob(file, path_id, noted[place], documents[task], kept[task])
            shards = (documents[task], kept[task])
            tasks.append(Task(f"records of {file.path}", job, shards, file.text_estimate))
    return Stage("records", 1, _records, tuple(tasks))
