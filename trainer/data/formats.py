"""One data set in the format that the model reads, and its rows as tensors.

Shapes: B sequences, C channels (3, of VSL 5), S tokens (MSL).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pipeline.core.errors import ConfigError, InputError
from pipeline.hdf5.foreign_dataset import open_any
from pipeline.hdf5.format import DATA_PARAMS, SAMPLE_FEATURES, VSL, VSL_FEATURES
from pipeline.hdf5.read import SampleDataset
from trainer.config import ModelConfig

Batch = dict[str, torch.Tensor]


def open_checked(directory: Path, model: ModelConfig, use_vsl: bool = False) -> SampleDataset:
    """Open a data set of any format and check that it fits the model. Row k of a `corpus` is the
    k-th window of its stream for the model's MSL; a data set that is not ours may have fewer ids
    than the model.

    Raises ConfigError naming both values when MSL, vocabulary or use_vsl differ; InputError without
    rows.
    """
    dataset = open_any(directory, model.max_position_embeddings, model.vocab_size)
    _check_layout(dataset, use_vsl)
    pairs = (
        ("max_position_embeddings", model.max_position_embeddings,
         "max_sequence_length", dataset.max_sequence_length),
        ("vocab_size", model.vocab_size, "vocab_size", dataset.vocab_size),
    )  # fmt: skip
    for ours, wanted, theirs, found in pairs:
        if wanted != found:
            raise ConfigError(
                f"model.{ours} is {wanted} but the data set {directory} has {theirs} {found} "
                f"(in its {DATA_PARAMS}); change one of them"
            )
    if dataset.rows == 0:
        raise InputError(
            f"{directory}: the data set has no rows of {dataset.max_sequence_length} tokens"
        )
    return dataset


def _check_layout(dataset: SampleDataset, use_vsl: bool) -> None:
    is_vsl = dataset.layout is VSL
    if use_vsl and not is_vsl:
        raise ConfigError(
            f"{dataset.directory}: format {dataset.layout.name}, but use_vsl is true, which needs "
            "vsl; leave use_vsl out, or write the same tokens in that format with "
            "`prep repack RUN --out DIR --format vsl`"
        )
    if is_vsl and not use_vsl:
        raise ConfigError(
            f"{dataset.directory}: format vsl, but training needs sample or corpus while use_vsl "
            "is false; set use_vsl: true, or write the same tokens in another format with "
            "`prep repack RUN --out DIR --format sample`"
        )


def to_batch(rows_BCS: npt.NDArray[np.int32]) -> Batch:
    """(B, C, S) int32 rows -> feature name -> (B, S) int64 tensor; the five channels of VSL are
    features too."""
    names = VSL_FEATURES if rows_BCS.shape[1] == len(VSL_FEATURES) else SAMPLE_FEATURES
    # numpy casts in the calling thread alone: torch would start a pool for a thread that reads
    # ahead.
    tensor = torch.from_numpy(rows_BCS.astype(np.int64))
    return {name: tensor[:, channel] for channel, name in enumerate(names)}
