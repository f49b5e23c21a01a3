"""Tokens put into the channels of rows (`pipeline.hdf5.format`). Shapes: R rows, S columns."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import I32, I64
from dedup.compiled import kernel
from pipeline.hdf5.format import VSL

Tokens = npt.NDArray[np.unsignedinteger[Any]]
"""uint16 or uint32, as the vocabulary needs."""


def fill_sample_rows(rows_R3S: I32, windows_KW: Tokens, window_K: I64, row_K: I64) -> None:
    """Write K windows of W = S + 1 tokens, EOS behind the first `window`, into these rows.

    [input_ids, loss mask, labels]: a window of n tokens has n - 1 labels. The last token of a
    stream is an EOS, so a padded row's ids and labels are EOS from its last label on.
    """
    if windows_KW.shape[1] != rows_R3S.shape[2] + 1 or len(window_K) != len(windows_KW):
        raise ValueError(f"windows {windows_KW.shape} do not fit rows {rows_R3S.shape}")
    if len(row_K) and (int(row_K.max()) >= len(rows_R3S) or int(row_K.min()) < 0):
        raise ValueError("a row outside the block")
    _fill_sample(rows_R3S, windows_KW, window_K, row_K)


@kernel
def _fill_sample(rows: I32, windows: Tokens, window: I64, row: I64) -> None:
    """rows: C-contiguous; window, row: as long as windows, whose width is one more than theirs."""
    width = windows.shape[1] - 1
    for k in range(len(row)):
        r, labels = row[k], window[k] - 1
        for j in range(width):
            rows[r, 0, j] = windows[k, j]
        for j in range(width):
            rows[r, 1, j] = j < labels
        for j in range(width):
            rows[r, 2, j] = windows[k, j + 1]


def empty_vsl_rows(count: int, max_sequence_length: int, eos_id: int) -> I32:
    """(R, 5, S) int32 rows that hold nothing but padding."""
    rows = np.zeros((count, VSL.channels, max_sequence_length), np.int32)
    rows[:, 0] = eos_id
    rows[:, 2] = eos_id
    return rows


def fill_vsl_rows(rows_R5S: I32, tokens: Tokens, labels_N: I64, row_N: I64, slot_N: I64) -> None:
    """Write segments into `rows`: segment i fills columns slot to slot + labels of its row. Their
    tokens stand one after the other, each segment's labels + 1 of them."""
    if len(tokens) != int(labels_N.sum()) + len(labels_N):
        raise ValueError(f"{len(tokens)} tokens for {labels_N.sum()} labels")
    if len(labels_N) and (int(row_N.max()) >= len(rows_R5S) or int(row_N.min()) < 0):
        raise ValueError("a row outside the block")
    if len(labels_N) and (int((slot_N + labels_N).max()) > rows_R5S.shape[2] or slot_N.min() < 0):
        raise ValueError("a segment outside its row")
    _fill_vsl(rows_R5S, tokens, labels_N, row_N, slot_N)


@kernel
def _fill_vsl(rows: I32, tokens: Tokens, labels: I64, row: I64, slot: I64) -> None:
    """rows: C-contiguous; row, slot: as long as labels; tokens: as many as labels sum to, plus one
    for each of them."""
    first = 0
    for i in range(len(labels)):
        r, c, n = row[i], slot[i], labels[i]
        for j in range(n):
            rows[r, 0, c + j] = tokens[first + j]
        for j in range(n):
            rows[r, 1, c + j] = 1
        for j in range(n):
            rows[r, 2, c + j] = tokens[first + j + 1]
        for j in range(n):
            rows[r, 3, c + j] = n - 1 - j
        for j in range(n):
            rows[r, 4, c + j] = j
        first += n + 1


def gather_segments(tokens: Tokens, start_N: I64, labels_N: I64) -> Tokens:
    """The labels + 1 tokens from `start` on of every segment, one after the other."""
    if len(start_N) and (int((start_N + labels_N).max()) >= len(tokens) or start_N.min() < 0):
        raise ValueError("a segment outside the tokens")
    gathered = np.empty(int(labels_N.sum()) + len(labels_N), tokens.dtype)
    _gather(tokens, start_N, labels_N, gathered)
    return gathered


@kernel
def _gather(tokens: Tokens, start: I64, labels: I64, out: Tokens) -> None:
    """labels: as long as start; out: as many as labels sum to, plus one for each of them."""
    place = 0
    for i in range(len(start)):
        for j in range(labels[i] + 1):
            out[place + j] = tokens[start[i] + j]
        place += labels[i] + 1
