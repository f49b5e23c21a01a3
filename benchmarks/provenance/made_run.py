"""A run directory of any number of documents without any text: tables and lineage as `prep run`
writes them, which is all that tracing reads.

Lengths are drawn so that a million documents have 0.8 billion tokens, as a sample of the Pile does.
There are no tokens: the HDF5 files are named and never made.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64
from pipeline.core import rng
from pipeline.engine.stage import Output, parquet_output
from pipeline.hdf5.format import DATA_PARAMS, SAMPLE, shard_name
from pipeline.lineage.tables import StreamDocuments, make_lineage, stream_inverse, stream_rows_at
from pipeline.runs import layout
from pipeline.runs.parts import part
from pipeline.stages.pack import lineage_output
from pipeline.stages.shards import inverse_output
from pipeline.stages.tables import ENCODINGS, ROWS_PER_GROUP

SEED, LENGTH, FILES = 1, 2048, 30
ROW_BYTES = SAMPLE.channels * LENGTH * 4
ROWS_PER_SHARD = (128 << 20) // ROW_BYTES
DATASET_HASH = "1" * 32


@dataclass(frozen=True)
class Made:
    """What was made: documents, and of the split train: documents, tokens, rows, shards."""

    documents: int
    train_documents: int
    tokens: int
    rows: int
    shards: int


def make_run(directory: Path, documents: int) -> Made:
    """Write the tables, lineage and inverse of a run with one split."""
    draw = rng.generator(SEED, "made-run")
    tokens = np.maximum(40, draw.lognormal(5.9, 1.25, documents)).astype(np.int64)
    state = draw.choice(3, documents, p=[0.9, 0.05, 0.05])
    _write(directory, _documents(draw, tokens, state))
    sources = {
        "path_id": pa.array(range(FILES), pa.uint32()),
        "input": ["made"] * FILES,
        "path": [f"part-{number:05d}.jsonl.zst" for number in range(FILES)],
    }
    for name in (layout.SOURCES, layout.INPUTS):
        _write(directory, parquet_output(name, pa.table(sources)))
    doc = draw.permutation(np.flatnonzero(state == 0)).astype(np.uint32)
    end = np.cumsum(tokens[doc])
    stream = StreamDocuments(doc, end - tokens[doc], end, int(end[-1]))
    _write(directory, inverse_output("train", 0, stream_inverse(doc, stream.start)))
    return _pack(directory, stream, documents)


def _pack(directory: Path, stream: StreamDocuments, documents: int) -> Made:
    rows = -(-(stream.tokens - 1) // LENGTH)
    files = []
    for index, first in enumerate(range(0, rows, ROWS_PER_SHARD)):
        place = np.arange(first, min(rows, first + ROWS_PER_SHARD))
        lineage = make_lineage(stream, stream_rows_at(place, rows, SEED, "train"), LENGTH)
        _write(directory, lineage_output("train", index, lineage))
        entry = {"name": shard_name(index), "n_examples": len(place)}
        files.append({**entry, "hash": "", "content_hash": ""})
    params = {
        "format": SAMPLE.name, "max_sequence_length": LENGTH, "n_examples": rows,
        "vocab_size": 50257, "eos_id": 50256, "rows_globally_shuffled": True, "seed": SEED,
        "split": "train", "files": files, "dataset_hash": DATASET_HASH,
        "h5_dataset_stats": {"stream_tokens": stream.tokens},
    }  # fmt: skip
    (directory / "hdf5/train" / DATA_PARAMS).write_text(json.dumps(params))
    return Made(documents, len(stream.doc), stream.tokens, rows, len(files))


def _documents(draw: np.random.Generator, tokens: I64, state: I64) -> Output:
    count = len(tokens)
    text_bytes = (tokens * draw.uniform(3.5, 4.8, count)).astype(np.uint64)
    path_id = np.sort(draw.integers(0, FILES, count)).astype(np.uint32)
    byte_length = text_bytes + np.uint64(150)
    first = np.searchsorted(path_id, np.arange(FILES))
    start = np.cumsum(byte_length + np.uint64(1)) - byte_length - np.uint64(1)
    key = pa.py_buffer(draw.bytes(16 * count))
    keys = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, key])
    table = pa.table({
        "doc_key": keys,
        "source": _one_of(draw.integers(0, 17, count), [f"source {n:02d}" for n in range(17)]),
        "path_id": path_id,
        "line": (np.arange(count) - first[path_id] + 1).astype(np.uint64),
        "byte_offset": start - start[first[path_id]],
        "byte_length": byte_length,
        "licence": _one_of(draw.integers(0, 3, count), ["MIT", "CC0-1.0", ""]),
        "text_bytes": text_bytes,
        "state": _one_of(state, ["kept", "duplicate", "dropped"]),
        "reason": _one_of(state, ["", "near_duplicate", "too_short"]),
        "decision": _one_of(draw.integers(0, 100, count) // 99, ["allow", "review"]),
        "rule": _one_of(draw.integers(0, 100, count) // 99, ["", "mentions-a-site"]),
        "split": _one_of((state > 0).astype(np.int64), ["train", ""]),
        "representative": keys,
        "tokens": tokens.astype(np.uint32),
    })  # fmt: skip
    return parquet_output(part(layout.DOCUMENTS, 0), table, ENCODINGS, ROWS_PER_GROUP)


def _one_of(index: npt.NDArray[np.integer], names: list[str]) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(index))


def _write(directory: Path, output: Output) -> None:
    path = directory / output.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(output.data))  # a benchmark: nothing here must survive a crash


def write_training(model_dir: Path, batch_size: int, steps: int) -> None:
    """What a training run of so many steps leaves behind for tracing."""
    model_dir.mkdir(parents=True)
    record = {
        "seed": 5, "batch_size_schedule": [[1, batch_size]],
        "datasets": [{"from_step": 1, "dataset_hash": DATASET_HASH}],
    }  # fmt: skip
    (model_dir / "run.json").write_text(json.dumps(record))
    (model_dir / "metrics.jsonl").write_text(json.dumps({"step": steps}) + "\n")
    for step in range(steps // 4, steps + 1, steps // 4):
        path = model_dir / f"checkpoints/step_{step:07d}"
        path.mkdir(parents=True)
        (path / "manifest.json").write_text("{}")
