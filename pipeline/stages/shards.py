"""The story of packing, which `prep run` and `prep repack` share: the shuffled stream of each split
becomes rows, then HDF5 shards; next to these inverse.parquet (where every document of a split is)
and data_params.json (what readers must know, with hashes).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config.prep import Config
from pipeline.core.manifest import Shard, fingerprint_of
from pipeline.core.storage import canonical_json
from pipeline.engine.shared import Shared
from pipeline.engine.stage import (
    DELTA,
    PLAIN,
    Inputs,
    Output,
    Result,
    Stage,
    Task,
    bytes_output,
    parquet_output,
)
from pipeline.hdf5.format import CORPUS, DATA_PARAMS, LAYOUTS, VSL, FormatName
from pipeline.lineage.tables import INVERSE, SCHEMA, segment_inverse, stream_inverse
from pipeline.runs.views import BinsOutput, CleanOutput, GatherOutput, PackOutput, RowsOutput
from pipeline.stages.pack import PackVocabulary, corpus_stage, pack_rows
from pipeline.stages.rows import (
    bins_stage,
    dense_index,
    records_before_task,
    rows_stage,
    split_streams,
    vsl_rows_stage,
)
from pipeline.stages.shuffle.gather import RunStage
from pipeline.stages.tables import SplitCounts, split_accounts
from pipeline.stages.tokenize import list_lengths

ROWS_PER_GROUP = 1 << 16


@dataclass(frozen=True)
class StreamInverseJob:
    """The buckets of a split's stream, in order."""

    split: str
    buckets: tuple[Shard, ...]
    records_before_task: Shared[tuple[int, ...]]


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
        spans["doc"].to_numpy(),
        spans["doc_token_start"].to_numpy(),
        np.concatenate(row),
        spans["token_start"].to_numpy(),
    )
    return Result((inverse_output(job.split, table),))


def inverse_output(split: str, table: pa.Table) -> Output:
    """The inverse of one split."""
    encodings = {name: DELTA if name == "doc" else PLAIN for name in table.column_names}
    return parquet_output(f"hdf5/{split}/{INVERSE}", table, encodings, ROWS_PER_GROUP)


def inverse_stage(
    clean: CleanOutput, gather: GatherOutput, pack: PackOutput | None = None
) -> Stage:
    """One task per split; with `pack`, from the segments that were packed."""
    tasks = []
    for stream in split_streams(gather):
        job: StreamInverseJob | SegmentInverseJob
        if pack:
            shards = tuple(pack.of_split(stream.name, pack.lineage))
            rows = tuple(pack.of_split(stream.name, pack.rows))
            job = SegmentInverseJob(stream.name, shards, rows)
        else:
            shards = stream.buckets
            job = StreamInverseJob(stream.name, shards, records_before_task(clean))
        tasks.append(Task(f"inverse of {stream.name}", job, shards))
    function = _segment_inverse if pack else _stream_inverse
    return Stage(name="inverse", version=1, function=function, tasks=tuple(tasks))


@dataclass(frozen=True, kw_only=True)
class ParamsJob:
    """One split's shards with their lengths (rows, or tokens of a corpus), and its counts."""

    shards: tuple[Shard, ...]
    lengths: tuple[int, ...]
    format: FormatName
    vocab_size: int
    eos_id: int
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
    gather: GatherOutput,
    pack: PackOutput,
    counts: dict[str, SplitCounts],
) -> Stage:
    """One data_params.json per split; `counts` are those of `split_accounts`."""
    tasks = []
    lengths = pack.tokens if config.pack.format == CORPUS.name else pack.rows
    for stream in split_streams(gather):
        shards = tuple(pack.of_split(stream.name, pack.data))
        job = ParamsJob(
            shards=shards,
            lengths=tuple(pack.of_split(stream.name, lengths)),
            format=config.pack.format,
            vocab_size=vocabulary.vocab_size,
            eos_id=vocabulary.eos_id,
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
    gather: GatherOutput,
    run: RunStage,
) -> dict[str, SplitCounts]:
    """Pack the shuffled stream of every split as `pack.format` says; returns what was packed. If it
    can, the stream is inverted before, so that it need not stay meanwhile."""
    if config.pack.format == VSL.name:
        bins = BinsOutput(run(bins_stage(config, gather)))
        rows = RowsOutput(run(vsl_rows_stage(config, clean, gather, bins)))
        pack = pack_rows(config, vocabulary, gather, rows, run)
        run(inverse_stage(clean, gather, pack))
    elif config.pack.format == CORPUS.name:
        run(inverse_stage(clean, gather))
        pack = PackOutput(run(corpus_stage(config, vocabulary, clean, gather)))
    else:
        rows = RowsOutput(run(rows_stage(config, vocabulary.eos_id, clean, gather)))
        run(inverse_stage(clean, gather))
        pack = pack_rows(config, vocabulary, gather, rows, run)
    counts = split_accounts(config, gather, pack)
    run(params_stage(config, vocabulary, gather, pack, counts))
    return counts
