"""Rows of the `sample` and `vsl` formats, one task per bucket of a split's stream.

`sample`: row k is stream[k * MSL : k * MSL + MSL + 1]; it belongs to the bucket of its first token
and borrows up to MSL + 1 tokens of the buckets that follow. `vsl`: whole documents side by side;
`bins` first chooses a row for every segment from the lengths alone. The position of a row in the
data set is the inverse of a keyed bijection, and buckets are written sorted by it, so `pack` only
slices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64
from pipeline.config.prep import Config
from pipeline.core.manifest import Shard
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output
from pipeline.hdf5.packing import (
    PACKERS,
    Placement,
    Segments,
    Tokens,
    fold,
    gather_segments,
    place_segments,
)
from pipeline.lineage.tables import SCHEMA as LINEAGE_SCHEMA
from pipeline.lineage.tables import StreamDocuments, make_lineage, row_positions
from pipeline.runs import layout
from pipeline.runs.views.data_set import BinsOutput
from pipeline.runs.views.documents import CleanOutput
from pipeline.stages.shuffle.stream import Buckets, SplitStream, StreamPart, read_stream
from pipeline.stages.tokenize import token_lists


@dataclass(frozen=True, kw_only=True)
class RowsJob:
    """One bucket and those that follow it as far as its last window reaches."""

    split: str
    bucket: int
    buckets: Buckets
    bucket_tokens: int
    stream_tokens: int
    rows: int
    max_sequence_length: int
    eos_id: int
    seed: int
    records_before_task: Shared[tuple[int, ...]]


def _rows(job: RowsJob, inputs: Inputs) -> Result:
    """Two shards sorted by position: windows (position, stream_row, window, tokens) and spans."""
    length, begin = job.max_sequence_length, job.buckets.begin
    end = begin + job.bucket_tokens
    stream_rows = np.arange(-(-begin // length), min(-(-end // length), job.rows))
    stream_rows, position = sort_by_position(stream_rows, job.rows, job.seed, job.split)
    last = end + length + 1
    part = read_stream(job.buckets, begin, last, inputs, end=(length + 1, job.eos_id))
    windows = _windows(part.tokens, stream_rows * length - begin, length + 1)
    table = pa.table(
        {
            "position": pa.array(position),
            "stream_row": pa.array(stream_rows),
            "window": pa.array(np.minimum(length + 1, job.stream_tokens - stream_rows * length)),
            "tokens": token_lists(windows.reshape(-1), np.full(len(stream_rows), length + 1)),
        }
    )
    lineage = make_lineage(_documents(job, part), stream_rows, length)
    outputs = row_shards(job.split, job.bucket, table, lineage)
    return Result(outputs, {"rows": len(stream_rows), "split": job.split})


def sort_by_position(stream_rows: I64, rows: int, seed: int, split: str) -> tuple[I64, I64]:
    """Stream rows and their positions in the data set of `rows` rows, sorted by position."""
    position = row_positions(stream_rows, rows, seed, split)
    order = np.argsort(position)
    return stream_rows[order], position[order]


def row_shards(split: str, bucket: int, rows: pa.Table, lineage: pa.Table) -> tuple[Output, Output]:
    """The two shards of a bucket. Both are sorted by position; `row` of the lineage, a row of
    `rows`, gives way to its position."""
    position = rows["position"].to_numpy()[lineage["row"].to_numpy()]
    lineage = lineage.append_column("position", pa.array(position)).drop_columns(["row"])
    stem = f"rows/{split}-{bucket:06d}"
    return (
        arrow_output(f"{stem}.{layout.WINDOWS_SHARD}", rows),
        arrow_output(f"{stem}.{layout.SPANS_SHARD}", lineage),
    )


def _documents(job: RowsJob, part: StreamPart) -> StreamDocuments:
    """The documents that the windows are cut from."""
    ends = part.start + np.cumsum(part.length)
    dense = dense_index(part.doc_id, job.records_before_task)
    return StreamDocuments(dense, ends - part.length, ends, job.stream_tokens)


def dense_index(
    doc_id: npt.NDArray[np.uint64], records_before_task: Shared[tuple[int, ...]]
) -> npt.NDArray[np.uint32]:
    """Rows of documents.parquet."""
    before = np.array(records_before_task.value, np.uint64)
    task = (doc_id >> np.uint64(32)).astype(np.int64)
    return (before[task] + (doc_id & np.uint64(0xFFFFFFFF))).astype(np.uint32)


def _windows(tokens: Tokens, starts_R: I64, width: int) -> Tokens:
    """(R, width) windows."""
    if not len(starts_R):
        return np.zeros((0, width), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, width)[starts_R]


def records_before_task(clean: CleanOutput) -> Shared[tuple[int, ...]]:
    """Rows of documents.parquet before each clean task's first record."""
    return Shared(tuple(accumulate(clean.records[:-1], initial=0)))


