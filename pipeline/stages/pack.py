"""Pack: windows gathered by position into HDF5 shards, each with its lineage -> hdf5/.

Position p of the data set is row p - first of its shard; exactly one row per split may be padded.
"""

from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.config import Config
from pipeline.core.content import array_hash
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.core.storage import canonical_json
from pipeline.hdf5 import format as layout_h5
from pipeline.hdf5.write import sample_shard
from pipeline.provenance.lineage import SCHEMA as LINEAGE_SCHEMA
from pipeline.stage import Inputs, Output, Result, Stage, Task, bytes_output, parquet_output
from pipeline.stages.rows import split_streams
from pipeline.stages.tokenize import flat_tokens
from pipeline.tokenizers import gpt2_bpe


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


def _pack(job: PackJob, inputs: Inputs) -> Result:
    table = _slices(job, job.windows, inputs)
    table = table.take(pa.array(np.argsort(table["position"].to_numpy())))
    rows = sample_rows(
        flat_tokens(table["tokens"]).reshape(job.count, job.max_sequence_length + 1),
        table["window"].to_numpy(),
    )
    lineage = _slices(job, job.spans, inputs)
    position, start = lineage["position"].to_numpy(), lineage["token_start"].to_numpy()
    lineage = lineage.take(pa.array(np.lexsort((start, position))))
    row = (lineage["position"].to_numpy() - job.first).astype(np.int32)
    lineage = lineage.append_column("row", pa.array(row)).select(LINEAGE_SCHEMA.names)
    name = layout_h5.shard_name(job.index)
    sidecar = name.removesuffix(layout_h5.SHARD_SUFFIX) + layout_h5.LINEAGE_SUFFIX
    outputs = (
        Output(f"hdf5/{job.split}/{name}", sample_shard(rows), array_hash(rows)),
        parquet_output(f"hdf5/{job.split}/{sidecar}", lineage.combine_chunks()),
    )
    counters = {"rows": job.count, "mask_sum": int(rows[:, 1].sum()), "split": job.split}
    return Result(outputs, counters)


def _slices(job: PackJob, shards: tuple[Shard, ...], inputs: Inputs) -> pa.Table:
    """The job's positions out of every shard; each is sorted, so each slice is contiguous."""
    parts = []
    for shard in shards:
        table = inputs.table(shard)
        bounds = [job.first, job.first + job.count]
        first, last = np.searchsorted(table["position"].to_numpy(), bounds)
        parts.append(table.slice(first, last - first))
    return pa.concat_tables(parts)


def sample_rows(
    windows_RW: npt.NDArray[np.uint16], window_R: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """Windows of MSL + 1 tokens, EOS behind the first `window` -> (R, 3, MSL) int32 rows.

    [input_ids, loss mask, labels]: a window of n tokens has n - 1 labels. The last token of a
    stream is an EOS, so a padded row's ids and labels are EOS from its last label on.
    """
    width = windows_RW.shape[1] - 1
    rows = np.empty((len(windows_RW), layout_h5.CHANNELS, width), np.int32)
    rows[:, 0] = windows_RW[:, :-1]
    rows[:, 1] = np.arange(width) < (window_R - 1)[:, None]
    rows[:, 2] = windows_RW[:, 1:]
    return rows


def pack_stage(config: Config, gather: StageManifest, rows: StageManifest) -> Stage:
    """One task per HDF5 shard."""
    length = config.pack.max_sequence_length
    per_shard = max(1, config.hdf5.shard_bytes // (layout_h5.CHANNELS * length * 4))
    tasks = []
    for stream in split_streams(gather):
        mine = [s for s in rows.shards if s.path.startswith(f"rows/{stream.name}-")]
        windows = tuple(s for s in mine if s.path.endswith(".windows.arrow"))
        spans = tuple(s for s in mine if s.path.endswith(".spans.arrow"))
        total = stream.rows(length)
        for index, first in enumerate(range(0, total, per_shard)):
            count = min(per_shard, total - first)
            job = PackJob(stream.name, index, windows, spans, first, count, length)
            label = f"{stream.name} shard {index}"
            tasks.append(Task(label, job, (*windows, *spans), count * length * 2))
    settings = {"shard_bytes": config.hdf5.shard_bytes}
    software = {"h5py": version("h5py"), "isal": version("isal")}
    return Stage("pack", 1, _pack, tuple(tasks), settings, software)


@dataclass(frozen=True)
class ParamsJob:
    """One split's shards and what its readers need to know."""

    split: str
    shards: tuple[Shard, ...]
    rows: tuple[int, ...]
    max_sequence_length: int
    seed: int
    documents: int
    tokens: int
    mask_sum: int


def _params(job: ParamsJob, inputs: Inputs) -> Result:
    """data_params.json, in the spirit of Model Zoo's, with hashes."""
    names = [shard.path.rpartition("/")[2] for shard in job.shards]
    files = [
        {"name": n, "n_examples": r, "hash": s.hash, "content_hash": s.content_hash}
        for n, r, s in zip(names, job.rows, job.shards, strict=True)
    ]
    content = fingerprint_of({"files": [(f["name"], f["content_hash"]) for f in files]})
    value = {
        "features": list(layout_h5.SAMPLE_FEATURES),
        "max_sequence_length": job.max_sequence_length,
        "n_examples": sum(job.rows),
        "vocab_size": gpt2_bpe.VOCAB_SIZE,
        "eos_id": gpt2_bpe.EOS_ID,
        "pad_id": gpt2_bpe.EOS_ID,
        "rows_globally_shuffled": True,
        "seed": job.seed,
        "split": job.split,
        "files": files,
        "dataset_hash": content,
        "documents": job.documents,
        "h5_dataset_stats": {
            "num_sequences": sum(job.rows),
            "num_tokens": sum(job.rows) * job.max_sequence_length,
            "non_pad_tokens": job.mask_sum,
            "loss_valid_tokens": job.mask_sum,
            "stream_tokens": job.tokens,
        },
    }
    path = f"hdf5/{job.split}/{layout_h5.DATA_PARAMS}"
    return Result((bytes_output(path, canonical_json(value)),))


def params_stage(config: Config, gather: StageManifest, pack: StageManifest) -> Stage:
    """One data_params.json per split."""
    tasks = []
    for stream in split_streams(gather):
        records = [t for t in pack.tasks if t.counters["split"] == stream.name]
        shards = tuple(t.shards[0] for t in records)
        job = ParamsJob(
            stream.name, shards, tuple(t.counters["rows"] for t in records),
            config.pack.max_sequence_length, config.seed, stream.documents, stream.tokens,
            sum(t.counters["mask_sum"] for t in records),
        )  # fmt: skip
        tasks.append(Task(f"parameters of {stream.name}", job, shards))
    return Stage("params", 1, _params, tuple(tasks))
