"""Check our own HDF5 shards against the contract of their layout (`pipeline.hdf5.format`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError, IntegrityError
from pipeline.hdf5.format import CORPUS, SAMPLE, VSL
from pipeline.hdf5.read import Rows, SampleDataset
from pipeline.hdf5.shard_file import ShardFile

_BLOCK_TOKENS = 1 << 19
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class SplitContents:
    """What a full read of a split found.

    `eos_labels`: labels that are an EOS and count. A corpus has neither rows nor a mask: its
    `tokens` and, as `eos_labels`, the EOS among them count.
    """

    rows: int
    mask_sum: int
    eos_labels: int
    padded_rows: int
    tokens: int = 0


def check_split(dataset: SampleDataset) -> SplitContents:
    """Read all of a split.

    Raises IntegrityError for ids outside the vocabulary, labels that are not the next input of
    their document or stream, a mask that is not ones then zeros, pads that are not EOS, spans and
    positions of `vsl` that do not count down and up inside segments, and more than one padded row
    of `sample`. Where takedowns masked documents, zeros may stand anywhere in the mask; whether
    they stand where they should is for `pipeline.takedown.check`.
    """
    if dataset.layout is CORPUS:
        return _check_corpus(dataset)
    rows = mask_sum = eos_labels = padded = 0
    for shard, start, block in dataset.blocks(max(1, _BLOCK_TOKENS // dataset.max_sequence_length)):
        where = f"{dataset.directory / shard.name}: rows from {start}"
        _check_rows(block, dataset, where)
        if dataset.layout is VSL:
            _check_segments(block, where)
        mask = block[:, 1]
        rows += len(block)
        mask_sum += int(mask.sum())
        eos_labels += int(((block[:, 2] == dataset.eos_id) & (mask == 1)).sum())
        padded += 0 if dataset.takedowns else int((mask[:, -1] == 0).sum())
    if rows != dataset.rows or (dataset.layout is SAMPLE and padded > 1):
        raise IntegrityError(
            f"{dataset.directory}: {rows} rows ({dataset.rows} declared), {padded} padded"
        )
    return SplitContents(rows, mask_sum, eos_labels, padded)


def _check_corpus(dataset: SampleDataset) -> SplitContents:
    tokens = eos = 0
    for shard, start, block in dataset.blocks(_BLOCK_TOKENS):
        if block.max() >= dataset.vocab_size:
            raise IntegrityError(
                f"{dataset.directory / shard.name}: tokens from {start}: "
                f"a token id outside [0, {dataset.vocab_size})"
            )
        tokens += len(block)
        eos += int((block == dataset.eos_id).sum())
    return SplitContents(0, 0, eos, 0, tokens)


def _check_rows(block: Rows, dataset: SampleDataset, where: str) -> None:
    ids, mask, labels = block[:, 0], block[:, 1], block[:, 2]
    if block.min() < 0 or max(ids.max(), labels.max()) >= dataset.vocab_size:
        raise IntegrityError(f"{where}: a token id outside [0, {dataset.vocab_size})")
    in_order = bool(dataset.takedowns) or not (np.diff(mask, axis=1) > 0).any()
    if not np.isin(mask, (0, 1)).all() or not in_order:
        raise IntegrityError(f"{where}: the loss mask is not ones followed by zeros")
    shifted = (ids[:, 1:] == labels[:, :-1]) | (mask[:, 1:] == 0)
    if dataset.layout is VSL:
        shifted |= block[:, 4, 1:] == 0
    if not shifted.all():
        raise IntegrityError(f"{where}: labels are not the next input ids")
    pads = mask == 0
    if (labels[pads] != dataset.eos_id).any() or (ids[pads] != dataset.eos_id).any():
        raise IntegrityError(f"{where}: padding that is not the EOS id")


def _check_segments(block: Rows, where: str) -> None:
    """Positions count up from 0 and spans down to 0 in every segment; pads have neither."""
    real = block[:, 1] == 1
    span, position = block[:, 3], block[:, 4]
    if span[~real].any() or position[~real].any():
        raise IntegrityError(f"{where}: padding with an attention span or a position")
    first = real & (position == 0)
    last = real.copy()
    last[:, :-1] &= first[:, 1:] | ~real[:, 1:]
    goes_on = real[:, 1:] & ~first[:, 1:]
    up = (np.diff(position, axis=1) == 1) | ~goes_on
    down = (np.diff(span, axis=1) == -1) | ~goes_on
    if (position[:, 0][real[:, 0]] != 0).any() or not up.all():
        raise IntegrityError(f"{where}: position ids do not count up from 0 in every segment")
    if span[last].any() or not down.all():
        raise IntegrityError(f"{where}: attention spans do not count down to 0 in every segment")


def count_rows(
    path: Path, vocab_size: int, max_sequence_length: int | None = None
) -> tuple[int, int]:
    """Good and bad rows of any `sample` file; for files we did not write.

    A row is bad when an id is outside the vocabulary, a mask value is not 0 or 1, or a label is not
    the next input where both count. Raises InputError, before anything large is read, for what is
    not such a file: another dtype or shape, links to other files, storage that was never written.
    """
    file = ShardFile(path)
    shape, dtype = file.shape, file.dtype
    if dtype != np.dtype("<i4") or len(shape) != 3 or shape[1] != SAMPLE.channels:
        raise InputError(
            f"{path}: 'data' is {dtype} {shape}, expected int32 (N, {SAMPLE.channels}, MSL)"
        )
    if max_sequence_length is not None and shape[2] != max_sequence_length:
        raise InputError(
            f"{path}: sequence length {shape[2]}, but its siblings have {max_sequence_length}"
        )
    step = max(1, _BLOCK_BYTES // (shape[1] * shape[2] * 4))
    try:
        bad = sum(_bad_rows(block, vocab_size) for _, block in file.blocks(step))
    except IntegrityError as error:
        raise InputError(str(error)) from error
    return file.rows - bad, bad


def _bad_rows(block: npt.NDArray[Any], vocab_size: int) -> int:
    ids, mask, labels = block[:, 0], block[:, 1], block[:, 2]
    wrong = ((ids < 0) | (ids >= vocab_size) | (labels < 0) | (labels >= vocab_size)).any(axis=1)
    wrong |= ~np.isin(mask, (0, 1)).all(axis=1)
    wrong |= ((ids[:, 1:] != labels[:, :-1]) & (mask[:, 1:] == 1) & (mask[:, :-1] == 1)).any(axis=1)
    return int(wrong.sum())
