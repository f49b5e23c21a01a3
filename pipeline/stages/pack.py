"""Pack: HDF5 shards, each with its lineage -> hdf5/.

Of `sample` and `vsl`, rows are gathered by position: position p of the data set is row p - first of
its shard, and one `sample` row per split may be padded. Where rows are in too many shards for one
task, these are merged before -> merged_rows/. Of `corpus`, the stream of a split is cut as it is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64
from pipeline.config.prep import Config
from pipeline.core.manifest import Shard
from pipeline.engine.levels import Bundle, bundle_shards, merge_in_levels, single_ranges
from pipeline.engine.ranges import copy_table
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
    parquet_output,
)
from pipeline.hdf5.chunks import Rows, build_shard
from pipeline.hdf5.format import (
    CORPUS,
    LAYOUTS,
    LINEAGE_SUFFIX,
    SAMPLE,
    SHARD_SUFFIX,
    VSL,
    Compression,
    FormatName,
    shard_name,
)
from pipeline.hdf5.packing import SampleRows, empty_vsl_rows, fill_vsl_rows
from pipeline.lineage.tables import CORPUS_SCHEMA
from pipeline.lineage.tables import SCHEMA as LINEAGE_SCHEMA
from pipeline.runs import layout
from pipeline.runs.views.data_set import PackOutput, RowsOutput
from pipeline.runs.views.documents import CleanOutput
from pipeline.stages.rows import dense_index, records_before_task
from pipeline.stages.shuffle.slices import (
    merge_slices,
    order_by_position,
    slice_positions,
)
from pipeline.stages.shuffle.stream import Buckets, SplitStream, StreamPart, read_stream
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

    @property
    def bos_id(self) -> int | None:
        """The id that begins every document; None where its text does."""
        ...


@dataclass(frozen=True, kw_only=True)
class PackJob:
    """Positions [first, first + count) of one split's data set."""

    split: str
    index: int
    windows: Shared[tuple[Shard, ...]]
    spans: Shared[tuple[Shard, ...]]
    first: int
    count: int
    max_sequence_length: int
    format: FormatName
    compression: Compression
    eos_id: int


def _pack(job: PackJob, inputs: Inputs) -> Result:
    rows, labels = _sample(job, inputs) if job.format == SAMPLE.name else _vsl(job, inputs)
    lineage = pa.concat_tables([copy_table(part) for part, _ in _slices(job, job.spans, inputs)])
    position, start = lineage["position"].to_numpy(), lineage["token_start"].to_numpy()
    lineage = lineage.take(pa.array(np.lexsort((start, position))))
    row = (lineage["position"].to_numpy() - job.first).astype(np.int32)
    lineage = lineage.append_column("row", pa.array(row)).select(LINEAGE_SCHEMA.names)
    outputs = (
        hdf5_output(job.split, job.index, rows, job.compression),
        lineage_output(job.split, job.index, lineage),
    )
    counters = {"rows": job.count, "mask_sum": labels, "split": job.split}
    if job.format == VSL.name:
        counters["segments"] = len(lineage)
    return Result(outputs, counters)


def _sample(job: PackJob, inputs: Inputs) -> tuple[Rows, int]:
    """The rows of the job, and how many labels they have."""
    windows_NW, window_N = np.empty((0, 0), np.uint16), np.empty(job.count, np.int64)
    for part, row in _slices(job, job.windows, inputs):
        tokens = _flat(part["tokens"]).reshape(-1, job.max_sequence_length + 1)
        if not len(windows_NW):
            windows_NW = np.empty((job.count, tokens.shape[1]), tokens.dtype)
        windows_NW[row] = tokens
        window_N[row] = part["window"].to_numpy()
    return SampleRows(windows_NW, window_N), int(window_N.sum()) - job.count


def _vsl(job: PackJob, inputs: Inputs) -> tuple[Rows, int]:
    """The rows of the job, and how many labels they have."""
    rows, total = empty_vsl_rows(job.count, job.max_sequence_length, job.eos_id), 0
    for part, row in _slices(job, job.windows, inputs):
        segments = list_lengths(part["labels"])
        labels = _flat(part["labels"]).astype(np.int64)
        ends = np.cumsum(labels)
        before = np.concatenate([[0], ends])[np.cumsum(segments) - segments]
        slot = ends - labels - np.repeat(before, segments)
        fill_vsl_rows(rows, _flat(part["tokens"]), labels, np.repeat(row, segments), slot)
        total += int(labels.sum())
    return rows, total


