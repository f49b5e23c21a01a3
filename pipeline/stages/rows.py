"""Rows: each bucket of a split's stream cut into windows of MSL + 1 tokens, in their final order.

Stream row k is stream[k * MSL : k * MSL + MSL + 1]; it belongs to the bucket that holds its first
token and borrows up to MSL + 1 tokens of the buckets that follow. Its position in the data set is
the inverse of a keyed bijection, so each bucket is written sorted by position and the last stage
only slices: nothing is read twice and no task sees the whole stream.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import layout
from pipeline.config import Config
from pipeline.core import rng
from pipeline.core.manifest import Shard, StageManifest
from pipeline.core.permutation import invert
from pipeline.provenance.lineage import StreamDocuments, spans
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.stages.tokenize import flat_tokens, list_lengths, token_lists
from pipeline.tokenizers import gpt2_bpe

I64 = npt.NDArray[np.int64]


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
    seed: int
    records_before_task: tuple[int, ...]


def _rows(job: RowsJob, inputs: Inputs) -> Result:
    """Two shards sorted by position: windows (position, stream_row, window, tokens) and spans."""
    tokens, documents = _read(job, inputs)
    length = job.max_sequence_length
    end = job.bucket_start + job.bucket_tokens
    stream_rows = np.arange(-(-job.bucket_start // length), min(-(-end // length), job.rows))
    position = invert(stream_rows, job.rows, rng.key(job.seed, "rows", job.split)).astype(np.int64)
    order = np.argsort(position)
    stream_rows, position = stream_rows[order], position[order]
    windows = _windows(tokens, stream_rows * length - job.bucket_start, length + 1)
    table = pa.table(
        {
            "position": pa.array(position),
            "stream_row": pa.array(stream_rows),
            "window": pa.array(np.minimum(length + 1, job.stream_tokens - stream_rows * length)),
            "tokens": token_lists(windows.reshape(-1), np.full(len(stream_rows), length + 1)),
        }
    )
    lineage = spans(documents, stream_rows, length)
    lineage = lineage.append_column("position", pa.array(position[lineage["row"].to_numpy()]))
    stem = f"rows/{job.split}-{job.bucket:06d}"
    outputs = (
        arrow_output(f"{stem}.windows.arrow", table),
        arrow_output(f"{stem}.spans.arrow", lineage.drop_columns(["row"])),
    )
    return Result(outputs, {"rows": len(stream_rows)})


def _read(job: RowsJob, inputs: Inputs) -> tuple[npt.NDArray[np.uint16], StreamDocuments]:
    """Tokens from the bucket's start on, and the documents they belong to."""
    tables = [inputs.table(shard, ["doc_id", "tokens"]) for shard in job.buckets]
    wanted = job.bucket_tokens + job.max_sequence_length + 1
    tokens = np.concatenate([flat_tokens(table["tokens"]) for table in tables])[:wanted]
    lengths = np.concatenate([list_lengths(table["tokens"]) for table in tables])
    doc_id = np.concatenate([table["doc_id"].to_numpy() for table in tables])
    before = np.array(job.records_before_task, np.uint64)
    task = (doc_id >> np.uint64(32)).astype(np.int64)
    dense = (before[task] + (doc_id & np.uint64(0xFFFFFFFF))).astype(np.uint32)
    ends = job.bucket_start + np.cumsum(lengths)
    return tokens, StreamDocuments(dense, ends - lengths, ends, job.stream_tokens)


def _windows(tokens: npt.NDArray[np.uint16], starts_R: I64, width: int) -> npt.NDArray[np.uint16]:
    """(R, width) windows, filled up with EOS behind the end of the stream."""
    need = int(starts_R.max()) + width if len(starts_R) else 0
    padding = np.full(max(0, need - len(tokens)), gpt2_bpe.EOS_ID, np.uint16)
    padded = np.concatenate([tokens, padding])
    if not len(starts_R):
        return np.zeros((0, width), np.uint16)
    return np.lib.stride_tricks.sliding_window_view(padded, width)[starts_R]


def split_streams(gather: StageManifest) -> list[SplitStream]:
    """The streams that the gather left, in split order; a stream of one token has no row."""
    streams = []
    for name in layout.SPLITS:
        tasks = [t for t in gather.tasks if t.shards[0].path.startswith(f"stream/{name}-")]
        shards = tuple(t.shards[0] for t in tasks)
        tokens = tuple(t.counters["tokens"] for t in tasks)
        documents = sum(t.counters["documents"] for t in tasks)
        streams.append(SplitStream(name, shards, tokens, documents))
    return [stream for stream in streams if stream.tokens]


def records_before_task(clean: StageManifest) -> tuple[int, ...]:
    """Rows of documents.parquet before each clean task's first record."""
    counts = [task.counters["records"] for task in clean.tasks]
    return tuple(int(n) for n in np.cumsum([0, *counts[:-1]]))


def rows_stage(config: Config, clean: StageManifest, gather: StageManifest) -> Stage:
    """One task per bucket of each stream."""
    length = config.pack.max_sequence_length
    before = records_before_task(clean)
    tasks = []
    for stream in split_streams(gather):
        for bucket, tokens in enumerate(stream.bucket_tokens):
            shards = _shards_needed(stream, bucket, length + 1)
            job = RowsJob(
                stream.name,
                bucket,
                shards,
                sum(stream.bucket_tokens[:bucket]),
                tokens,
                stream.tokens,
                stream.rows(length),
                length,
                config.seed,
                before,
            )
            tasks.append(Task(f"rows of {stream.name} bucket {bucket}", job, shards, 2 * tokens))
    settings = {"max_sequence_length": length, "seed": config.seed}
    return Stage("rows", 1, _rows, tuple(tasks), settings)


def _shards_needed(stream: SplitStream, bucket: int, beyond: int) -> tuple[Shard, ...]:
    """The bucket and as many that follow as hold `beyond` more tokens."""
    last = bucket + 1
    while last < len(stream.buckets) and sum(stream.bucket_tokens[bucket + 1 : last]) < beyond:
        last += 1
    return stream.buckets[bucket:last]
