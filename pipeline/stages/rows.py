"""Rows of the `sample` format: each bucket of a split's stream cut into windows of MSL + 1 tokens,
in their final order.

Stream row k is stream[k * MSL : k * MSL + MSL + 1]; it belongs to the bucket that holds its first
token and borrows up to MSL + 1 tokens of the buckets that follow. Its position in the data set is
the inverse of a keyed bijection, so each bucket is written sorted by position and the last stage
only slices: nothing is read twice and no task sees the whole stream.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64
from pipeline.config import Config
from pipeline.core.manifest import Shard, StageManifest, TaskRecord
from pipeline.packing.rows import Tokens
from pipeline.provenance.inverse import row_positions
from pipeline.provenance.lineage import StreamDocuments, spans
from pipeline.stage import Inputs, Output, Result, Stage, Task, arrow_output
from pipeline.stages.tokenize import list_lengths, token_lists


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


@dataclass(frozen=True)
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
    records_before_task: tuple[int, ...]


def _rows(job: RowsJob, inputs: Inputs) -> Result:
    """Two shards sorted by position: windows (position, stream_row, window, tokens) and spans."""
    length = job.max_sequence_length
    end = job.bucket_start + job.bucket_tokens
    stream_rows = np.arange(-(-job.bucket_start // length), min(-(-end // length), job.rows))
    stream_rows, position = in_order(stream_rows, job.rows, job.seed, job.split)
    tables = [inputs.table(shard, ["doc_id", "tokens"]) for shard in job.buckets]
    windows = _windows(_tokens(job, tables), stream_rows * length - job.bucket_start, length + 1)
    table = pa.table(
        {
            "position": pa.array(position),
            "stream_row": pa.array(stream_rows),
            "window": pa.array(np.minimum(length + 1, job.stream_tokens - stream_rows * length)),
            "tokens": token_lists(windows.reshape(-1), np.full(len(stream_rows), length + 1)),
        }
    )
    lineage = spans(_documents(job, tables), stream_rows, length)
    outputs = row_shards(job.split, job.bucket, table, lineage)
    return Result(outputs, {"rows": len(stream_rows), "split": job.split})


def in_order(stream_rows: I64, rows: int, seed: int, split: str) -> tuple[I64, I64]:
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
        arrow_output(f"{stem}.windows.arrow", rows),
        arrow_output(f"{stem}.spans.arrow", lineage),
    )


def _tokens(job: RowsJob, tables: list[pa.Table]) -> Tokens:
    """Tokens from the bucket's start to the end of its last window, EOS behind the stream's end."""
    dtype = tables[0]["tokens"].type.value_type.to_pandas_dtype()
    wanted = job.bucket_tokens + job.max_sequence_length + 1
    tokens: npt.NDArray[Any] = np.full(wanted, job.eos_id, dtype)
    filled = 0
    for table in tables:
        for chunk in table["tokens"].chunks:
            part = chunk.flatten().to_numpy()[: wanted - filled]
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
    doc_id: npt.NDArray[np.uint64], records_before_task: tuple[int, ...]
) -> npt.NDArray[np.uint32]:
    """Rows of documents.parquet."""
    before = np.array(records_before_task, np.uint64)
    task = (doc_id >> np.uint64(32)).astype(np.int64)
    return (before[task] + (doc_id & np.uint64(0xFFFFFFFF))).astype(np.uint32)


def _windows(tokens: Tokens, starts_R: I64, width: int) -> Tokens:
    """(R, width) windows."""
    if not len(starts_R):
        return np.zeros((0, width), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, width)[starts_R]


def split_streams(gather: StageManifest) -> list[SplitStream]:
    """The streams that the gather left, in its order; a stream of one token has no row."""
    tasks: dict[str, list[TaskRecord]] = {}
    for task in gather.tasks:
        name = task.shards[0].path.removeprefix("stream/").rpartition("-")[0]
        tasks.setdefault(name, []).append(task)
    return [
        SplitStream(
            name,
            tuple(task.shards[0] for task in buckets),
            tuple(task.counters["tokens"] for task in buckets),
            sum(task.counters["documents"] for task in buckets),
        )
        for name, buckets in tasks.items()
        if any(task.counters["tokens"] for task in buckets)
    ]


def records_before_task(clean: StageManifest) -> tuple[int, ...]:
    """Rows of documents.parquet before each clean task's first record."""
    counts = [task.counters["records"] for task in clean.tasks]
    return tuple(int(n) for n in np.cumsum([0, *counts[:-1]]))


def rows_stage(config: Config, eos_id: int, clean: StageManifest, gather: StageManifest) -> Stage:
    """One task per bucket of each stream."""
    length = config.pack.max_sequence_length
    before = records_before_task(clean)
    tasks = []
    for stream in split_streams(gather):
        start = 0
        for bucket, tokens in enumerate(stream.bucket_tokens):
            shards = _shards_needed(stream, bucket, length + 1)
            job = RowsJob(
                stream.name, bucket, shards, start, tokens, stream.tokens, stream.rows(length),
                length, eos_id, config.seed, before,
            )  # fmt: skip
            tasks.append(Task(f"rows of {stream.name} bucket {bucket}", job, shards, 2 * tokens))
            start += tokens
    settings = {"max_sequence_length": length, "seed": config.seed}
    return Stage("rows", 1, _rows, tuple(tasks), settings)


def _shards_needed(stream: SplitStream, bucket: int, beyond: int) -> tuple[Shard, ...]:
    """The bucket and as many that follow as hold `beyond` more tokens."""
    last, following = bucket + 1, 0
    while last < len(stream.buckets) and following < beyond:
        following += stream.bucket_tokens[last]
        last += 1
    return stream.buckets[bucket:last]
