"""The training order over one or several data sets: which row every sample reads, and back.

Data sets stand one behind the other, and a row is counted over all of them. A data set of n rows
and weight w has k = floor(w n + 1/2) samples in every epoch of the mixture, so R = sum of k and

    k // n  samples read each of its rows, and
    m = k % n  samples read one more row each: in epoch e the rows sigma((e m + j) mod n), j < m,
    where sigma is the keyed bijection of (seed, place of the data set in the list).

So an epoch reads every row floor(w) times or once more; the m chosen rows differ within an epoch
and go round: after E epochs a row was chosen floor(E m / n) times or once more, and ceil(n / m)
epochs have met all of them. A weight of 1 is the data set itself, and a single one of weight 1 is
read exactly as without a mixture. An epoch's samples, all copies and choices of all data sets, are
shuffled together by a `Shuffle`. Memory is O(data sets), apart from what the shuffle needs.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from dedup.arrays import I64
from pipeline.core.order import rows_of_samples, samples_of_rows
from pipeline.core.permutation import invert, permute
from pipeline.core.rng import key

_BLOCK = 1 << 20
"""Samples enumerated at a time."""


class Shuffle(Protocol):
    """A bijection of [0, size) for every epoch: which index each sample of the epoch has."""

    def indices(self, first: int, count: int) -> I64:
        """Of samples [first, first + count), counted over all epochs."""

    def samples(self, index_N: I64, epoch: int) -> I64:
        """The inverse: the sample of `epoch`, counted over all epochs, with each index."""


@dataclass(frozen=True)
class KeyedShuffle:
    """The keyed bijection, in O(1) memory; epoch 0 in file order where that was shuffled before."""

    size: int
    seed: int
    file_order_first_epoch: bool = False

    def indices(self, first: int, count: int) -> I64:
        """See `Shuffle`."""
        return rows_of_samples(
            first, count, rows=self.size, seed=self.seed,
            file_order_first_epoch=self.file_order_first_epoch,
        )  # fmt: skip

    def samples(self, index_N: I64, epoch: int) -> I64:
        """See `Shuffle`."""
        return samples_of_rows(
            index_N, epoch, rows=self.size, seed=self.seed,
            file_order_first_epoch=self.file_order_first_epoch,
        )  # fmt: skip


@dataclass(frozen=True)
class OrderPart:
    """One data set: its rows, and the samples of an epoch that read them."""

    rows: int
    per_epoch: int

    @property
    def copies(self) -> int:
        """How often an epoch reads every row."""
        return self.per_epoch // self.rows

    @property
    def chosen(self) -> int:
        """How many rows an epoch reads once more."""
        return self.per_epoch % self.rows


def samples_of_weight(rows: int, weight: float) -> int:
    """Samples of an epoch that read a data set of so many rows: floor(rows * weight + 1/2), with
    the weight as its decimal digits say.

    >>> [samples_of_weight(5, w) for w in (1, 2.5, 0.1, 0.09)]
    [5, 13, 1, 0]
    """
    return int(rows * Fraction(str(weight)) + Fraction(1, 2))


@dataclass(frozen=True)
class TrainingOrder:
    """The endless sequence of rows that a training run reads."""

    parts: tuple[OrderPart, ...]
    seed: int
    shuffle: Shuffle

    @property
    def epoch_samples(self) -> int:
        """R, the samples of an epoch."""
        return sum(part.per_epoch for part in self.parts)

    def first_row(self, part: int) -> int:
        """The first row of a data set, counted over all."""
        return sum(before.rows for before in self.parts[:part])

    def rows(self, first: int, count: int) -> I64:
        """Rows read by samples [first, first + count), counted over all data sets, (count,)."""
        index_N = self.shuffle.indices(first, count)
        epoch_N = np.arange(first, first + count, dtype=np.int64) // self.epoch_samples
        ends = np.cumsum([part.per_epoch for part in self.parts])
        part_N = np.searchsorted(ends, index_N, side="right")
        out = np.empty(count, np.int64)
        for part in np.unique(part_N).tolist():
            here = part_N == part
            within = index_N[here] - (ends[part] - self.parts[part].per_epoch)
            out[here] = self.first_row(part) + self._rows(part, within, epoch_N[here])
        return out

    def _rows(self, part: int, within_N: I64, epoch_N: I64) -> I64:
        """Rows of one data set from the place of each sample among its samples of the epoch."""
        rows, chosen = self.parts[part].rows, self.parts[part].chosen
        place = within_N - self.parts[part].copies * rows
        extra = place >= 0
        out = within_N % rows
        if extra.any():
            turn = (epoch_N[extra] * chosen + place[extra]) % rows
            out[extra] = permute(turn, rows, self._choice(part)).astype(np.int64)
        return out

    def samples(self, part: int, rows_N: I64, epoch: int) -> tuple[I64, I64]:
        """Every sample of `epoch` that reads one of these rows of a data set, by copy and then in
        the order of `rows_N`: the row's place in `rows_N`, and the sample, (M,) each."""
        mine = self.parts[part]
        begin = sum(before.per_epoch for before in self.parts[:part])
        which = np.tile(np.arange(len(rows_N)), mine.copies)
        index = begin + np.repeat(np.arange(mine.copies) * mine.rows, len(rows_N)) + rows_N[which]
        if mine.chosen and len(rows_N):
            turn = invert(rows_N, mine.rows, self._choice(part)).astype(np.int64)
            place = (turn - epoch * mine.chosen) % mine.rows
            taken = np.flatnonzero(place < mine.chosen)
            which = np.append(which, taken)
            index = np.append(index, begin + mine.copies * mine.rows + place[taken])
        return which, self.shuffle.samples(index, epoch)

    def epochs_to_meet(self, part: int) -> int:
        """Within so many epochs, one after the other, every row of a data set is read."""
        mine = self.parts[part]
        return 1 if mine.copies else -(-mine.rows // mine.chosen)

    def times_read(self, part: int, samples: int) -> I64:
        """How often the first so many samples read every row of a data set, (rows,)."""
        mine, (epochs, rest) = self.parts[part], divmod(samples, self.epoch_samples)
        times = np.full(mine.rows, epochs * mine.copies, np.int64)
        if mine.chosen:
            turn = invert(np.arange(mine.rows), mine.rows, self._choice(part)).astype(np.int64)
            rounds, more = divmod(epochs * mine.chosen, mine.rows)
            times += rounds + (turn < more)
        first = self.first_row(part)
        for begin in range(samples - rest, samples, _BLOCK):
            rows = self.rows(begin, min(_BLOCK, samples - begin)) - first
            np.add.at(times, rows[(rows >= 0) & (rows < mine.rows)], 1)
        return times

    def _choice(self, part: int) -> int:
        return key(self.seed, "mixture-choice", part)
