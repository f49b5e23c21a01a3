"""Inverse: where every document of a split stands, by document -> hdf5/SPLIT/inverse.parquet."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import Config
from pipeline.core.manifest import Shard, StageManifest
from pipeline.hdf5.format import VSL
from pipeline.provenance.inverse import INVERSE, segment_inverse, stream_inverse
from pipeline.provenance.lineage import SCHEMA
from pipeline.stage import DELTA, PLAIN, Inputs, Output, Result, Stage, Task, parquet_output
from pipeline.stages.rows import dense_index, records_before_task, split_streams
from pipeline.stages.tokenize import list_lengths

ROWS_PER_GROUP = 1 << 16


@dataclass(frozen=True)
class StreamInverseJob:
    """The buckets of a split's stream, in order."""

    split: str
    buckets: tuple[Shard, ...]
    records_before_task: tuple[int, ...]


def _stream_inverse(job: StreamInverseJob, inputs: Inputs) -> Result:
    doc, lengths = [], [np.zeros(0, np.int64)]
    for shard in job.buckets:
        table = inputs.table(shard, ["doc_id", "tokens"])
        doc.append(dense_index(table["doc_id"].to_numpy(), job.records_before_task))
        lengths.append(list_lengths(table["tokens"]))
    tokens = np.concatenate(lengths)
    table = stream_inverse(np.concatenate(doc), np.cumsum(tokens) - tokens)
    return Result((inverse_output(job.split, table),))


@dataclass(frozen=True)
class SegmentInverseJob:
    """The lineage of the shards of a split of `vsl`, and the rows of each."""

    split: str
    lineage: tuple[Shard, ...]
    rows: tuple[int, ...]


def _segment_inverse(job: SegmentInverseJob, inputs: Inputs) -> Result:
    first = np.cumsum([0, *job.rows])
    parts = [SCHEMA.empty_table(), *(pq.read_table(inputs.path(shard)) for shard in job.lineage)]
    row = [part["row"].to_numpy() + start for part, start in zip(parts, [0, *first], strict=False)]
    spans = pa.concat_tables(parts)
    table = segment_inverse(
        spans["doc"].to_numpy(), spans["doc_token_start"].to_numpy(), np.concatenate(row),
        spans["token_start"].to_numpy(),
    )  # fmt: skip
    return Result((inverse_output(job.split, table),))


def inverse_output(split: str, table: pa.Table) -> Output:
    """The inverse of one split."""
    encodings = {name: DELTA if name == "doc" else PLAIN for name in table.column_names}
    return parquet_output(f"hdf5/{split}/{INVERSE}", table, encodings, ROWS_PER_GROUP)


def inverse_stage(
    config: Config, clean: StageManifest, gather: StageManifest, pack: StageManifest
) -> Stage:
    """One task per split."""
    segments = config.pack.format == VSL.name
    tasks = []
    for stream in split_streams(gather):
        job: StreamInverseJob | SegmentInverseJob
        if segments:
            records = [task for task in pack.tasks if task.counters["split"] == stream.name]
            shards = tuple(task.shards[1] for task in records)
            rows = tuple(task.counters["rows"] for task in records)
            job = SegmentInverseJob(stream.name, shards, rows)
        else:
            shards = stream.buckets
            job = StreamInverseJob(stream.name, shards, records_before_task(clean))
        tasks.append(Task(f"inverse of {stream.name}", job, shards))
    function = _segment_inverse if segments else _stream_inverse
    return Stage("inverse", 1, function, tuple(tasks))