def rows_stage(
    config: Config, eos_id: int, clean: CleanOutput, streams: Sequence[SplitStream]
) -> Stage:
    """One task per bucket of each stream."""
    length = config.pack.max_sequence_length
    before = records_before_task(clean)
    tasks = []
    for stream in streams:
        for bucket, (start, end) in enumerate(pairwise(stream.starts)):
            job = RowsJob(
                split=stream.name,
                bucket=bucket,
                buckets=stream.buckets_with(start, end + length + 1),
                bucket_tokens=end - start,
                stream_tokens=stream.tokens,
                rows=stream.rows(length),
                max_sequence_length=length,
                eos_id=eos_id,
                seed=config.seed,
                records_before_task=before,
            )
            label = f"rows of {stream.name} bucket {bucket}"
            tasks.append(Task(label, job, job.buckets.inputs, 2 * (end - start)))
    settings = {"max_sequence_length": length, "seed": config.seed}
    return Stage(name="rows", version=2, function=_rows, tasks=tuple(tasks), settings=settings)


DEFAULT_PACKER = "first_fit"


@dataclass(frozen=True)
class BinsJob:
    """One bucket of a stream and how its documents are packed."""

    split: str
    bucket: int
    stream: Shard
    max_sequence_length: int
    packer: str


def _bins(job: BinsJob, inputs: Inputs) -> Result:
    """Columns over segments by (row, slot): document (row of the bucket), start, labels, row (of
    the bucket's rows), slot."""
    lengths = inputs.table(job.stream, ["tokens"])["tokens"].to_numpy()
    segments = fold(lengths, job.max_sequence_length)
    placed = place_segments(
        PACKERS[job.packer](segments.labels, job.max_sequence_length), segments.labels
    )
    table = pa.table(
        {
            "document": pa.array(segments.document[placed.segment].astype(np.uint32)),
            "start": pa.array(segments.start[placed.segment]),
            "labels": pa.array(segments.labels[placed.segment].astype(np.int32)),
            "row": pa.array(placed.row.astype(np.uint32)),
            "slot": pa.array(placed.slot.astype(np.int32)),
        }
    )
    counters = {
        "split": job.split,
        "rows": placed.rows,
        "segments": len(segments),
        "labels": int(segments.labels.sum()),
        "unlabelled": int((lengths == 1).sum()),
    }
    return Result((arrow_output(f"bins/{job.split}-{job.bucket:06d}.arrow", table),), counters)


def bins_stage(config: Config, streams: Sequence[SplitStream]) -> Stage:
    """One task per bucket of each stream."""
    length, packer = config.pack.max_sequence_length, config.pack.packer or DEFAULT_PACKER
    tasks = [
        Task(
            f"bins of {stream.name} bucket {bucket}",
            BinsJob(stream.name, bucket, shard, length, packer),
            (shard,),
            2 * tokens,
        )
        for stream in streams
        for bucket, (shard, tokens) in enumerate(
            zip(stream.buckets, stream.bucket_tokens, strict=True)
        )
    ]
    settings = {"max_sequence_length": length, "packer": packer}
    return Stage(name="bins", version=1, function=_bins, tasks=tuple(tasks), settings=settings)


