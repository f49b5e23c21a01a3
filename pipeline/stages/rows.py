"""Rows of the `sample` and `vsl` formats, one task per bucket of a split's stream.

`sample`: row k is stream[k * MSL : k * MSL + MSL + 1]; it belongs to the bucket of its first token
and borrows up to MSL + 1 tokens of the buckets that follow. `vsl`: whole documents side by side;
`bins` first chooses a row for every segment from the lengths alone. The position of a row in the
data set is the inverse of a keyed bijection, and buckets are written sorted by it, so `pack` only
slices.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

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
from pipeline.runs.views import BinsOutput, CleanOutput, GatherOutput
from pipeline.stages.tokenize import flat_tokens, list_lengths, token_lists


@dataclass(frozen=True)
class SplitStream:
    """A split's stream: its bucket shards with their token and document counts, in order."""

    name: str
    buckets: tuple[Shard, ...]
    bucket_tokens: tuple[int, ...]
    documents: int

    @property
    def tokens(self) -> int:
        """T: all tokens, one EOS per document included."""
        return sum(self.bucket_tokens)

    def rows(self, max_sequence_length: int) -> int:
        """ceil((T - 1) / MSL), the number of packed sequences."""
        return -(-max(0, self.tokens - 1) // max_sequence_length)


@dataclass(frozen=True, kw_only=True)
class RowsJob:
    """One bucket and those that follow it as far as its last window reaches."""

    split: str
    bucket: int
    buckets: tuple[Shard, ...]
    bucket_start: int
    bucket_tokens: int
    stream_tokens: int
    rows: int
    max_sequence_length: int
    eos_id: int
    seed: int
    records_before_task: Shared[tuple[int, ...]]


def _rows(job: RowsJob, inputs: Inputs) -> Result:
    """Two shards sorted by position: windows (position, stream_row, window, tokens) and spans."""
    length = job.max_sequence_length
    end = job.bucket_start + job.bucket_tokens
    stream_rows = np.arange(-(-job.bucket_start // length), min(-(-end // length), job.rows))
    stream_rows, position = sort_by_position(stream_rows, job.rows, job.seed, job.split)
    last = end + length + 1
    tables, _ = read_stream(job.buckets, job.bucket_start, job.bucket_start, last, inputs)
    windows = _windows(_tokens(job, tables), stream_rows * length - job.bucket_start, length + 1)
    table = pa.table(
        {
            "position": pa.array(position),
            "stream_row": pa.array(stream_rows),
            "window": pa.array(np.minimum(length + 1, job.stream_tokens - stream_rows * length)),
            "tokens": token_lists(windows.reshape(-1), np.full(len(stream_rows), length + 1)),
        }
    )
    lineage = make_lineage(_documents(job, tables), stream_rows, length)
    outputs = row_shards(job.split, job.bucket, table, lineage)
    return Result(outputs, {"rows": len(stream_rows), "split": job.split})


def read_stream(
    buckets: Iterable[Shard], begin: int, first: int, stop: int, inputs: Inputs
) -> tuple[list[pa.Table], int]:
    """The documents (doc_id, tokens) with stream tokens [first, stop), out of buckets in a row of
    which the first begins at stream token `begin`; and the token that they begin with."""
    tables, starts = [], []
    for shard in buckets:
        documents = inputs.open(shard)
        ends = begin + np.cumsum(np.append(0, documents.lengths("tokens")))
        low = int(np.searchsorted(ends[1:], first, side="right"))
        high = max(low, int(np.searchsorted(ends[:-1], stop)))
        tables.append(documents.read(["doc_id", "tokens"], low, high))
        starts.append(int(ends[low]))
        begin = int(ends[-1])
    return tables, starts[0]


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


def _tokens(job: RowsJob, tables: list[pa.Table]) -> Tokens:
    """Tokens from the bucket's start to the end of its last window, EOS behind the stream's end."""
    dtype = tables[0]["tokens"].type.value_type.to_pandas_dtype()
    count = job.bucket_tokens + job.max_sequence_length + 1
    tokens: npt.NDArray[Any] = np.full(count, job.eos_id, dtype)
    filled = 0
    for table in tables:
        for chunk in table["tokens"].chunks:
            part = chunk.flatten().to_numpy()[: count - filled]
            tokens[filled : filled + len(part)] = part
            filled += len(part)
    return tokens


def _documents(job: RowsJob, tables: list[pa.Table]) -> StreamDocuments:
    """The documents that those tokens belong to."""
    lengths = np.concatenate([list_lengths(table["tokens"]) for table in tables])
    doc_id = np.concatenate([table["doc_id"].to_numpy() for table in tables])
    ends = job.bucket_start + np.cumsum(lengths)
    dense = dense_index(doc_id, job.records_before_task)
    return StreamDocuments(dense, ends - lengths, ends, job.stream_tokens)


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


def split_streams(gather: GatherOutput) -> list[SplitStream]:
    """The streams that the gather left, in its order; a stream of one token has no row."""
    return [
        SplitStream(
            name,
            tuple(gather.of_split(name, gather.buckets)),
            tuple(gather.of_split(name, gather.tokens)),
            sum(gather.of_split(name, gather.documents)),
        )
        for name in dict.fromkeys(gather.split)
        if any(gather.of_split(name, gather.tokens))
    ]


def records_before_task(clean: CleanOutput) -> Shared[tuple[int, ...]]:
    """Rows of documents.parquet before each clean task's first record."""
    return Shared(tuple(accumulate(clean.records[:-1], initial=0)))


def rows_stage(config: Config, eos_id: int, clean: CleanOutput, gather: GatherOutput) -> Stage:
    """One task per bucket of each stream."""
    length = config.pack.max_sequence_length
    before = records_before_task(clean)
    tasks = []
    for stream in split_streams(gather):
        start, total, rows = 0, stream.tokens, stream.rows(length)
        for bucket, tokens in enumerate(stream.bucket_tokens):
            shards = _shards_needed(stream, bucket, length + 1)
            job = RowsJob(
                split=stream.name,
                bucket=bucket,
                buckets=shards,
                bucket_start=start,
                bucket_tokens=tokens,
                stream_tokens=total,
                rows=rows,
                max_sequence_length=length,
                eos_id=eos_id,
                seed=config.seed,
                records_before_task=before,
            )
            tasks.append(Task(f"rows of {stream.name} bucket {bucket}", job, shards, 2 * tokens))
            start += tokens
    settings = {"max_sequence_length": length, "seed": config.seed}
    return Stage(name="rows", version=1, function=_rows, tasks=tuple(tasks), settings=settings)


def _shards_needed(stream: SplitStream, bucket: int, beyond: int) -> tuple[Shard, ...]:
    """The bucket and as many that follow as hold `beyond` more tokens."""
    last, following = bucket + 1, 0
    while last < len(stream.buckets) and following < beyond:
        following += stream.bucket_tokens[last]
        last += 1
    return stream.buckets[bucket:last]


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
    lengths = inputs.open(job.stream).lengths("tokens")
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


def bins_stage(config: Config, gather: GatherOutput) -> Stage:
    """One task per bucket of each stream."""
    length, packer = config.pack.max_sequence_length, config.pack.packer or DEFAULT_PACKER
    tasks = [
        Task(
            f"bins of {stream.name} bucket {bucket}",
            BinsJob(stream.name, bucket, shard, length, packer),
            (shard,),
            2 * tokens,
        )
        for stream in split_streams(gather)
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
    stream: Shard
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
    config: Config, clean: CleanOutput, gather: GatherOutput, bins: BinsOutput
) -> Stage:
    """One task per bucket of each stream."""
    before = records_before_task(clean)
    tasks = []
    for stream in split_streams(gather):
        counts, first = bins.of_split(stream.name, bins.rows), 0
        shards = zip(stream.buckets, bins.of_split(stream.name, bins.bins), counts, strict=True)
        total = sum(counts)
        for bucket, (shard, chosen, rows) in enumerate(shards):
            job = VslRowsJob(
                split=stream.name,
                bucket=bucket,
                stream=shard,
                bins=chosen,
                first_row=first,
                bucket_rows=rows,
                rows=total,
                seed=config.seed,
                records_before_task=before,
            )
            label = f"rows of {stream.name} bucket {bucket}"
            tasks.append(Task(label, job, (shard, chosen), 2 * stream.bucket_tokens[bucket]))
            first += rows
    return Stage(
        name="rows",
        version=1,
        function=_vsl_rows,
        tasks=tuple(tasks),
        settings={"format": "vsl", "seed": config.seed},
    )
