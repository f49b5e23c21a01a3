"""Data sets of the three formats in which every row can be told apart, and a model that fits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core import storage
from pipeline.core.hashes import hash_bytes
from pipeline.hdf5.chunks import shard_image
from pipeline.hdf5.format import LAYOUTS
from pipeline.hdf5.read import SampleDataset, open_dataset
from trainer.config import ModelConfig

MSL, VOCABULARY, EOS = 8, 5000, 0
Make = Callable[..., Path]


def sample_rows(count: int, first: int = 1) -> np.ndarray:
    """(count, 3, MSL) int32; row k holds numbers that no other row does."""
    ids = first + np.arange(count * (MSL + 1)).reshape(count, MSL + 1)
    mask = np.ones((count, MSL), np.int64)
    return np.stack([ids[:, :-1], mask, ids[:, 1:]], axis=1).astype(np.int32)


def vsl_rows(count: int, first: int = 1) -> np.ndarray:
    """(count, 5, MSL) int32: a segment of 5 columns, one of 2, and a pad."""
    rows = np.zeros((count, 5, MSL), np.int32)
    rows[:, :3] = sample_rows(count, first)
    rows[:, :, 7] = EOS
    rows[:, 3, :7] = [4, 3, 2, 1, 0, 1, 0]
    rows[:, 4, :7] = [0, 1, 2, 3, 4, 0, 1]
    return rows


def write(directory: Path, data: np.ndarray, layout: str, shards: int = 2, **changes: Any) -> Path:
    """Publish data as shards with their data_params.json."""
    files = []
    for index, part in enumerate(np.array_split(data, shards)):
        name = f"examples_{index:06d}.h5"
        published = storage.publish(directory / name, shard_image(np.ascontiguousarray(part)))
        entry = {"name": name, "n_examples": len(part), "hash": published.hash}
        files.append({**entry, "content_hash": hash_bytes(part.tobytes())})
    params = {
        "format": layout,
        "features": list(LAYOUTS[layout].features),
        "max_sequence_length": MSL,
        "n_examples": len(data),
        "vocab_size": VOCABULARY,
        "eos_id": EOS,
        "pad_id": EOS,
        "rows_globally_shuffled": True,
        "seed": 0,
        "files": files,
        "dataset_hash": hash_bytes(data.tobytes()),
    }
    storage.write_json(directory / "data_params.json", {**params, **changes})
    return directory


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(name, rows, layout=, first=, **params): a data set directory."""

    def made(name: str, count: int, layout: str = "sample", first: int = 1, **changes: Any) -> Path:
        if layout == "corpus":
            data = np.arange(first, first + count).astype(np.uint16)
        else:
            data = (vsl_rows if layout == "vsl" else sample_rows)(count, first)
        return write(tmp_path / name, data, layout, **changes)

    return made


@pytest.fixture
def model() -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCABULARY, max_position_embeddings=MSL, hidden_size=8, num_hidden_layers=1,
        num_heads=1, filter_size=8,
    )  # fmt: skip


def all_rows(directory: Path, length: int = MSL) -> np.ndarray:
    """All rows of a data set, in file order."""
    dataset: SampleDataset = open_dataset(directory, length)
    return dataset.read(np.arange(dataset.rows))
