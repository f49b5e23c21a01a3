"""Runs in every format, and the owner of every token of their HDF5 rows by brute force: from the
bytes of the rows alone, and from the batches that the trainer itself reads."""

import functools
import itertools
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.hdf5.read import open_dataset
from trainer.data import TrainingData

SEED = 9
SCHEDULE = ((1, 4), (11, 6), (40, 3))
LAST_STEP = 130
CHECKPOINTS = (20, 60, 100)
VARIANTS = {
    "sample": (),
    "short rows": ("pack.max_sequence_length=32", "hdf5.shard_bytes=65536"),
    "mixture": ("mixture={epochs: {Wiki: 2.5, Code: 0.5}}", "splits={test: 10 %}"),
    "one-token documents": (
        "lines={unit: line, min_characters: 10, min_documents: 2}",
        "dedup.preset=none",
        "pack.max_sequence_length=40",
        "hdf5.shard_bytes=65536",
    ),
    "vsl": ("pack.format=vsl",),
    "vsl mixture": (
        "pack.format=vsl",
        "mixture={epochs: {Wiki: 2.5, Code: 0.5}, cluster_weights: {2: 3}}",
    ),
    "corpus": ("pack.format=corpus", "hdf5.shard_bytes=20000"),
}
Cells = set[tuple[int, int]]


@dataclass
class Truth:
    """Of one split: document -> {(row of the data set, column)} of its inputs and of its labels
    that count; of a corpus inputs are {(shard, token)}. And the stream as it was shuffled."""

    inputs: dict[int, Cells]
    labels: dict[int, Cells]


@dataclass
class Run:
    """A run in one of the formats."""

    directory: Path
    documents: pa.Table
    splits: dict[str, Truth]


