"""The training order: which rows a step reads, a pure function that the trainer and `prep trace`
import.

With s samples consumed and R samples in an epoch: epoch e = floor(s / R), and sample s reads row
pi(seed, e, s mod R), where pi is the keyed bijection of `pipeline.core.rng`. Epoch 0 of a data set
whose rows were already shuffled globally reads file order. The batch size is not in the key, so
another batch size, num_csx or worker count reads the same samples in the same order.

Several data sets are one behind the other, and a row is counted over all of them. A data set of n
rows and weight w has k = floor(w n + 1/2) samples in every epoch, so R = sum of k and

    k // n  samples read each of its rows, and
    m = k % n  samples read one more row each: in epoch e the rows sigma((e m + j) mod n), j < m,
    where sigma is the keyed bijection of (seed, place of the data set in the list).

So an epoch reads every row floor(w) times or once more; the m chosen rows differ within an epoch
and go round: after E epochs a row was chosen floor(E m / n) times or once more, and ceil(n / m)
epochs have met all of them. A single data set of weight 1 is read as without a mixture. Memory is
O(data sets), apart from what the shuffle needs.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64
from pipeline.core.rng import invert, key, permute

Schedule = tuple[tuple[int, int], ...]


def batch_size_at(step: int, schedule: Schedule) -> int:
    """Global batch size of 1-based `step`; schedule is ((from_step, batch_size), ...) ascending
    from 1.

    >>> batch_size_at(5, ((1, 8), (5, 16)))
    16
    """
    return next(size for first, size in reversed(schedule) if first <= step)


def samples_before_step(step: int, schedule: Schedule) -> int:
    """Samples consumed before 1-based `step`.

    >>> samples_before_step(7, ((1, 8), (5, 16)))
    64
    """
    total = 0
    for index, (first, size) in enumerate(schedule):
        following = schedule[index + 1][0] if index + 1 < len(schedule) else step
        total += max(0, min(step, following) - first) * size
    return total


def steps_of_samples(samples_N: npt.NDArray[np.int64], schedule: Schedule) -> npt.NDArray[np.int64]:
    """The 1-based step that consumes each sample, (N,) int64.

    >>> steps_of_samples(np.array([0, 31, 32, 63, 64]), ((1, 8), (5, 16))).tolist()
    [1, 4, 5, 6, 7]
    """
    first = np.array([step for step, _ in schedule])
    size = np.array([size for _, size in schedule])
    before = np.array([samples_before_step(step, schedule) for step, _ in schedule])
    part = np.searchsorted(before, samples_N, side="right") - 1
    return np.asarray(first[part] + (samples_N - before[part]) // size[part])


def rows_of_samples(
    first: int, count: int, *, rows: int, seed: int, file_order_first_epoch: bool
) -> npt.NDArray[np.int64]:
    """Rows read by samples [first, first + count), (count,) int64, each in [0, rows)."""
    samples = np.arange(first, first + count, dtype=np.int64)
    epochs, within = np.divmod(samples, rows)
    out = within.copy()
    for epoch in np.unique(epochs):
        if epoch == 0 and file_order_first_epoch:
            continue
        here = epochs == epoch
        epoch_key = key(seed, "training-order", int(epoch))
        out[here] = permute(within[here], rows, epoch_key).astype(np.int64)
    return out


def samples_of_rows(
    rows_N: npt.NDArray[np.int64], epoch: int, *, rows: int, seed: int, file_order_first_epoch: bool
) -> npt.NDArray[np.int64]:
    """The inverse of `rows_of_samples`: the one sample of `epoch` that reads each row, (N,) int64.

    >>> order = {"rows": 5, "seed": 1, "file_order_first_epoch": True}
    >>> samples_of_rows(rows_of_samples(5, 5, **order), 1, **order).tolist()
    [5, 6, 7, 8, 9]
    """
    within = rows_N
    if epoch or not file_order_first_epoch:
        within = invert(rows_N, rows, key(seed, "training-order", epoch)).astype(np.int64)
    return epoch * rows + within


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
        order = {"rows": self.size, "seed": self.seed}
        file_order = self.file_order_first_epoch
        return rows_of_samples(first, count, **order, file_order_first_epoch=file_order)

    def samples(self, index_N: I64, epoch: int) -> I64:
        """See `Shuffle`."""
        order = {"rows": self.size, "seed": self.seed}
        file_order = self.file_order_first_epoch
        return samples_of_rows(index_N, epoch, **order, file_order_first_epoch=file_order)


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
            again = np.flatnonzero(place < mine.chosen)
            which = np.append(which, again)
            index = np.append(index, begin + mine.copies * mine.rows + place[again])
        return which, self.shuffle.samples(index, epoch)

    def rounds(self, low: int, high: int) -> range:
        """The epochs that samples [low, high) are of."""
        return range(low // self.epoch_samples, -(-high // self.epoch_samples))

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