def _flat(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """All values of a list column of one chunk at most, without a copy."""
    if not column.num_chunks:
        return np.zeros(0, column.type.value_type.to_pandas_dtype())
    values: npt.NDArray[Any] = column.chunk(0).flatten().to_numpy()
    return values


def _slices(
    job: PackJob, shards: Shared[tuple[Shard, ...]], inputs: Inputs
) -> Iterator[tuple[pa.Table, I64]]:
    """The job's positions out of every shard, with their rows in the job's shard. Each is sorted by
    position, so each slice is contiguous, and nothing else of the shard is read."""
    for _, part in slice_positions(shards.value, job.first, job.first + job.count, inputs):
        yield part, part["position"].to_numpy() - job.first


def hdf5_output(split: str, index: int, rows: Rows, compression: Compression) -> Output:
    """One HDF5 shard of a split."""
    image, content_hash = build_shard(rows, compression)
    return Output(f"hdf5/{split}/{shard_name(index)}", image, content_hash)


def lineage_output(split: str, index: int, lineage: pa.Table) -> Output:
    """The lineage of it."""
    name = shard_name(index).removesuffix(SHARD_SUFFIX) + LINEAGE_SUFFIX
    ascending = ("row", "doc")
    encodings = {c: DELTA if c in ascending else PLAIN for c in lineage.column_names}
    return parquet_output(f"hdf5/{split}/{name}", lineage.combine_chunks(), encodings)


def choose_compression(config: Config) -> Compression:
    """How chunks are stored: gzip alone leaves the counting channels of `vsl` several times as
    large (docs/packing.md)."""
    if config.hdf5.compression is not None:
        return config.hdf5.compression
    return "gzip-shuffle" if config.pack.format == VSL.name else "gzip"


def rows_per_shard(config: Config) -> int:
    """Rows in every shard of a split but the last."""
    return config.hdf5.shard_sequences or max(1, config.hdf5.shard_bytes // _row_bytes(config))


def _row_bytes(config: Config) -> int:
    return LAYOUTS[config.pack.format].channels * config.pack.max_sequence_length * 4


MERGES = ("merge_rows", "merge_rows_again")
"""Stages between rows and pack, as many as are needed."""
_WIDE = ("tokens", "labels")


@dataclass(frozen=True, kw_only=True)
class MergeRowsJob:
    """Positions [low, high) in a group of rows shards, or of merged ones."""

    stem: str
    low: int
    high: int
    windows: Shared[tuple[Shard, ...]]
    spans: Shared[tuple[Shard, ...]]


def _merge_rows(job: MergeRowsJob, inputs: Inputs) -> Result:
    """The columns of the shards, and their order; two shards."""
    outputs = []
    for shards, end in ((job.windows, layout.WINDOWS_SHARD), (job.spans, layout.SPANS_SHARD)):
        empty = inputs.open(shards.value[0]).empty
        slices = slice_positions(shards.value, job.low, job.high, inputs)
        table = merge_slices(slices, empty, _WIDE, order_by_position, inputs)
        outputs.append(arrow_output(f"{job.stem}.{end}", table))
    return Result(outputs)


def _merge_rows_stage(name: str, bundles: Iterable[Bundle], per_shard: int) -> Stage:
    """One task per group of shards and range of positions."""
    tasks = []
    for index, bundle in enumerate(bundles):
        low, high = bundle.bounds(bundle.ranges * per_shard)
        windows, spans = bundle.kinds
        job = MergeRowsJob(
            stem=f"merged_rows/{name}-{index:06d}", low=low, high=high, windows=windows, spans=spans
        )
        label = f"{name} of {bundle.name} from {low}, group {index}"
        tasks.append(Task(label, job, bundle.kinds, bundle.work))
    return Stage(name=name, version=1, function=_merge_rows, tasks=tuple(tasks))


def pack_rows(
    config: Config,
    vocabulary: PackVocabulary,
    streams: Sequence[SplitStream],
    rows: RowsOutput,
    run: RunStage,
) -> PackOutput:
    """Run the stages that put every split's rows into shards; returns what they left."""
    per_shard, totals, bundles = rows_per_shard(config), {}, []
    for stream in streams:
        windows = Shared(tuple(rows.of_split(stream.name, rows.windows)))
        spans = Shared(tuple(rows.of_split(stream.name, rows.spans)))
        total = sum(rows.of_split(stream.name, rows.rows))
        totals[stream.name], shards = total, -(-total // per_shard)
        work = total * config.pack.max_sequence_length * 2
        bundles.append(bundle_shards(stream.name, shards, windows, spans, work=work))
    narrow = merge_in_levels(
        bundles, MERGES, lambda stage, wide: run(_merge_rows_stage(stage, wide, per_shard))
    )
    return PackOutput(run(_pack_stage(config, vocabulary, narrow, totals)))


def _pack_stage(
    config: Config,
    vocabulary: PackVocabulary,
    bundles: Sequence[Bundle],
    totals: Mapping[str, int],
) -> Stage:
    """One task per shard of each split, which have these many rows."""
    pack, per_shard, compression = config.pack, rows_per_shard(config), choose_compression(config)
    tasks = []
    for index, bundle in single_ranges(bundles):
        windows, spans = bundle.kinds
        first = index * per_shard
        count = min(per_shard, totals[bundle.name] - first)
        job = PackJob(
            split=bundle.name,
            index=index,
            windows=windows,
            spans=spans,
            first=first,
            count=count,
            max_sequence_length=pack.max_sequence_length,
            format=pack.format,
            compression=compression,
            eos_id=vocabulary.eos_id,
        )
        work, memory = count * pack.max_sequence_length * 2, 2 * count * _row_bytes(config)
        tasks.append(Task(f"{bundle.name} shard {index}", job, bundle.kinds, work, memory))
    return _make_stage(config, vocabulary, tasks)


def _make_stage(config: Config, vocabulary: PackVocabulary, tasks: list[Task]) -> Stage:
    """The stage; its settings are what `prep repack` takes over from a run (`PackOutput`)."""
    settings = {
        "vocab_size": vocabulary.vocab_size,
        "eos_id": vocabulary.eos_id,
        "format": config.pack.format,
        "max_sequence_length": config.pack.max_sequence_length,
        "packer": config.pack.packer,
        "shard_bytes": config.hdf5.shard_bytes,
        "shard_sequences": config.hdf5.shard_sequences,
        "compression": config.hdf5.compression,
        **({} if vocabulary.bos_id is None else {"bos_id": vocabulary.bos_id}),
    }
    return Stage(
        name="pack",
        version=5,
        function=_corpus if config.pack.format == CORPUS.name else _pack,
        tasks=tuple(tasks),
        settings=settings,
        software=SOFTWARE,
    )


@dataclass(frozen=True, kw_only=True)
class CorpusJob:
    """Tokens [first, first + count) of a stream, and the buckets that hold them."""

    split: str
    index: int
    buckets: Buckets
    first: int
    count: int
    compression: Compression
    records_before_task: Shared[tuple[int, ...]]


def _corpus(job: CorpusJob, inputs: Inputs) -> Result:
    part = read_stream(job.buckets, job.first, job.first + job.count, inputs)
    tokens = part.tokens[job.first - part.start :][: job.count]
    outputs = (
        hdf5_output(job.split, job.index, tokens, job.compression),
        lineage_output(job.split, job.index, _lineage(job, part)),
    )
    counters = {"tokens": job.count, "rows": 0, "mask_sum": 0, "split": job.split}
    return Result(outputs, counters)


def _lineage(job: CorpusJob, part: StreamPart) -> pa.Table:
    ends = part.start + np.cumsum(part.length)
    starts = ends - part.length
    here = np.flatnonzero((ends > job.first) & (starts < job.first + job.count))
    begin = np.maximum(starts[here], job.first)
    end = np.minimum(ends[here], job.first + job.count)
    columns = [
        begin - job.first,
        end - job.first,
        dense_index(part.doc_id[here], job.records_before_task),
        begin - starts[here],
    ]
    return pa.table([pa.array(c) for c in columns], schema=CORPUS_SCHEMA)


def corpus_stage(
    config: Config, vocabulary: PackVocabulary, clean: CleanOutput, streams: Sequence[SplitStream]
) -> Stage:
    """One task per shard of each split."""
    before = records_before_task(clean)
    per_shard = max(1, config.hdf5.shard_bytes // (2 if vocabulary.vocab_size <= 1 << 16 else 4))
    tasks = []
    for stream in streams:
        for index, first in enumerate(range(0, stream.tokens, per_shard)):
            count = min(per_shard, stream.tokens - first)
            job = CorpusJob(
                split=stream.name,
                index=index,
                buckets=stream.buckets_with(first, first + count),
                first=first,
                count=count,
                compression=choose_compression(config),
                records_before_task=before,
            )
            tasks.append(Task(f"{stream.name} shard {index}", job, job.buckets.inputs, 2 * count))
    return _make_stage(config, vocabulary, tasks)
