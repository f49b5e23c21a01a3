"""The training order: which rows a step reads, a pure function that the trainer and `prep trace`
import.

With s samples consumed and R rows in the data set: epoch e = floor(s / R) and
row = pi(seed, e, s mod R) where pi is the keyed bijection of `permutation`. Epoch 0 of a data set
whose rows were already shuffled globally reads file order. The batch size is not in the key, so
another batch size, num_csx or worker count reads the same samples in the same order.

Of several data sets R counts the samples of one epoch of the mixture; which of their rows sample
pi(seed, e, s mod R) is, `mixture_order` says.
"""

import numpy as np
import numpy.typing as npt

from pipeline.core.permutation import invert, permute
from pipeline.core.rng import key

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


def whole_steps(samples: int, schedule: Schedule) -> int:
    """How many steps, from step 1 on, so many samples are enough for.

    >>> [whole_steps(n, ((1, 8), (5, 16))) for n in (7, 8, 47, 48, 64)]
    [0, 1, 4, 5, 6]
    """
    return int(steps_of_samples(np.array([samples]), schedule)[0]) - 1


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
