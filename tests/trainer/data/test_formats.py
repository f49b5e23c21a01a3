"""Data sets in the format that a model reads: checks, windows of a corpus, batches."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pipeline.core.errors import ConfigError, InputError
from trainer.config import ModelConfig
from trainer.data import open_checked, to_batch

from .conftest import EOS, MSL, Make, sample_rows, vsl_rows


def stored(directory: Path) -> np.ndarray:
    parts = []
    for path in sorted(directory.glob("*.h5")):
        with h5py.File(path, "r") as file:
            parts.append(file["data"][:])
    return np.concatenate(parts)


def test_sample(make: Make, model: ModelConfig) -> None:
    dataset = open_checked(make("a", 7), model)
    rows_B = np.array([6, 0, 3, 3])
    batch = to_batch(dataset.read(rows_B))
    assert list(batch) == ["input_ids", "attention_mask", "labels"]
    for channel, values in enumerate(batch.values()):
        assert values.dtype == torch.int64
        assert np.array_equal(values.numpy(), sample_rows(7)[rows_B, channel])


def test_vsl(make: Make, model: ModelConfig) -> None:
    dataset = open_checked(make("a", 7, "vsl"), model, use_vsl=True)
    batch = to_batch(dataset.read(np.array([5, 1])))
    assert list(batch) == [
        "input_ids", "attention_mask", "labels", "attention_span", "position_ids"
    ]  # fmt: skip
    for channel, values in enumerate(batch.values()):
        assert values.dtype == torch.int64
        assert np.array_equal(values.numpy(), vsl_rows(7)[[5, 1], channel])


@pytest.mark.parametrize("length", [1, 3, 8, 20])
def test_row_k_of_a_corpus_is_its_kth_window(make: Make, model: ModelConfig, length: int) -> None:
    """For the MSL of the model, whatever the one that is recorded; over the border of shards."""
    directory = make("a", 101, "corpus", max_sequence_length=16)
    changed = model.model_copy(update={"max_position_embeddings": length})
    dataset = open_checked(directory, changed)
    tokens = stored(directory).astype(np.int64)
    assert dataset.rows == 100 // length
    rows_B = np.random.default_rng(1).permutation(dataset.rows)
    batch = to_batch(dataset.read(rows_B))
    for place, row in enumerate(rows_B.tolist()):
        window = tokens[row * length : row * length + length + 1]
        assert batch["input_ids"][place].tolist() == window[:-1].tolist()
        assert batch["labels"][place].tolist() == window[1:].tolist()
    assert bool((batch["attention_mask"] == 1).all())
    assert len(batch) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_position_embeddings": 16}, "max_position_embeddings is 16 .* max_sequence_length 8"),
        ({"vocab_size": 61}, "vocab_size is 61 but the data set .*/a has vocab_size 5000"),
    ],
)
def test_another_model(make: Make, model: ModelConfig, change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_checked(make("a", 7), model.model_copy(update=change))


@pytest.mark.parametrize(
    ("layout", "use_vsl", "message"),
    [
        ("vsl", False, "format vsl, but training needs sample or corpus while use_vsl is false"),
        ("sample", True, "format sample, but use_vsl is true, which needs vsl"),
        ("corpus", True, "format corpus, but use_vsl is true, which needs vsl"),
    ],
)
def test_use_vsl_against_the_format(
    make: Make, model: ModelConfig, layout: str, use_vsl: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_checked(make("a", 40, layout), model, use_vsl)


def test_nothing_to_read(make: Make, model: ModelConfig) -> None:
    with pytest.raises(InputError, match="no rows of 8 tokens"):
        open_checked(make("short", MSL, "corpus"), model)
    assert open_checked(make("one", MSL + 1, "corpus"), model).rows == 1
    with pytest.raises(InputError, match="nowhere: no such directory"):
        open_checked(Path("nowhere"), model)
    assert EOS == 0
