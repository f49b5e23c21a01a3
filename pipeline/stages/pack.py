"""Pack: rows of MSL tokens cut from a split's stream, permuted globally -> hdf5/ with lineage.

Stream row k is stream[k * MSL : k * MSL + MSL + 1]; position p of the data set holds stream row
pi(p), pi a keyed bijection, so a task knows its rows without reading anything else. Exactly one row
per split may be padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import numpy.typing as npt

from pipeline import layout
from pipeline.config import Config
from pipeline.core import rng
from pipeline.core.content import array_hash
from pipeline.core.manifest import Shard, StageManifest, fingerprint_of
from pipeline.core.permutation import permute
from pipeline.core.storage import canonical_json
from pipeline.hdf5 import format as layout_h5
from pipeline.hdf5.write import sample_shard
from pipeline.provenance.lineage import StreamDocuments, spans
from pipeline.stage import Inputs, Output, Result, Stage, Task, bytes_output, parquet_output
from pipeline.tokenizers import gpt2_bpe

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SplitStream:
    """A split's stream: its bucket shards and their token counts, in order."""

    name: str
    buckets: tuple[Shard, ...]
    bucket_tokens: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """T: all tokens, one EOS per document included."""
        return sum(self.bucket_tokens)

    def rows(self, max_sequence_length: int) -> int:
        """ceil((T - 1) / MSL), the number of packed sequences."""
        return -(-max(0, self.tokens - 1) // max_sequence_length)


@dataclass(frozen=True)
class PackJob:
    """Positions [first, first + count) of one split's data set."""

    index: int
    stream: SplitStream
    first: int
    count: int
    rows: int
    max_sequence_length: int
    seed: int
    records_before_task: tuple[int, ...]


class _Stream:
    """Random access to a split's tokens through memory-mapped buckets."""

    def __init__(
        self, stream: SplitStream, inputs: Inputs, records_before_task: Sequence[int]
    ) -> None:
        self._starts = np.cumsum([0, *stream.bucket_tokens])
        self._tokens, lengths, doc_ids = [], [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
        for shard in stream.buckets:
            table = inputs.table(shard, ["doc_id", "tokens"])
            for chunk in table["tokens"].chunks:
                lengths.append(np.diff(chunk.offsets.to_numpy()))
            flat = [c.flatten().to_numpy() for c in table["tokens"].chunks]
            self._tokens.append(
                flat[0] if len(flat) == 1 else np.concatenate([np.zeros(0, np.uint16), *flat])
            )
            doc_ids.append(table["doc_id"].to_numpy())
        ends = np.cumsum(np.concatenate(lengths))
        doc_id = np.concatenate(doc_ids)
        before = np.array(records_before_task, np.uint64)[
            (doc_id >> np.uint64(32)).astype(np.int64)
        ]
        dense = (before + (doc_id & np.uint64(0xFFFFFFFF))).astype(np.uint32)
        total = int(ends[-1]) if len(ends) else 0
        self.documents = StreamDocuments(
            dense, np.concatenate([[0], ends[:-1]]).astype(np.int64), total
        )

    def read(self, first: int, last: int) -> npt.NDArray[np.uint16]:
        """Tokens [first, last), cut at the end of the stream."""
        bucket = int(np.searchsorted(self._starts, first, side="right")) - 1
        parts = []
        while first < last and bucket < len(self._tokens):
            start = int(self._starts[bucket])
            parts.append(self._tokens[bucket][first - start : last - start])
            first = int(self._starts[bucket + 1])
            bucket += 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _pack(job: PackJob, inputs: Inputs) -> Result:
    length = job.max_sequence_length
    stream = _Stream(job.stream, inputs, job.records_before_task)
    row_key = rng.key(job.seed, "rows", job.stream.name)
    positions = np.arange(job.first, job.first + job.count)
    stream_rows = permute(positions, job.rows, row_key).astype(np.int64)
    rows = np.empty((job.count, layout_h5.CHANNELS, length), np.int32)
    for index, stream_row in enumerate(stream_rows.tolist()):
        fill_row(rows[index], stream.read(stream_row * length, stream_row * length + length + 1))
    lineage = spans(stream.documents, stream_rows, length)
    directory = f"hdf5/{job.stream.name}"
    name = layout_h5.shard_name(job.index)
    shard = Output(f"{directory}/{name}", sample_shard(rows), array_hash(rows))
    sidecar = name.removesuffix(layout_h5.SHARD_SUFFIX) + layout_h5.LINEAGE_SUFFIX
    counters = {"rows": job.count, "mask_sum": int(rows[:, 1].sum()), "split": job.stream.name}
    return Result((shard, parquet_output(f"{directory}/{sidecar}", lineage)), counters)


def fill_row(row_3S: npt.NDArray[np.int32], window: npt.NDArray[np.uint16]) -> None:
    """Write one window of up to MSL + 1 tokens as [input_ids, mask, labels], padded with EOS and
    mask 0.
    """
    labels = len(window) - 1
    row_3S[0, :labels], row_3S[0, labels:] = window[:-1], gpt2_bpe.EOS_ID
    row_3S[1, :labels], row_3S[1, labels:] = 1, 0
    row_3S[2, :labels], row_3S[2, labels:] = window[1:], gpt2_bpe.EOS_ID


def split_streams(gather: StageManifest) -> list[SplitStream]:
    """The streams that the gather left, in split order."""
    streams = []
    for name in layout.SPLITS:
        tasks = [t for t in gather.tasks if t.shards[0].path.startswith(f"stream/{name}-")]
        shards = tuple(t.shards[0] for t in tasks)
        streams.append(SplitStream(name, shards, tuple(t.counters["tokens"] for t in tasks)))
    return [stream for stream in streams if stream.tokens]


def records_before_task(clean: StageManifest) -> tuple[int, ...]:
    """Rows of documents.parquet before each clean task's first record."""
    counts = [task.counters["records"] for task in clean.tasks]
    return tuple(int(n) for n in np.cumsum([0, *counts[:-1]]))


def pack_stage(config: Config, clean: StageManifest, gather: StageManifest) -> Stage:
    """One task per HDF5 shard."""
    length = config.pack.max_sequence_length
    per_shard = max(1, config.hdf5.shard_bytes // (layout_h5.CHANNELS * length * 4))
    before = records_before_task(clean)
    tasks = []
    for stream in split_streams(gather):
        rows = stream.rows(length)
        for index, first in enumerate(range(0, rows, per_shard)):
            count = min(per_shard, rows - first)
            job = PackJob(index, stream, first, count, rows, length, config.seed, before)
            work = count * length * 2
            tasks.append(Task(f"{stream.name} shard {index}", job, stream.buckets, work))
    settings = {
        "max_sequence_length": length,
        "shard_bytes": config.hdf5.shard_bytes,
        "seed": config.seed,
    }
    return Stage(
        "pack", 1, _pack, tuple(tasks), settings, {"h5py": version("h5py"), "isal": version("isal")}
    )


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
        documents = sum(
            t.counters["documents"] for t in gather.tasks
            if t.shards[0].path.startswith(f"stream/{stream.name}-")
        )  # fmt: skip
        job = ParamsJob(
            stream.name, shards, tuple(t.counters["rows"] for t in records),
            config.pack.max_sequence_length, config.seed, documents, stream.tokens,
            sum(t.counters["mask_sum"] for t in records),
        )  # fmt: skip
        tasks.append(Task(f"parameters of {stream.name}", job, shards))
    return Stage("params", 1, _params, tuple(tasks))
