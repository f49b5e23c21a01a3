"""Packed rows back to the stream they were cut from.

`sample`: row k holds ids = stream[k*S : k*S + S] and labels one token further, so the stream is the
ids of all rows and then the last label. Where a row does not follow the one before (rows that were
shuffled, or packed by several processes), a document may be cut: that is a loss. `vsl`: every
segment is ids and one more label, which is EOS unless the document goes on elsewhere.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64, Array
from pipeline.core.errors import InputError

Flags = npt.NDArray[np.bool_]
NOTHING_PENDING = -1
DOCUMENT_ENDED = -2
"""Pending: a document ended without EOS, which is a loss if anything follows."""


@dataclass(frozen=True)
class Channels:
    """Where axis 1 of the rows holds what; -1 for a channel that is not there."""

    ids: int
    mask: int = -1
    labels: int = -1
    span: int = -1
    position: int = -1


@dataclass(frozen=True)
class UnpackedRows:
    """Tokens of a block of rows, the positions at which documents are cut, how many masked tokens
    they hold, and the last label, which comes next unless the next row begins with it."""

    tokens: Array
    cuts: I64
    masked: int
    pending: int


@dataclass(frozen=True)
class Carry:
    """What the rows before leave: the last label of the last one, if it was full; and whether rows
    are known to be shuffled, so that such a label belongs to some other row."""

    pending: int
    shuffled: bool


def unpack_samples(
    rows_NCS: Array, channels: Channels, special: tuple[int, int], carry: Carry, where: str
) -> UnpackedRows:
    """Rows of `sample` as a stream; `special` are the ids of EOS and of padding.

    Raises InputError when labels are not the next ids.
    """
    eos_id, pad_id = special
    ids_NS = rows_NCS[:, channels.ids]
    count, length = ids_NS.shape
    if channels.labels < 0:
        return UnpackedRows(ids_NS.reshape(-1), np.zeros(0, np.int64), 0, NOTHING_PENDING)
    labels_NS = rows_NCS[:, channels.labels]
    mask_NS = rows_NCS[:, channels.mask] if channels.mask >= 0 else np.ones_like(ids_NS)
    counts = _without_last_token(ids_NS, mask_NS, labels_NS, pad_id)
    columns = np.arange(length)
    _check_shift(ids_NS, labels_NS, columns[1:] < counts[:, None], where)
    masked = int(((mask_NS == 0) & (columns < counts[:, None])).sum())

    tokens = np.concatenate([ids_NS, labels_NS[:, -1:]], axis=1)
    some = counts > 0
    last_label = np.where(some, labels_NS[np.arange(count), np.maximum(counts, 1) - 1], -1)
    tokens[np.arange(count), counts] = last_label
    full = counts == length
    follows = full & some
    follows[:-1] &= some[1:] & (ids_NS[1:, 0] == last_label[:-1])
    follows[-1] = False
    open_end = bool(full[-1])
    extra = some & ~full | (full & ~follows & (not carry.shuffled))
    extra[-1] &= not open_end
    kept = np.arange(length + 1) < (counts + extra)[:, None]
    flat = tokens[kept]

    ends = np.cumsum(counts + extra)
    broken = some & ~follows
    broken[-1] &= not open_end
    cuts = ends[broken & (ends > 0)]
    lead, followed = _lead(carry, ids_NS, counts)
    flat = np.concatenate([lead, flat]).astype(ids_NS.dtype)
    cuts = cuts + len(lead)
    if not followed:
        cuts = np.concatenate([[len(lead)], cuts])
    cuts = np.unique(cuts)
    inside = cuts[(cuts == 0) | (flat[np.maximum(cuts, 1) - 1] != eos_id)]
    after = int(last_label[-1]) if open_end else NOTHING_PENDING
    if len(inside) and inside[-1] == len(flat):
        inside, after = inside[:-1], DOCUMENT_ENDED
    return UnpackedRows(flat, inside, masked, after)


def _lead(carry: Carry, ids_NS: Array, counts: I64) -> tuple[I64, bool]:
    """The label that was pending, where the first row does not begin with it; whether it does."""
    if carry.pending == DOCUMENT_ENDED:
        return np.zeros(0, np.int64), False
    if carry.pending < 0 or (counts[0] > 0 and ids_NS[0, 0] == carry.pending):
        return np.zeros(0, np.int64), True
    return np.array([] if carry.shuffled else [carry.pending], np.int64), False


def _without_last_token(ids_NS: Array, mask_NS: Array, labels_NS: Array, pad_id: int) -> I64:
    """Content of each row, but for the last token of a stream, which is a label and, in a padded
    row, the id before the padding as well."""
    counts = content_lengths(ids_NS, mask_NS, pad_id)
    inside = content_lengths(np.full_like(ids_NS, pad_id), mask_NS, pad_id)
    row = np.arange(len(ids_NS))
    at = np.minimum(inside, ids_NS.shape[1] - 1)
    repeated = ids_NS[row, at] == labels_NS[row, np.maximum(inside, 1) - 1]
    alone = (counts == inside + 1) & (inside > 0) & (labels_NS[row, at] == pad_id)
    return np.where(alone & repeated, inside, counts)


def content_lengths(ids_NS: Array, mask_NS: Array, pad_id: int) -> I64:
    """Columns of each row up to its padding: mask 0 and the pad id to the end of the row.

    >>> content_lengths(np.array([[5, 9, 9], [5, 6, 7]]), np.array([[1, 0, 0], [0, 0, 0]]), 9)
    array([1, 3])
    """
    content = (mask_NS != 0) | (ids_NS != pad_id)
    length = ids_NS.shape[1]
    trailing = np.argmax(content[:, ::-1], axis=1)
    lengths: I64 = np.where(content.any(axis=1), length - trailing, 0)
    return lengths


def _check_shift(ids_NS: Array, labels_NS: Array, inside: Flags, where: str) -> None:
    wrong = (ids_NS[:, 1:] != labels_NS[:, :-1]) & inside
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{where}: row {row} of these, column {column}: the label is "
            f"{int(labels_NS[row, column])}, but the next id is {int(ids_NS[row, column + 1])}: "
            "these are not rows of a language model's stream; --to hdf5 copies them as they are"
        )


def unpack_vsl(rows_NCS: Array, channels: Channels, eos_id: int, where: str) -> UnpackedRows:
    """Rows of `vsl`, segment after segment. Raises InputError when labels are not the next ids."""
    ids, mask, labels, span, position = (
        rows_NCS[:, channel]
        for channel in (
            channels.ids, channels.mask, channels.labels, channels.span, channels.position
        )
    )  # fmt: skip
    content = (mask != 0) | (span != 0) | (position != 0)
    goes_on = content & (span != 0)
    if goes_on[:, -1].any() or (goes_on[:, :-1] & ~content[:, 1:]).any():
        raise InputError(f"{where}: attention_span counts more columns than its segment has")
    _check_shift(ids, labels, goes_on[:, :-1], where)
    flat, last = ids[content], ~goes_on[content]
    ends = np.flatnonzero(last) + 1
    closing = labels[content][last]
    tokens = np.insert(flat, ends, closing)
    cuts = ends + np.arange(1, len(ends) + 1)
    bare = cuts[closing != eos_id]
    masked = int((content & (mask == 0)).sum())
    return UnpackedRows(tokens, bare, masked, NOTHING_PENDING)