def stream_of(directory: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of a split's stream and the document of each, from the intermediates."""
    lists = {}
    for path in sorted((directory / "tokens").glob("*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        lists |= dict(zip(table["doc_key"].to_pylist(), table["tokens"].to_pylist(), strict=True))
    keys = pq.read_table(directory / "documents.parquet")["doc_key"].to_pylist()
    dense = {key: row for row, key in enumerate(keys)}
    tokens, owners = [], []
    for path in sorted((directory / "stream").glob(f"{split}-*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        for key, count in zip(
            table["doc_key"].to_pylist(), table["tokens"].to_pylist(), strict=True
        ):
            assert len(lists[key]) == count
            tokens += lists[key]
            owners += [dense[key]] * count
    return np.array(tokens), np.array(owners)


def rows_of(directory: Path, split: str) -> np.ndarray:
    """Everything the shards of a split hold, in the order of the files."""
    found = []
    for path in sorted((directory / "hdf5" / split).glob("*.h5")):
        with h5py.File(path, "r") as file:
            found.append(file["data"][:])
    return np.concatenate(found)


def sample_truth(directory: Path, split: str) -> Truth:
    tokens, owners = stream_of(directory, split)
    data = rows_of(directory, split)
    length = data.shape[2]
    windows: dict[bytes, int] = {}
    for k in range(0, len(tokens) - 1, length):
        same = windows.setdefault(tokens[k : k + length + 1].tobytes(), k)
        whose = owners[k : k + length + 1]
        assert np.array_equal(whose, owners[same : same + length + 1]), "rows that are alike"
    truth = Truth(defaultdict(set), defaultdict(set))
    for row, (ids, mask, labels) in enumerate(data):
        count = int(mask.sum())
        window = np.append(ids[:count], labels[count - 1]).astype(tokens.dtype)
        start = windows[window.tobytes()]
        for column in range(count):
            truth.inputs[int(owners[start + column])].add((row, column))
            truth.labels[int(owners[start + column + 1])].add((row, column))
    return truth


def vsl_truth(directory: Path, split: str) -> Truth:
    tokens, owners = stream_of(directory, split)
    data = rows_of(directory, split)
    length = data.shape[2]
    starts = [0, *(np.flatnonzero(tokens == 50256) + 1).tolist()]
    pieces: dict[bytes, set[int]] = defaultdict(set)
    for begin, end in itertools.pairwise(starts):
        for first in range(begin, end - 1, length):
            pieces[tokens[first : min(first + length + 1, end)].tobytes()].add(int(owners[begin]))
    truth = Truth(defaultdict(set), defaultdict(set))
    for row, (ids, mask, labels, span, position) in enumerate(data):
        for column in np.flatnonzero((mask == 1) & (position == 0)).tolist():
            count = int(span[column]) + 1
            piece = np.append(ids[column : column + count], labels[column + count - 1])
            (owner,) = pieces[piece.astype(tokens.dtype).tobytes()]
            truth.inputs[owner] |= {(row, c) for c in range(column, column + count)}
            truth.labels[owner] |= {(row, c) for c in range(column, column + count)}
    return truth


def corpus_truth(directory: Path, split: str) -> Truth:
    tokens, owners = stream_of(directory, split)
    assert np.array_equal(rows_of(directory, split), tokens)
    truth = Truth(defaultdict(set), defaultdict(set))
    start = 0
    for shard, path in enumerate(sorted((directory / "hdf5" / split).glob("*.h5"))):
        with h5py.File(path, "r") as file:
            count = len(file["data"])
        for token in range(count):
            truth.inputs[int(owners[start + token])].add((shard, token))
        start += count
    length = json.loads((directory / "hdf5" / split / "data_params.json").read_bytes())[
        "max_sequence_length"
    ]
    for token in range(1, (len(tokens) - 1) // length * length + 1):
        truth.labels[int(owners[token])].add(divmod(token - 1, length))
    return truth


TRUTHS = {"sample": sample_truth, "vsl": vsl_truth, "corpus": corpus_truth}


@pytest.fixture(scope="session", params=VARIANTS)
def run(request: pytest.FixtureRequest, corpus: Any, tmp_path_factory: Any) -> Run:
    out = tmp_path_factory.mktemp("forward") / "run"
    pipeline.run(corpus.config, out, 0, overrides=VARIANTS[request.param])
    form = json.loads((out / "hdf5/train/data_params.json").read_bytes())["format"]
    names = sorted(path.name for path in (out / "hdf5").iterdir())
    splits = {name: TRUTHS[form](out, name) for name in names}
    return Run(out, pq.read_table(out / "documents.parquet"), splits)


@pytest.fixture(scope="session")
def model_dir(run: Run, tmp_path_factory: Any) -> Path:
    return write_model_dir(tmp_path_factory.mktemp("model"), run.directory)


def write_model_dir(model_dir: Path, directory: Path, **changes: Any) -> Path:
    """What a training run of LAST_STEP steps leaves behind, as far as tracing reads it."""
    params = json.loads((directory / "hdf5/train/data_params.json").read_bytes())
    value = {
        "seed": SEED,
        "batch_size_schedule": [list(entry) for entry in SCHEDULE],
        "datasets": [{"from_step": 1, "dataset_hash": params["dataset_hash"]}],
    }
    (model_dir / "run.json").write_text(json.dumps({**value, **changes}))
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in range(1, LAST_STEP + 1)]
    (model_dir / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 99999, "lo')
    for step in CHECKPOINTS:
        path = model_dir / "checkpoints" / f"step_{step:07d}"
        path.mkdir(parents=True)
        (path / "manifest.json").write_text("{}")
    (model_dir / "checkpoints" / "step_0000110").mkdir()
    return model_dir


class Watched:
    """A data set that notes which rows the trainer asks it for."""

    def __init__(self, directory: Path) -> None:
        self.dataset = open_dataset(directory / "hdf5/train")
        self.rows = self.dataset.rows
        self.rows_globally_shuffled = self.dataset.rows_globally_shuffled
        self.asked: list[int] = []

    def read(self, rows_B: np.ndarray) -> np.ndarray:
        self.asked = rows_B.tolist()
        return self.dataset.read(rows_B)


def batches(run: Run, last_step: int = LAST_STEP) -> dict[int, list[int]]:
    """step -> rows of the data set, as the trainer reads them."""
    return _batches(run.directory, last_step)


@functools.cache
def _batches(directory: Path, last_step: int) -> dict[int, list[int]]:
    watched = Watched(directory)
    data = TrainingData(watched, seed=SEED, schedule=SCHEDULE)  # type: ignore[arg-type]
    found = {}
    for step in range(1, last_step + 1):
        data.batch(step)
        found[step] = watched.asked
    return found
