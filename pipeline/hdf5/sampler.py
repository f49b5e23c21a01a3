"""The order in which rows are read: ours by its name in a config, and that of Model Zoo's map-style
loader, as a batch sampler and as a shuffle.

Model Zoo's epoch e is `torch.randperm` of a generator seeded with seed + e, cut or extended to
`num_samples`. Batch g of the endless sequence of epochs belongs to task g mod num_tasks, so the
global order does not depend on the number of tasks. Source: `CBSampler` of Model Zoo R2.x, which
counts batches from the restart, where this counts from the very first one.
"""

from collections.abc import Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Literal

import numpy as np

from dedup.arrays import I64
from pipeline.core.errors import ConfigError
from pipeline.core.order import KeyedShuffle, OrderPart, Shuffle, TrainingOrder

if TYPE_CHECKING:
    import torch


MOST_SAMPLES = 1 << 27
"""Samples of an epoch that `ModelZooShuffle` takes: 1 GiB for an order, 2 with its inverse."""


class ModelZooSampler:
    """Batches of row numbers for `DataLoader(dataset, batch_sampler=...)`.

    `dataset` has the length that is sampled from; `batch_size` counts the samples of one batch of
    one task. Iterating gives the batches of this task in the current epoch and leaves the sampler
    at the next one. With `drop_last`, samples left over at the end of an epoch begin the first
    batch of the next; without it, they are a shorter batch (one task only).

    Resume by `set_state(samples_streamed)` with the samples that all tasks together have consumed;
    count them where batches are used, since a DataLoader asks ahead. Raises ConfigError for
    numbers that make no order.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        num_samples: int | None = None,
        drop_last: bool = True,
        num_tasks: int = 1,
        task: int = 0,
    ) -> None:
        self.rows = len(dataset)
        self.num_samples = self.rows if num_samples is None else num_samples
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.drop_last, self.num_tasks, self.task = drop_last, num_tasks, task
        if min(self.rows, self.num_samples, batch_size, num_tasks) < 1 or not 0 <= task < num_tasks:
            raise ConfigError(
                f"cannot order {self.num_samples} samples from {self.rows} rows in batches of "
                f"{batch_size} for task {task} of {num_tasks}: all must be 1 or more, and the "
                "task less than the number of tasks"
            )
        if num_tasks > 1 and not drop_last:
            raise ConfigError(
                "drop_last=False gives batches of unequal size, so it needs num_tasks=1"
            )
        self._streamed = 0
        self._epoch_order: tuple[int, torch.Tensor | range] | None = None

    def set_state(self, samples_streamed: int) -> None:
        """Go on behind so many samples of the global sequence."""
        if samples_streamed < 0:
            raise ConfigError(f"samples_streamed is {samples_streamed}, expected 0 or more")
        self._streamed = samples_streamed

    def __len__(self) -> int:
        """Batches that the next iteration gives to this task."""
        first = self._streamed // self.batch_size
        last = first + self._batches_left()
        return len(range(first + (self.task - first) % self.num_tasks, last, self.num_tasks))

    def __iter__(self) -> Iterator[list[int]]:
        first = self._streamed // self.batch_size
        start, end, batches = self._streamed, self._end(), self._batches_left()
        for batch in range(batches):
            low = start + batch * self.batch_size
            high = min(low + self.batch_size, end)
            self._streamed = high
            if (first + batch) % self.num_tasks == self.task:
                yield self._samples(low, high)
        if not self.drop_last:
            self._streamed = end

    def _end(self) -> int:
        """Where this iteration ends: the end of the epoch, or of the first that fills a batch."""
        enough = self._streamed + (self.batch_size if self.drop_last else 1)
        return -(-enough // self.num_samples) * self.num_samples

    def _batches_left(self) -> int:
        rows = self._end() - self._streamed
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def _samples(self, low: int, high: int) -> list[int]:
        """Rows of samples [low, high) of the global sequence."""
        rows: list[int] = []
        while low < high:
            epoch, place = divmod(low, self.num_samples)
            stop = min(self.num_samples, place + high - low)
            part = self._order(epoch)[place:stop]
            rows += [r % self.rows for r in part] if isinstance(part, range) else part.tolist()
            low += stop - place
        return rows

    def _order(self, epoch: int) -> "torch.Tensor | range":
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            order = self._shuffle(epoch) if self.shuffle else range(self.num_samples)
            self._epoch_order = epoch, order
        return self._epoch_order[1]

    def _shuffle(self, epoch: int) -> "torch.Tensor":
        import torch

        generator = _generator(self.seed, epoch)
        if self.num_samples <= self.rows:
            return torch.randperm(self.rows, generator=generator)[: self.num_samples]
        whole = -(-self.num_samples // self.rows) - 1
        last = torch.randperm(self.rows, generator=generator)
        repeated = torch.cat([torch.arange(self.rows).repeat(whole), last])[: self.num_samples]
        return repeated[torch.randperm(self.num_samples, generator=generator)]


class ModelZooShuffle:
    """`torch.randperm` of every epoch, as a `pipeline.core.order.Shuffle`: the order of
    `ModelZooSampler` with its defaults.

    An epoch takes 8 bytes a sample of memory, and as much again once `samples` is asked of it; the
    last one is kept. Raises ConfigError for more samples than MOST_SAMPLES. Equal for one version
    of torch: torch does not promise the numbers of `randperm` for others.
    """

    def __init__(self, size: int, seed: int) -> None:
        if size > MOST_SAMPLES:
            raise ConfigError(
                "order: modelzoo keeps 8 bytes a row in memory and takes at most "
                f"{MOST_SAMPLES:,} rows in an epoch, but there are {size:,}; use order: keyed"
            )
        self.size, self.seed = size, seed
        self._kept: tuple[int, I64] | None = None
        self._kept_inverse: tuple[int, I64] | None = None

    def indices(self, first: int, count: int) -> I64:
        """Of samples [first, first + count), counted over all epochs, (count,)."""
        parts, low = [np.zeros(0, np.int64)], first
        while low < first + count:
            epoch, place = divmod(low, self.size)
            part = self._order(epoch)[place : place + first + count - low]
            parts.append(part)
            low += len(part)
        return np.concatenate(parts)

    def samples(self, index_N: I64, epoch: int) -> I64:
        """The sample of `epoch`, counted over all epochs, with each index, (N,)."""
        if self._kept_inverse is None or self._kept_inverse[0] != epoch:
            inverse = np.empty(self.size, np.int64)
            inverse[self._order(epoch)] = np.arange(self.size)
            self._kept_inverse = epoch, inverse
        return epoch * self.size + self._kept_inverse[1][index_N]

    def _order(self, epoch: int) -> I64:
        if self._kept is None or self._kept[0] != epoch:
            import torch

            order = torch.randperm(self.size, generator=_generator(self.seed, epoch))
            self._kept = epoch, order.numpy()
        return self._kept[1]


def _generator(seed: int, epoch: int) -> "torch.Generator":
    import torch

    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    return generator


OrderName = Literal["keyed", "modelzoo"]
"""keyed: `pipeline.core.order`; modelzoo: `torch.randperm` of every epoch, 8 bytes a row."""


def training_order(
    name: OrderName, parts: Sequence[OrderPart], seed: int, rows_globally_shuffled: Sequence[bool]
) -> TrainingOrder:
    """The order over data sets; the flags are those of their manifests.

    Keyed, epoch 0 of a single data set that is read once and was shuffled globally is file order.
    Raises ConfigError for a modelzoo order of too many rows.
    """
    size = sum(part.per_epoch for part in parts)
    plain = len(parts) == 1 and parts[0].per_epoch == parts[0].rows
    shuffle: Shuffle = KeyedShuffle(size, seed, plain and all(rows_globally_shuffled))
    if name == "modelzoo":
        shuffle = ModelZooShuffle(size, seed)
    return TrainingOrder(tuple(parts), seed, shuffle)
