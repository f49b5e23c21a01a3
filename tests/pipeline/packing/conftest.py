"""Random documents sent through gather and every packing stage, and what came out."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.prep import Config
from pipeline.core import rng, storage
from pipeline.core.ids import keys_as_u64
from pipeline.core.ledger import SplitLedger
from pipeline.core.manifest import Shard, StageManifest, TaskRecord
from pipeline.engine.stage import Inputs, Output, Stage, arrow_output
from pipeline.runs.views.data_set import TokensOutput
from pipeline.runs.views.documents import CleanOutput
from pipeline.stages.shards import pack_streams
from pipeline.stages.shuffle.gather import gather_streams
from pipeline.stages.shuffle.places import in_order, places
from pipeline.stages.shuffle.scatter import scatter_tokens
from pipeline.stages.tokenize import token_lists

SEED = 3
Lengths = list[list[int]]


@dataclass(frozen=True)
class Vocabulary:
    """Enough of a tokenizer."""

    vocab_size: int = 50257
    eos_id: int = 50256
    bos_id: int | None = None

    @property
    def dtype(self) -> Any:
        return np.uint16 if self.vocab_size <= 1 << 16 else np.uint32


@dataclass(frozen=True)
class Packed:
    """What a split became: rows or tokens in data-set order, spans with their data-set row (or
    token), the documents in stream order as (dense index, tokens), and the ledger of the split."""

    data: Any
    spans: list[dict[str, Any]]
    documents: list[tuple[int, list[int]]]
    params: dict[str, Any]
    ledger: SplitLedger
    files: tuple[Path, ...]

    @property
    def stream(self) -> list[int]:
        return [token for _, tokens in self.documents for token in tokens]


def run_stage(stage: Stage, root: Path) -> StageManifest:
    """What the runner does, without records or reuse."""
    records = []
    for task in stage.tasks:
        result = stage.function(task.job, Inputs(root))
        shards = tuple(publish(output, root) for output in result.outputs)
        records.append(TaskRecord("", shards, dict(result.counters)))
    return StageManifest(stage.name, "", {}, tuple(records))


def publish(output: Output, root: Path) -> Shard:
    done = storage.publish(root / output.path, output.data)
    return Shard(path=output.path, size=done.size, hash=done.hash, content_hash=output.content_hash)


def write_tokens(
    lengths: Lengths, vocabulary: Vocabulary, root: Path
) -> tuple[CleanOutput, TokensOutput]:
    """Outputs of clean (records per task) and tokens, all in train, by lengths of documents."""
    clean, tokens, number = [], [], 0
    for task, counts in enumerate(lengths):
        flat = [document(number + i, n, vocabulary) for i, n in enumerate(counts)]
        keys = [rng.key(SEED, "doc", number + i).to_bytes(16, "little") for i in range(len(counts))]
        number += len(counts)
        doc_id = pa.array([task << 32 | i for i in range(len(counts))], pa.uint64())
        table = pa.table({
            "doc_id": doc_id, "doc_key": pa.array(keys, pa.binary(16)),
            "tokens": token_lists(np.concatenate([np.zeros(0, vocabulary.dtype), *flat]),
                                  np.array(counts, np.int64)),
        })  # fmt: skip
        ones = np.ones(len(counts), np.uint8)
        table = in_order(table, places(keys_as_u64(table["doc_key"]), ones * 0, ones, SEED))
        shard = publish(arrow_output(f"tokens/{task:06d}.arrow", table), root)
        of_splits = {"train": sum(counts), "validation": 0}
        tokens.append(TaskRecord("", (shard,), {"splits": of_splits}))
        clean.append(TaskRecord("", (), {"records": len(counts)}))
    return (
        CleanOutput(StageManifest("clean", "", {}, tuple(clean))),
        TokensOutput(StageManifest("tokenize", "", {"settings": {"seed": SEED}}, tuple(tokens))),
    )


def document(number: int, length: int, vocabulary: Vocabulary) -> Any:
    """Token i of document `number` is no other's neighbour; the last one is the EOS."""
    ids = (np.arange(length - 1, dtype=np.int64) + 100 * number) % (vocabulary.vocab_size - 1)
    return np.append(ids, vocabulary.eos_id).astype(vocabulary.dtype)


