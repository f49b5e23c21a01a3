"""The arithmetic of packing: scatter, gather, rows and pack on random documents, brute-forced.

MSL edge cases on purpose: T - 1 a multiple of MSL, one document longer than many rows, windows that
reach over several buckets, buckets without a document, streams of one or two tokens.
"""

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.config import Config
from pipeline.core import rng, storage
from pipeline.core.manifest import Shard, StageManifest, TaskRecord
from pipeline.core.permutation import permute
from pipeline.hdf5.read import SampleDataset
from pipeline.hdf5.verify import check_split, count_rows
from pipeline.hdf5.write import fletcher32, sample_shard
from pipeline.stage import Inputs, Output, Stage, arrow_output
from pipeline.stages.pack import pack_stage, params_stage
from pipeline.stages.rows import rows_stage
from pipeline.stages.shuffle import gather_stage, scatter_stage
from pipeline.stages.tokenize import token_lists

EOS = 50256
SEED = 3


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
    return Shard(output.path, done.size, done.hash, output.content_hash)


def tokens_manifest(
    lengths: list[list[int]], root: Path
) -> tuple[StageManifest, StageManifest, StageManifest]:
    """Manifests of clean (records per task), keep (splits) and tokens, by lengths of documents."""
    clean, keep, tokens, number = [], [], [], 0
    for task, counts in enumerate(lengths):
        ids = [np.arange(n - 1, dtype=np.uint16) + 100 * (number + i) for i, n in enumerate(counts)]
        flat = [np.append(i % 50_000, EOS).astype(np.uint16) for i in ids]
        keys = [rng.key(SEED, "doc", number + i).to_bytes(16, "little") for i in range(len(counts))]
        number += len(counts)
        doc_id = pa.array([task << 32 | i for i in range(len(counts))], pa.uint64())
        split = pa.array(np.zeros(len(counts), np.uint8))
        splits = pa.table({"doc_id": doc_id, "split": split})
        table = pa.table({
            "doc_id": doc_id,
            "doc_key": pa.array(keys, pa.binary(16)),
            "tokens": token_lists(np.concatenate([np.zeros(0, np.uint16), *flat]),
                                  np.array(counts, np.int64)),
        })  # fmt: skip
        shard = publish(arrow_output(f"tokens/{task:06d}.arrow", table), root)
        tokens.append(TaskRecord("", (shard,), {}))
        shard = publish(arrow_output(f"splits/{task:06d}.arrow", splits), root)
        keep.append(TaskRecord("", (shard,), {}))
        clean.append(TaskRecord("", (), {"records": len(counts)}))
    return (
        StageManifest("clean", "", {}, tuple(clean)),
        StageManifest("keep", "", {}, tuple(keep)),
        StageManifest("tokens", "", {}, tuple(tokens)),
    )


def config_of(length: int, bucket_tokens: int, rows_per_shard: int) -> Config:
    """As a user could write it, but with buckets and shards below what a config may ask for."""
    value = {"name": "packing", "seed": SEED, "inputs": [{"name": "x", "path": "x"}],
             "pack": {"max_sequence_length": length}}  # fmt: skip
    config = Config.model_validate_json(json.dumps(value))
    pack = config.pack.model_copy(update={"bucket_tokens": bucket_tokens})
    hdf5 = config.hdf5.model_copy(update={"shard_bytes": 12 * length * rows_per_shard})
    return config.model_copy(update={"pack": pack, "hdf5": hdf5})


def pack(lengths: list[list[int]], config: Config, root: Path) -> None:
    clean, keep, tokens = tokens_manifest(lengths, root)
    scatter = run_stage(scatter_stage(config, keep, tokens), root)
    gather = run_stage(gather_stage(config, scatter), root)
    rows = run_stage(rows_stage(config, clean, gather), root)
    run_stage(params_stage(config, gather, run_stage(pack_stage(config, gather, rows), root)), root)


def expected_stream(root: Path) -> tuple[list[int], list[tuple[int, int]]]:
    """The stream by sorting all documents by rank; and (dense index, token in it) of each token."""
    tables = [pa.ipc.open_file(p).read_all() for p in sorted((root / "tokens").glob("*.arrow"))]
    table = pa.concat_tables(tables)
    keys = table["doc_key"].to_pylist()
    rank = rng.rank(np.array([np.frombuffer(k, "<u8") for k in keys]), SEED, "shuffle").tolist()
    order = sorted(range(len(keys)), key=lambda i: (rank[i], keys[i]))
    documents = table["tokens"].to_pylist()
    stream = [token for i in order for token in documents[i]]
    return stream, [(i, place) for i in order for place in range(len(documents[i]))]


def brute_force(stream: list[int], length: int) -> list[list[list[int]]]:
    """Rows in stream order, token by token."""
    rows = []
    for start in range(0, len(stream) - 1, length):
        ids, mask, labels = [], [], []
        for j in range(start, start + length):
            real = j + 1 < len(stream)
            ids.append(stream[j] if real else EOS)
            mask.append(int(real))
            labels.append(stream[j + 1] if real else EOS)
        rows.append([ids, mask, labels])
    return rows


