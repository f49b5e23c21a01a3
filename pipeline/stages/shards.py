"""The story of packing, which `prep run` and `prep repack` share: the shuffled stream of each split
becomes rows, then HDF5 shards; next to these inverse.parquet (where every document of a split is)
and data_params.json (what readers must know, with hashes).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config.prep import Config
from pipeline.core.manifest import Shard, fingerprint_of
from pipeline.core.storage import canonical_json
from pipeline.engine.ranges import Ranges, Shards, merge_ranges, slice_range
from pipeline.engine.shared import Shared
from pipeline.engine.stage import (
    DELTA,
    PLAIN,
    Inputs,
    Output,
    Result,
    RunStage,
    Stage,
    Task,
    arrow_output,
    bytes_output,
    parquet_output,
)
from pipeline.hdf5.format import CORPUS, DATA_PARAMS, LAYOUTS, VSL, FormatName
from pipeline.lineage.tables import INVERSE, STREAM_SCHEMA, segment_inverse, stream_inverse
from pipeline.runs import parts
from pipeline.runs.views.data_set import BinsOutput, InverseRunsOutput, PackOutput, RowsOutput
from pipeline.runs.views.documents import CleanOutput
from pipeline.stages.pack import PackVocabulary, corpus_stage, pack_rows
from pipeline.stages.rows import (
    bins_stage,
    dense_index,
    records_before_task,
    rows_stage,
    vsl_rows_stage,
)
from pipeline.stages.shuffle.stream import SplitStream
from pipeline.stages.tables import SplitCounts, split_accounts

ROWS_PER_GROUP = 1 << 16


@dataclass(frozen=True)
class StreamRunJob:
    """A bucket of a split's stream, and the stream token that it begins with."""

    path: str
    bucket: Shard
    start: int
    records_before_task: Shared[tuple[int, ...]]


def _stream_run(job: StreamRunJob, inputs: Inputs) -> Result:
    documents = inputs.table(job.bucket, ["doc_id", "tokens"])
    doc = dense_index(documents["doc_id"].to_numpy(), job.records_before_task)
    tokens = documents["tokens"].to_numpy()
    run = stream_inverse(doc, job.start + np.cumsum(tokens) - tokens)
    return Result((arrow_output(job.path, run),), {"entries": len(run)})


@dataclass(frozen=True)
class SegmentRunJob:
    """The lineage of an HDF5 shard of `vsl`, and the row of the data set that it begins with."""

    path: str
    lineage: Shard
    first_row: int


def _segment_run(job: SegmentRunJob, inputs: Inputs) -> Result:
    spans = pq.read_table(inputs.path(job.lineage))
    run = segment_inverse(
        spans["doc"].to_numpy(),
        spans["doc_token_start"].to_numpy(),
        spans["row"].to_numpy() + np.int64(job.first_row),
        spans["token_start"].to_numpy(),
    )
    return Result((arrow_output(job.path, run),), {"entries": len(run)})


def inverse_runs_stage(
    clean: CleanOutput, streams: Sequence[SplitStream], pack: PackOutput | None = None
) -> Stage:
    """One task per bucket of each stream; with `pack`, per shard, from the segments that were
    packed. Each sorts what it has by document."""
    before, tasks = records_before_task(clean), []
    for stream in streams:
        shards, sizes = stream.buckets, stream.bucket_tokens
        if pack:
            shards = tuple(pack.of_split(stream.name, pack.lineage))
            sizes = tuple(pack.of_split(stream.name, pack.rows))
        starts = [*accumulate(sizes, initial=0)][:-1]
        for number, (shard, start) in enumerate(zip(shards, starts, strict=True)):
            path = f"inverse/{stream.name}-{number:06d}.arrow"
            job: StreamRunJob | SegmentRunJob = StreamRunJob(path, shard, start, before)
            if pack:
                job = SegmentRunJob(path, shard, start)
            tasks.append(Task(f"documents of {shard.path}", job, (shard,)))
    function = _segment_run if pack else _stream_run
    return Stage(name="inverse_runs", version=1, function=function, tasks=tuple(tasks))


@dataclass(frozen=True)
class InverseJob:
    """Documents [low, high) of a split, and all runs of it: none where no document is long enough
    for a segment."""

    split: str
    part: int
    low: int
    high: int
    runs: Shards


def _inverse(job: InverseJob, inputs: Inputs) -> Result:
    none = np.zeros(0, np.int64)
    empty = segment_inverse(np.zeros(0, np.uint32), none, none, none)
    if job.runs.value:
        empty = inputs.open(job.runs.value[0]).empty
    table = slice_range(job.runs, "doc", (job.low, job.high), empty, inputs)
    columns = [column.to_numpy() for column in table.columns]
    join = stream_inverse if len(columns) == len(STREAM_SCHEMA) else segment_inverse
    return Result((inverse_output(job.split, job.part, join(*columns)),))


def inverse_output(split: str, part: int, table: pa.Table) -> Output:
    """A part of the inverse of one split."""
    encodings = {name: DELTA if name == "doc" else PLAIN for name in table.column_names}
    path = parts.part(f"hdf5/{split}/{INVERSE}", part)
    return parquet_output(path, table, encodings, ROWS_PER_GROUP)