@dataclass(frozen=True, kw_only=True)
class VslRowsJob:
    """One bucket, its bins, and its rows' place among all rows of the split."""

    split: str
    bucket: int
    buckets: Buckets
    bucket_tokens: int
    bins: Shard
    first_row: int
    bucket_rows: int
    rows: int
    seed: int
    records_before_task: Shared[tuple[int, ...]]


def _vsl_rows(job: VslRowsJob, inputs: Inputs) -> Result:
    """Two shards sorted by position: rows (position, stream_row, labels of its segments, tokens of
    its segments, labels + 1 each) and spans."""
    stream_rows = np.arange(job.first_row, job.first_row + job.bucket_rows)
    stream_rows, position = sort_by_position(stream_rows, job.rows, job.seed, job.split)
    begin = job.buckets.begin
    part = read_stream(job.buckets, begin, begin + job.bucket_tokens, inputs)
    segments, placed = _segments(job, inputs, stream_rows)
    first_token = (np.cumsum(part.length) - part.length)[segments.document] + segments.start
    gathered = gather_segments(part.tokens, first_token, segments.labels)
    row_segments = np.bincount(placed.row, minlength=placed.rows)
    row_tokens = np.bincount(placed.row, segments.labels + 1, placed.rows).astype(np.int64)
    table = pa.table(
        {
            "position": pa.array(position),
            "stream_row": pa.array(stream_rows),
            "labels": token_lists(segments.labels.astype(np.int32), row_segments),
            "tokens": token_lists(gathered, row_tokens),
        }
    )
    dense = dense_index(part.doc_id, job.records_before_task)
    columns = [
        placed.row.astype(np.int32),
        placed.slot.astype(np.int32),
        (placed.slot + segments.labels).astype(np.int32),
        dense[segments.document],
        segments.start,
        stream_rows[placed.row],
    ]
    lineage = pa.table([pa.array(c) for c in columns], schema=LINEAGE_SCHEMA)
    counters = {"rows": len(stream_rows), "split": job.split}
    return Result(row_shards(job.split, job.bucket, table, lineage), counters)


def _segments(
    job: VslRowsJob, inputs: Inputs, stream_rows: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[Segments, Placement]:
    """The bucket's segments in the order of `stream_rows`; `row` counts rows in that order."""
    bins = inputs.table(job.bins)
    rank = np.empty(job.bucket_rows, np.int64)
    rank[stream_rows - job.first_row] = np.arange(job.bucket_rows)
    row = rank[bins["row"].to_numpy()]
    order = np.argsort(row, kind="stable")
    columns = (bins[name].to_numpy()[order] for name in ("document", "start", "labels", "slot"))
    document, start, labels, slot = (column.astype(np.int64) for column in columns)
    return Segments(document, start, labels), Placement(order, row[order], slot, job.bucket_rows)


def vsl_rows_stage(
    config: Config, clean: CleanOutput, streams: Sequence[SplitStream], bins: BinsOutput
) -> Stage:
    """One task per bucket of each stream."""
    before = records_before_task(clean)
    tasks = []
    for stream in streams:
        counts, first = bins.of_split(stream.name, bins.rows), 0
        shards = bins.of_split(stream.name, bins.bins)
        total = sum(counts)
        for bucket, (ends, chosen, rows) in enumerate(
            zip(pairwise(stream.starts), shards, counts, strict=True)
        ):
            job = VslRowsJob(
                split=stream.name,
                bucket=bucket,
                buckets=stream.buckets_with(*ends),
                bucket_tokens=ends[1] - ends[0],
                bins=chosen,
                first_row=first,
                bucket_rows=rows,
                rows=total,
                seed=config.seed,
                records_before_task=before,
            )
            label = f"rows of {stream.name} bucket {bucket}"
            tasks.append(Task(label, job, (*job.buckets.inputs, chosen), 2 * job.bucket_tokens))
            first += rows
    return Stage(
        name="rows",
        version=2,
        function=_vsl_rows,
        tasks=tuple(tasks),
        settings={"format": "vsl", "seed": config.seed},
    )
