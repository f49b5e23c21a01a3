"""Check HDF5 shards: the layout contract of our own, and foreign files without trusting them."""

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from pipeline.core.errors import InputError, IntegrityError
from pipeline.hdf5.read import Rows, SampleDataset, checked_dataset

_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class SplitFacts:
    """What a full read of a split found."""

    rows: int
    mask_sum: int
    eos_labels: int
    padded_rows: int


def check_split(dataset: SampleDataset) -> SplitFacts:
    """Read every row of a split. Raises IntegrityError for ids outside the vocabulary, labels that
    are not the next input, a mask that is not ones then zeros, pads that are not EOS, or more than
    one padded row."""
    rows = mask_sum = eos_labels = padded = 0
    for shard, start, block in dataset.blocks():
        where = f"{dataset.directory / shard.name}: rows from {start}"
        _check_rows(block, dataset, where)
        mask = block[:, 1]
        rows += len(block)
        mask_sum += int(mask.sum())
        eos_labels += int(((block[:, 2] == dataset.eos_id) & (mask == 1)).sum())
        padded += int((mask[:, -1] == 0).sum())
    if rows != dataset.rows or padded > 1:
        raise IntegrityError(
            f"{dataset.directory}: {rows} rows ({dataset.rows} declared), {padded} padded"
        )
    return SplitFacts(rows, mask_sum, eos_labels, padded)


def _check_rows(block: Rows, dataset: SampleDataset, where: str) -> None:
    ids, mask, labels = block[:, 0], block[:, 1], block[:, 2]
    if block.min() < 0 or max(ids.max(), labels.max()) >= dataset.vocab_size:
        raise IntegrityError(f"{where}: a token id outside [0, {dataset.vocab_size})")
    if not np.isin(mask, (0, 1)).all() or (np.diff(mask, axis=1) > 0).any():
        raise IntegrityError(f"{where}: the loss mask is not ones followed by zeros")
    shifted = (ids[:, 1:] == labels[:, :-1]) | (mask[:, 1:] == 0)
    if not shifted.all():
        raise IntegrityError(f"{where}: labels are not the next input ids")
    pads = mask == 0
    if (labels[pads] != dataset.eos_id).any() or (ids[pads] != dataset.eos_id).any():
        raise IntegrityError(f"{where}: padding that is not the EOS id")


def count_rows(
    path: Path, vocab_size: int, max_sequence_length: int | None = None
) -> tuple[int, int]:
    """Good and bad rows of any `sample` file; for files we did not write.

    A row is bad when an id is outside the vocabulary, a mask value is not 0 or 1, or a label is not
    the next input where both count. Raises InputError, before anything large is read, for what is
    not such a file: another dtype or shape, links to other files, storage that was never written.
    """
    try:
        with h5py.File(path, "r") as file:
            data = checked_dataset(path, file)
            if max_sequence_length is not None and data.shape[2] != max_sequence_length:
                raise InputError(
                    f"{path}: sequence length {data.shape[2]}, "
                    f"its siblings have {max_sequence_length}"
                )
            step = max(1, _BLOCK_BYTES // (data.shape[1] * data.shape[2] * 4))
            bad = sum(
                _bad_rows(data[start : start + step], vocab_size)
                for start in range(0, data.shape[0], step)
            )
            return data.shape[0] - bad, bad
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: not a sound HDF5 file: {error}") from error


def _bad_rows(block: Rows, vocab_size: int) -> int:
    ids, mask, labels = block[:, 0], block[:, 1], block[:, 2]
    wrong = ((ids < 0) | (ids >= vocab_size) | (labels < 0) | (labels >= vocab_size)).any(axis=1)
    wrong |= ~np.isin(mask, (0, 1)).all(axis=1)
    wrong |= ((ids[:, 1:] != labels[:, :-1]) & (mask[:, 1:] == 1) & (mask[:, :-1] == 1)).any(axis=1)
    return int(wrong.sum())
