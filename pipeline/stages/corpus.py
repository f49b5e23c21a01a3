"""Pack for the `corpus` format: a split's stream cut into shards as it is, each with its lineage.

A shard's lineage says which tokens of it belong to which document (`lineage.CORPUS_SCHEMA`).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.config import Config
from pipeline.core.manifest import Shard, StageManifest
from pipeline.hdf5.format import Compression
from pipeline.packing.rows import Tokens
from pipeline.provenance.lineage import CORPUS_SCHEMA
from pipeline.stage import Inputs, Result, Stage, Task
from pipeline.stages.pack import (
    SOFTWARE,
    PackVocabulary,
    compression_of,
    hdf5_output,
    lineage_output,
    pack_settings,
)
from pipeline.stages.rows import dense_index, records_before_task, split_streams
from pipeline.stages.tokenize import list_lengths


@dataclass(frozen=True)
class CorpusJob:
    """Tokens [first, first + count) of a stream, and the buckets that hold them; the first of those
    begins at stream token `buckets_start`."""

    split: str
    index: int
    buckets: tuple[Shard, ...]
    buckets_start: int
    first: int
    count: int
    compression: Compression
    records_before_task: tuple[int, ...]


def _corpus(job: CorpusJob, inputs: Inputs) -> Result:
    tables = [inputs.table(shard, ["doc_id", "tokens"]) for shard in job.buckets]
    tokens = _tokens(job, tables)
    outputs = (
        hdf5_output(job.split, job.index, tokens, job.compression),
        lineage_output(job.split, job.index, _lineage(job, tables)),
    )
    counters = {"tokens": job.count, "rows": 0, "mask_sum": 0, "split": job.split}
    return Result(outputs, counters)


def _tokens(job: CorpusJob, tables: list[pa.Table]) -> Tokens:
    dtype = tables[0]["tokens"].type.value_type.to_pandas_dtype()
    parts = [np.zeros(0, dtype)]
    place = job.buckets_start
    for table in tables:
        for chunk in table["tokens"].chunks:
            values = chunk.flatten()
            begin = min(len(values), max(0, job.first - place))
            end = min(len(values), max(0, job.first + job.count - place))
            parts.append(values[begin:end].to_numpy())
            place += len(values)
    return np.concatenate(parts)


def _lineage(job: CorpusJob, tables: list[pa.Table]) -> pa.Table:
    lengths = np.concatenate([list_lengths(table["tokens"]) for table in tables])
    doc_id = np.concatenate([table["doc_id"].to_numpy() for table in tables])
    ends = job.buckets_start + np.cumsum(lengths)
    starts = ends - lengths
    here = np.flatnonzero((ends > job.first) & (starts < job.first + job.count))
    begin = np.maximum(starts[here], job.first)
    end = np.minimum(ends[here], job.first + job.count)
    columns = [
        begin - job.first, end - job.first, dense_index(doc_id[here], job.records_before_task),
        begin - starts[here],
    ]  # fmt: skip
    return pa.table([pa.array(c) for c in columns], schema=CORPUS_SCHEMA)


def corpus_stage(
    config: Config, vocabulary: PackVocabulary, clean: StageManifest, gather: StageManifest
) -> Stage:
    """One task per shard of each split."""
    before = records_before_task(clean)
    per_shard = max(1, config.hdf5.shard_bytes // (2 if vocabulary.vocab_size <= 1 << 16 else 4))
    tasks = []
    for stream in split_streams(gather):
        starts = np.cumsum([0, *stream.bucket_tokens])
        for index, first in enumerate(range(0, stream.tokens, per_shard)):
            count = min(per_shard, stream.tokens - first)
            low = int(np.searchsorted(starts, first, side="right")) - 1
            high = int(np.searchsorted(starts, first + count, side="left"))
            buckets = stream.buckets[low:high]
            job = CorpusJob(
                stream.name, index, buckets, int(starts[low]), first, count,
                compression_of(config), before,
            )  # fmt: skip
            tasks.append(Task(f"{stream.name} shard {index}", job, buckets, 2 * count))
    return Stage("pack", 4, _corpus, tuple(tasks), pack_settings(config, vocabulary), SOFTWARE)