def config_of(bucket_tokens: int, per_shard: int, **pack: Any) -> Config:
    """As a user could write it, but with buckets and shards below what a config may ask for."""
    value = {"name": "packing", "seed": SEED, "inputs": [{"name": "x", "path": "x"}], "pack": pack}
    config = Config.model_validate_json(json.dumps(value))
    change = {"bucket_tokens": bucket_tokens}
    size = {"shard_bytes": 2 * per_shard}
    if config.pack.format != "corpus":
        size = {"shard_sequences": per_shard}
    return config.model_copy(update={
        "pack": config.pack.model_copy(update=change),
        "hdf5": config.hdf5.model_copy(update=size),
    })  # fmt: skip


def pack(
    lengths: Lengths, config: Config, root: Path, vocabulary: Vocabulary = Vocabulary()
) -> Packed:
    """Pack documents of these lengths, given per task, and read everything back."""
    clean, tokens = write_tokens(lengths, vocabulary, root)
    run: Callable[[Stage], StageManifest] = lambda stage: run_stage(stage, root)  # noqa: E731
    streams = gather_streams(config, scatter_tokens(config, tokens, None, run), run)
    counts = pack_streams(config, vocabulary, clean, streams, run)
    data, spans = read_back(root / "hdf5/train")
    return Packed(
        data, spans, stream_of(root),
        json.loads((root / "hdf5/train/data_params.json").read_bytes()),
        SplitLedger(**counts["train"]), tuple(sorted((root / "hdf5/train").iterdir())),
    )  # fmt: skip


def stream_of(root: Path) -> list[tuple[int, list[int]]]:
    """All documents by rank, as (dense index, tokens)."""
    tables = [pa.ipc.open_file(p).read_all() for p in sorted((root / "tokens").glob("*.arrow"))]
    table = pa.concat_tables(tables).sort_by("doc_id")
    keys = table["doc_key"].to_pylist()
    rank = rng.rank(np.array([np.frombuffer(k, "<u8") for k in keys]), SEED, "shuffle").tolist()
    order = sorted(range(len(keys)), key=lambda i: (rank[i], keys[i]))
    documents = table["tokens"].to_pylist()
    return [(i, documents[i]) for i in order]


def read_back(directory: Path) -> tuple[Any, list[dict[str, Any]]]:
    """All shards one after the other by plain h5py, and their lineage likewise."""
    parts: list[Any] = []
    spans: list[dict[str, Any]] = []
    for path in sorted(directory.glob("*.h5")):
        before = sum(len(part) for part in parts)
        with h5py.File(path, "r") as file:
            assert file.attrs["n_examples"] == file["data"].shape[0]
            parts.append(file["data"][:])
        for span in pq.read_table(path.with_name(path.stem + ".lineage.parquet")).to_pylist():
            moved = ("row",) if "row" in span else ("token_start", "token_end")
            spans.append(span | {name: span[name] + before for name in moved})
    return (np.concatenate(parts) if parts else np.zeros(0)), spans


@pytest.fixture(scope="session")
def packed() -> Callable[..., Packed]:
    """`packed(lengths, root, bucket_tokens, per_shard, vocabulary=…, **pack settings)`."""

    def run(
        lengths: Lengths, root: Path, bucket_tokens: int, per_shard: int,
        vocabulary: Vocabulary = Vocabulary(), **settings: Any,
    ) -> Packed:  # fmt: skip
        return pack(lengths, config_of(bucket_tokens, per_shard, **settings), root, vocabulary)

    return run


@pytest.fixture(scope="session")
def wide() -> Vocabulary:
    """A vocabulary that needs uint32."""
    return Vocabulary(200_000, 199_999)
