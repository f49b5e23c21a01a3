"""Global batches: which samples a step reads, as tensors.

The order is `pipeline.core.order`: a pure function of (seed, samples consumed), so nothing about
the data has to be remembered but that count. Shapes: B sequences, S tokens (MSL).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.order import Schedule, batch_size_at, rows_of_samples, samples_before_step
from pipeline.hdf5.format import SAMPLE, SAMPLE_FEATURES
from pipeline.hdf5.read import SampleDataset, open_dataset
from trainer.config import ModelConfig

Batch = dict[str, torch.Tensor]


def open_checked(directory: Path, model: ModelConfig) -> SampleDataset:
    """Open a data set and check that it fits the model.

    Raises ConfigError naming both values when MSL or vocabulary differ, or for another format than
    `sample`; InputError without rows.
    """
    dataset = open_dataset(directory)
    if dataset.layout is not SAMPLE:
        raise ConfigError(
            f"{directory}: format {dataset.layout.name}, but training needs {SAMPLE.name}; "
            f"`prep repack RUN --out DIR --format {SAMPLE.name}` makes it from the same tokens"
        )
    pairs = (
        ("max_position_embeddings", model.max_position_embeddings,
         "max_sequence_length", dataset.max_sequence_length),
        ("vocab_size", model.vocab_size, "vocab_size", dataset.vocab_size),
    )  # fmt: skip
    for ours, wanted, theirs, found in pairs:
        if wanted != found:
            raise ConfigError(
                f"model.{ours} is {wanted} but the data set {directory} has {theirs} {found}; "
                "change one of them"
            )
    if dataset.rows == 0:
        raise InputError(f"{directory}: the data set has no rows")
    return dataset


class TrainingData:
    """The endless sequence of samples of one run."""

    def __init__(self, dataset: SampleDataset, *, seed: int, schedule: Schedule) -> None:
        self.dataset = dataset
        self.schedule = schedule
        self._seed = seed

    def batch(self, step: int) -> Batch:
        """The global batch of 1-based `step`; each feature (B, S) int64."""
        rows_B = rows_of_samples(
            samples_before_step(step, self.schedule),
            batch_size_at(step, self.schedule),
            rows=self.dataset.rows,
            seed=self._seed,
            file_order_first_epoch=self.dataset.rows_globally_shuffled,
        )
        return to_batch(self.dataset.read(rows_B))


def to_batch(rows_BCS: npt.NDArray[np.int32]) -> Batch:
    """(B, 3, S) int32 rows -> feature name -> (B, S) int64 tensor."""
    tensor = torch.from_numpy(rows_BCS).long()
    return {name: tensor[:, channel] for channel, name in enumerate(SAMPLE_FEATURES)}