def inverse_stage(
    clean: CleanOutput, streams: Sequence[SplitStream], runs: InverseRunsOutput, run: RunStage
) -> Stage:
    """One task per split and range of documents; what merges `inverse/` for them runs at once."""
    documents, several = sum(clean.records), []
    for stream in streams:
        prefix = f"inverse/{stream.name}-"
        count = -(-stream.documents // parts.RECORDS)
        bounds = tuple(documents * part // count for part in range(count + 1))
        several.append(Ranges(tuple(s for s in runs.runs if s.path.startswith(prefix)), bounds))
    tasks = []
    merged = merge_ranges("merge_inverse", "doc", several, run)
    for stream, ranges, of_parts in zip(streams, several, merged, strict=True):
        for part, shards in enumerate(of_parts):
            low, high = ranges.bounds[part : part + 2]
            job = InverseJob(stream.name, part, low, high, shards)
            label = f"part {part} of the inverse of {stream.name}"
            memory = parts.RECORD_MEMORY * (high - low)
            tasks.append(Task(label, job, (shards,), memory=memory))
    return Stage(name="inverse", version=2, function=_inverse, tasks=tuple(tasks))


@dataclass(frozen=True, kw_only=True)
class ParamsJob:
    """One split's shards with their lengths (rows, or tokens of a corpus), and its counts."""

    shards: tuple[Shard, ...]
    lengths: tuple[int, ...]
    format: FormatName
    vocab_size: int
    eos_id: int
    bos_id: int | None
    seed: int
    split: str
    counts: SplitCounts


def _params(job: ParamsJob, inputs: Inputs) -> Result:
    """In the spirit of Model Zoo's."""
    names = [shard.path.rpartition("/")[2] for shard in job.shards]
    files = [
        {"name": n, "n_examples": r, "hash": s.hash, "content_hash": s.content_hash}
        for n, r, s in zip(names, job.lengths, job.shards, strict=True)
    ]
    content = fingerprint_of({"files": [(f["name"], f["content_hash"]) for f in files]})
    value = {
        "format": job.format,
        "features": list(LAYOUTS[job.format].features),
        "max_sequence_length": job.counts["max_sequence_length"],
        "n_examples": sum(job.lengths),
        "vocab_size": job.vocab_size,
        "eos_id": job.eos_id,
        "pad_id": job.eos_id,
        **({} if job.bos_id is None else {"bos_id": job.bos_id}),
        "rows_globally_shuffled": True,
        "seed": job.seed,
        "split": job.split,
        "files": files,
        "dataset_hash": content,
        "documents": job.counts["documents"],
        "h5_dataset_stats": _statistics(job),
    }
    path = f"hdf5/{job.split}/{DATA_PARAMS}"
    return Result((bytes_output(path, canonical_json(value)),))


def _statistics(job: ParamsJob) -> dict[str, Any]:
    """Names as in Model Zoo's statistics."""
    counts = job.counts
    if job.format == CORPUS.name:
        return {"num_tokens": counts["tokens"], "stream_tokens": counts["tokens"]}
    value: dict[str, Any] = {
        "num_sequences": counts["rows"],
        "num_tokens": counts["rows"] * counts["max_sequence_length"],
        "non_pad_tokens": counts["mask_sum"],
        "loss_valid_tokens": counts["mask_sum"],
        "stream_tokens": counts["tokens"],
    }
    if job.format == VSL.name:
        value["num_pad_tokens"] = counts["padding"]
        value["num_sequences_before_packing"] = counts["segments"]
    return value


def params_stage(
    config: Config,
    vocabulary: PackVocabulary,
    streams: Sequence[SplitStream],
    pack: PackOutput,
    counts: dict[str, SplitCounts],
) -> Stage:
    """One data_params.json per split; `counts` are those of `split_accounts`."""
    tasks = []
    lengths = pack.tokens if config.pack.format == CORPUS.name else pack.rows
    for stream in streams:
        shards = tuple(pack.of_split(stream.name, pack.data))
        job = ParamsJob(
            shards=shards,
            lengths=tuple(pack.of_split(stream.name, lengths)),
            format=config.pack.format,
            vocab_size=vocabulary.vocab_size,
            eos_id=vocabulary.eos_id,
            bos_id=vocabulary.bos_id,
            seed=config.seed,
            split=stream.name,
            counts=counts[stream.name],
        )
        tasks.append(Task(f"parameters of {stream.name}", job, shards))
    return Stage(name="params", version=2, function=_params, tasks=tuple(tasks))


def pack_streams(
    config: Config,
    vocabulary: PackVocabulary,
    clean: CleanOutput,
    streams: Sequence[SplitStream],
    run: RunStage,
) -> dict[str, SplitCounts]:
    """Pack the shuffled stream of every split as `pack.format` says; returns what was packed. If it
    can, the stream is inverted before, so that it need not stay meanwhile."""
    if config.pack.format == VSL.name:
        bins = BinsOutput(run(bins_stage(config, streams)))
        rows = RowsOutput(run(vsl_rows_stage(config, clean, streams, bins)))
        pack = pack_rows(config, vocabulary, streams, rows, run)
        _invert(clean, streams, run, pack)
    elif config.pack.format == CORPUS.name:
        _invert(clean, streams, run)
        pack = PackOutput(run(corpus_stage(config, vocabulary, clean, streams)))
    else:
        rows = RowsOutput(run(rows_stage(config, vocabulary.eos_id, clean, streams)))
        _invert(clean, streams, run)
        pack = pack_rows(config, vocabulary, streams, rows, run)
    counts = split_accounts(config, streams, pack)
    run(params_stage(config, vocabulary, streams, pack, counts))
    return counts


def _invert(
    clean: CleanOutput,
    streams: Sequence[SplitStream],
    run: RunStage,
    pack: PackOutput | None = None,
) -> None:
    runs = InverseRunsOutput(run(inverse_runs_stage(clean, streams, pack)))
    run(inverse_stage(clean, streams, runs, run))