def read_back(root: Path) -> tuple[npt.NDArray[np.int32], list[dict[str, Any]]]:
    """All rows of the split in data-set order, and the spans with their data-set row."""
    rows: list[Any] = []
    spans = []
    for path in sorted((root / "hdf5/train").glob("*.h5")):
        with h5py.File(path, "r") as file:
            part = file["data"][:]
        for span in pq.read_table(path.with_name(path.stem + ".lineage.parquet")).to_pylist():
            spans.append({**span, "row": span["row"] + len(rows)})
        rows += list(part)
    return np.array(rows), spans


lengths = st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=4)


@settings(max_examples=25)
@given(
    lengths.filter(lambda tasks: any(tasks)),
    st.integers(2, 16),
    st.integers(1, 40),
    st.integers(1, 5),
)
@example([[17]], 16, 1000, 5)  # T - 1 = MSL: one full row, no padding
@example([[9, 8]], 16, 1000, 5)  # the same over two documents
@example([[33]], 16, 1000, 1)  # T - 1 = 2 MSL
@example([[34]], 16, 1000, 1)  # one label more
@example([[18]], 16, 1000, 1)
@example([[2]], 2, 1, 1)  # one label
@example([[1, 1]], 2, 1, 1)  # two documents that are nothing but EOS
@example([[1] * 6] * 4, 5, 1, 2)  # as many buckets as tokens: windows reach over many
@example([[200]], 3, 7, 4)  # one document through every bucket
@example([[1, 100], [], [1]], 16, 10, 2)  # empty buckets, an empty task
def test_rows_and_lineage(tasks: list[list[int]], length: int, bucket: int, per_shard: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        pack(tasks, config_of(length, bucket, per_shard), root)
        stream, owners = expected_stream(root)
        expected = brute_force(stream, length)
        params = json.loads((root / "hdf5/train/data_params.json").read_bytes())
        assert params["n_examples"] == len(expected) == -(-(len(stream) - 1) // length)
        if not expected:
            return
        rows, spans = read_back(root)
        key = rng.key(SEED, "rows", "train")
        order = permute(np.arange(len(expected)), len(expected), key).astype(int).tolist()
        assert rows.tolist() == [expected[stream_row] for stream_row in order]
        assert rows[:, 1].sum() == len(stream) - 1
        _check_spans(spans, order, owners, length)
        facts = check_split(SampleDataset(root / "hdf5/train", params))
        padded = int((len(stream) - 1) % length > 0)
        assert (facts.rows, facts.mask_sum, facts.padded_rows) == (
            len(expected), len(stream) - 1, padded,
        )  # fmt: skip


def _check_spans(
    spans: list[dict[str, Any]], order: list[int], owners: list[tuple[int, int]], length: int
) -> None:
    """Spans, in (row, token_start) order, name the document and its token for every input id."""
    assert [(s["row"], s["token_start"]) for s in spans] == sorted(
        (s["row"], s["token_start"]) for s in spans
    )
    found: dict[int, tuple[int, int]] = {}
    for span in spans:
        assert span["stream_row"] == order[span["row"]]
        assert span["token_end"] > span["token_start"]
        for i in range(span["token_end"] - span["token_start"]):
            place = span["stream_row"] * length + span["token_start"] + i
            assert place not in found
            found[place] = (span["doc"], span["doc_token_start"] + i)
    assert found == dict(enumerate(owners[:-1])), "every token but the last is an input once"


@pytest.mark.parametrize("length", [2, 128, 30_000, 90_000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_any_hdf5_reader_opens_a_shard(length: int, count: int, tmp_path: Path) -> None:
    """Several chunks, odd chunk sizes: plain h5py verifies the checksums we appended."""
    random = np.random.default_rng(length + count)
    ids = random.integers(0, 50257, (count, length + 1), dtype=np.int32)
    rows = np.stack([ids[:, :-1], np.ones((count, length), np.int32), ids[:, 1:]], axis=1)
    path = tmp_path / "shard.h5"
    path.write_bytes(sample_shard(rows))
    with h5py.File(path, "r") as file:
        assert (file["data"][:] == rows).all()
        assert file.attrs["n_examples"] == count
    assert count_rows(path, 50257, length) == (count, 0)
    assert sample_shard(rows) == path.read_bytes(), "the same bytes every time"


@settings(max_examples=40)
@given(st.binary(max_size=800))
@example(b"")
@example(b"\xff" * 65535)
@example(b"\xff\xff" * 721)
@example(b"\x00" * 99)
def test_fletcher32_equals_hdf5(data: bytes) -> None:
    """Against the library itself: it accepts our checksum and stores the same four bytes."""
    if not data:
        return
    with h5py.File(io.BytesIO(), "w") as file:
        values = np.frombuffer(data, np.uint8)
        stored = file.create_dataset("x", data=values, chunks=values.shape, fletcher32=True)
        _, chunk = stored.id.read_direct_chunk((0,))
    assert chunk == data + fletcher32(data).to_bytes(4, "little")
