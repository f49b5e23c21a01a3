"""Pack: rows gathered by position into HDF5 shards, each with its lineage -> hdf5/.

Position p of the data set is row p - first of its shard; exactly one `sample` row per split may be
padded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I32, I64
from pipeline.config import Config
from pipeline.core.content import array_hash
from pipeline.core.manifest import Shard, StageManifest
from pipeline.hdf5.format import (
    LAYOUTS,
    LINEAGE_SUFFIX,
    SAMPLE,
    SHARD_SUFFIX,
    VSL,
    Compression,
    FormatName,
    shard_name,
)
from pipeline.hdf5.write import shard_image
from pipeline.packing.rows import empty_vsl_rows, fill_sample_rows, fill_vsl_rows
from pipeline.provenance.lineage import SCHEMA as LINEAGE_SCHEMA
from pipeline.stage import (
    DELTA,
    PLAIN,
    Inputs,
    Output,
    Result,
    Stage,
    Task,
    parquet_output,
)
from pipeline.stages.rows import split_streams
from pipeline.stages.tokenize import list_lengths

SOFTWARE = {"deflate": version("deflate"), "h5py": version("h5py")}


class PackVocabulary(Protocol):
    """What packing must know of a tokenizer (`TokenizerDefinition` is one)."""

    @property
    def vocab_size(self) -> int:
        """Largest id plus one."""
        ...

    @property
    def eos_id(self) -> int:
        """The id that ends every document, and that pads hold."""
        ...


@dataclass(frozen=True)
class PackJob:
    """Positions [first, first + count) of one split's data set."""

    split: str
    index: int
    windows: tuple[Shard, ...]
    spans: tuple[Shard, ...]
    first: int
    count: int
    max_sequence_length: int
    format: FormatName
    compression: Compression
    eos_id: int


def _pack(job: PackJob, inputs: Inputs) -> Result:
    rows = _sample(job, inputs) if job.format == SAMPLE.name else _vsl(job, inputs)
    lineage = pa.concat_tables([_copied(part) for part, _ in _slices(job, job.spans, inputs)])
    position, start = lineage["position"].to_numpy(), lineage["token_start"].to_numpy()
    lineage = lineage.take(pa.array(np.lexsort((start, position))))
    row = (lineage["position"].to_numpy() - job.first).astype(np.int32)
    lineage = lineage.append_column("row", pa.array(row)).select(LINEAGE_SCHEMA.names)
    outputs = (
        hdf5_output(job.split, job.index, rows, job.compression),
        lineage_output(job.split, job.index, lineage),
    )
    counters = {"rows": job.count, "mask_sum": int(rows[:, 1].sum()), "split": job.split}
    if job.format == VSL.name:
        counters["segments"] = len(lineage)
    return Result(outputs, counters)


def _sample(job: PackJob, inputs: Inputs) -> I32:
    width = job.max_sequence_length + 1
    rows = np.empty((job.count, SAMPLE.channels, job.max_sequence_length), np.int32)
    for part, row in _slices(job, job.windows, inputs):
        windows = _flat(part["tokens"]).reshape(-1, width)
        fill_sample_rows(rows, windows, part["window"].to_numpy(), row)
    return rows


def _vsl(job: PackJob, inputs: Inputs) -> I32:
    rows = empty_vsl_rows(job.count, job.max_sequence_length, job.eos_id)
    for part, row in _slices(job, job.windows, inputs):
        segments = list_lengths(part["labels"])
        labels = _flat(part["labels"]).astype(np.int64)
        ends = np.cumsum(labels)
        before = np.concatenate([[0], ends])[np.cumsum(segments) - segments]
        slot = ends - labels - np.repeat(before, segments)
        fill_vsl_rows(rows, _flat(part["tokens"]), labels, np.repeat(row, segments), slot)
    return rows


def _flat(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """All values of a list column of one chunk at most, without a copy."""
    if not column.num_chunks:
        return np.zeros(0, column.type.value_type.to_pandas_dtype())
    values: npt.NDArray[Any] = column.chunk(0).flatten().to_numpy()
    return values


def _copied(table: pa.Table) -> pa.Table:
    """The same rows in memory of their own, so that the file behind them can be closed."""
    return table.take(pa.array(np.arange(len(table))))


def _slices(
    job: PackJob, shards: tuple[Shard, ...], inputs: Inputs
) -> Iterator[tuple[pa.Table, I64]]:
    """The job's positions out of every shard, with their rows in the job's shard. Each is sorted by
    position, so each slice is contiguous, and nothing else of the shard is read."""
    for shard in shards:
        table = inputs.table(shard)
        position = table["position"].to_numpy()
        first, last = np.searchsorted(position, [job.first, job.first + job.count])
        yield table.slice(first, last - first), position[first:last] - job.first


def hdf5_output(split: str, index: int, data: npt.NDArray[Any], compression: Compression) -> Output:
    """One HDF5 shard of a split."""
    image = shard_image(data, compression)
    return Output(f"hdf5/{split}/{shard_name(index)}", image, array_hash(data))


def lineage_output(split: str, index: int, lineage: pa.Table) -> Output:
    """The lineage beside it."""
    name = shard_name(index).removesuffix(SHARD_SUFFIX) + LINEAGE_SUFFIX
    ascending = ("row", "doc")
    encodings = {c: DELTA if c in ascending else PLAIN for c in lineage.column_names}
    return parquet_output(f"hdf5/{split}/{name}", lineage.combine_chunks(), encodings)


def compression_of(config: Config) -> Compression:
    """How chunks are stored: gzip alone leaves the counting channels of `vsl` several times as
    large (docs/packing.md)."""
    if config.hdf5.compression is not None:
        return config.hdf5.compression
    return "gzip-shuffle" if config.pack.format == VSL.name else "gzip"


def rows_per_shard(config: Config) -> int:
    """Rows in every shard of a split but the last."""
    row_bytes = LAYOUTS[config.pack.format].channels * config.pack.max_sequence_length * 4
    return config.hdf5.shard_sequences or max(1, config.hdf5.shard_bytes // row_bytes)


def pack_stage(
    config: Config, vocabulary: PackVocabulary, gather: StageManifest, rows: StageManifest
) -> Stage:
    """One task per shard of each split."""
    pack, per_shard, compression = config.pack, rows_per_shard(config), compression_of(config)
    tasks = []
    for stream in split_streams(gather):
        records = [task for task in rows.tasks if task.counters["split"] == stream.name]
        windows, spans = zip(*(task.shards for task in records), strict=True)
        total = sum(task.counters["rows"] for task in records)
        for index, first in enumerate(range(0, total, per_shard)):
            count = min(per_shard, total - first)
            job = PackJob(
                stream.name, index, windows, spans, first, count, pack.max_sequence_length,
                pack.format, compression, vocabulary.eos_id,
            )  # fmt: skip
            work = count * pack.max_sequence_length * 2
            tasks.append(Task(f"{stream.name} shard {index}", job, (*windows, *spans), work))
    return Stage("pack", 4, _pack, tuple(tasks), pack_settings(config, vocabulary), SOFTWARE)


def pack_settings(config: Config, vocabulary: PackVocabulary) -> dict[str, Any]:
    """What `prep repack` takes over from a run, beside the settings of the stages before."""
    return {
        "vocab_size": vocabulary.vocab_size,
        "eos_id": vocabulary.eos_id,
        "format": config.pack.format,
        "max_sequence_length": config.pack.max_sequence_length,
        "packer": config.pack.packer,
        "shard_bytes": config.hdf5.shard_bytes,
        "shard_sequences": config.hdf5.shard_sequences,
        "compression": config.hdf5.compression,
    }
