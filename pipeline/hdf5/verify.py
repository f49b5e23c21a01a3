"""Check our own HDF5 shards against the contract of their layout (`pipeline.hdf5.format`)."""

from dataclasses import dataclass

import numpy as np

from pipeline.core.errors import IntegrityError
from pipeline.hdf5.format import CORPUS, SAMPLE, VSL
from pipeline.hdf5.read import Rows, SampleDataset

_BLOCK_TOKENS = 1 << 19


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
