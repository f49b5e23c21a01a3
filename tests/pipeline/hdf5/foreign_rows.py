"""Good and bad rows of a `sample` file, counted without the classes that read our own."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError, IntegrityError
from pipeline.hdf5.format import SAMPLE
from pipeline.hdf5.shard_file import ShardFile

_BLOCK_BYTES = 16 << 20


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
