"""Rows of the `vsl` format: whole documents side by side, none crossing into another.

Two rounds per bucket of a split's stream: bins chooses a row for every segment from the documents'
lengths alone; with the rows of all buckets known, rows writes each bucket's segments sorted by the
position of their row. Memory is one bucket, whatever the size of the data.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.config import Config
from pipeline.core.manifest import Shard, StageManifest
from pipeline.packing import PACKERS, Placement, Segments, fold, gather_segments, place
from pipeline.provenance.lineage import SCHEMA as LINEAGE_SCHEMA
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.stages.rows import (
    dense_index,
    in_order,
    records_before_task,
    row_shards,
    split_streams,
)
from pipeline.stages.tokenize import flat_tokens, list_lengths, token_lists

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
    lengths = list_lengths(inputs.table(job.stream, ["tokens"])["tokens"])
    segments = fold(lengths, job.max_sequence_length)
    placed = place(PACKERS[job.packer](segments.labels, job.max_sequence_length), segments.labels)
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


def bins_stage(config: Config, gather: StageManifest) -> Stage:
    """One task per bucket of each stream."""
    length, packer = config.pack.max_sequence_length, config.pack.packer or DEFAULT_PACKER
    tasks = [
        Task(f"bins of {stream.name} bucket {bucket}",
             BinsJob(stream.name, bucket, shard, length, packer), (shard,), 2 * tokens)
        for stream in split_streams(gather)
        for bucket, (shard, tokens) in enumerate(
            zip(stream.buckets, stream.bucket_tokens, strict=True))
    ]  # fmt: skip
    settings = {"max_sequence_length": length, "packer": packer}
    return Stage("bins", 1, _bins, tuple(tasks), settings)


@dataclass(frozen=True)
class VslRowsJob:
    """One bucket, its bins, and its rows' place among all rows of the split."""

    split: str
    bucket: int
    stream: Shard
    bins: Shard
    first_row: int
    bucket_rows: int
    rows: int
    seed: int
    records_before_task: tuple[int, ...]


def _vsl_rows(job: VslRowsJob, inputs: Inputs) -> Result:
    """Two shards sorted by position: rows (position, stream_row, labels of its segments, tokens of
    its segments, labels + 1 each) and spans."""
    stream_rows = np.arange(job.first_row, job.first_row + job.bucket_rows)
    stream_rows, position = in_order(stream_rows, job.rows, job.seed, job.split)
    documents = inputs.table(job.stream, ["doc_id", "tokens"])
    segments, placed = _segments(job, inputs, stream_rows)
    lengths = list_lengths(documents["tokens"])
    first_token = (np.cumsum(lengths) - lengths)[segments.document] + segments.start
    gathered = gather_segments(flat_tokens(documents["tokens"]), first_token, segments.labels)
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
    dense = dense_index(documents["doc_id"].to_numpy(), job.records_before_task)
    columns = [
        placed.row.astype(np.int32), placed.slot.astype(np.int32),
        (placed.slot + segments.labels).astype(np.int32), dense[segments.document],
        segments.start, stream_rows[placed.row],
    ]  # fmt: skip
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
    config: Config, clean: StageManifest, gather: StageManifest, bins: StageManifest
) -> Stage:
    """One task per bucket of each stream."""
    before = records_before_task(clean)
    tasks = []
    for stream in split_streams(gather):
        packed = [task for task in bins.tasks if task.counters["split"] == stream.name]
        total, first = sum(task.counters["rows"] for task in packed), 0
        for bucket, (shard, task) in enumerate(zip(stream.buckets, packed, strict=True)):
            rows = task.counters["rows"]
            chosen = task.shards[0]
            job = VslRowsJob(
                stream.name, bucket, shard, chosen, first, rows, total, config.seed, before
            )
            label = f"rows of {stream.name} bucket {bucket}"
            tasks.append(Task(label, job, (shard, chosen), 2 * stream.bucket_tokens[bucket]))
            first += rows
    return Stage("rows", 1, _vsl_rows, tuple(tasks), {"format": "vsl", "seed": config.seed})
