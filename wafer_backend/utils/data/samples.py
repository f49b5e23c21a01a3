"""What a loader reads: samples of given shapes, and the order in which samples come.

A sample of `SyntheticDataset` is a function of its number. The order of `DistributedSampler`
depends on (seed, epoch, global batch size).
"""

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.data import Dataset, Sampler

from wafer_backend.errors import BackendConfigError


@dataclass(frozen=True)
class SampleSpec:
    """One tensor of a sample. `shape`: without the batch. `range`: lowest value and the one
    above the highest; whole numbers in 0 … 1 and floats in 0 … 1 by default.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not low < high:
            raise BackendConfigError(f"SampleSpec.range = {self.range}: expected low < high")

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest value and the one above the highest."""
        return self.range or ((0.0, 1.0) if self.dtype.is_floating_point else (0, 2))

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """One tensor of this shape and dtype."""
        low, high = self.bounds
        if self.dtype.is_floating_point:
            unit = torch.rand(self.shape, generator=generator)
            return (low + (high - low) * unit).to(self.dtype)
        return torch.randint(int(low), int(high), self.shape, generator=generator).to(self.dtype)


class SyntheticDataset(Dataset[Any]):
    """`num_samples` samples shaped like `sample_spec`: nested dicts, lists and tuples of
    SampleSpec, of tensors (every sample is that tensor) or of functions from a sample's number.

    Sample i depends on i and its place in the structure alone.
    """

    def __init__(self, sample_spec: Any, num_samples: int) -> None:
        if type(num_samples) is not int or num_samples < 1:
            raise BackendConfigError(
                f"SyntheticDataset: num_samples = {num_samples!r}: expected a number, at least 1"
            )
        leaves, self._structure = _pytree.tree_flatten(sample_spec)
        for leaf in leaves:
            if not isinstance(leaf, SampleSpec | torch.Tensor | Callable):
                raise BackendConfigError(
                    f"SyntheticDataset: {leaf!r} in the spec is not a SampleSpec, tensor or "
                    "function"
                )
        self._leaves = leaves
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of {self._num_samples}")
        drawn = [self._draw(leaf, place, index) for place, leaf in enumerate(self._leaves)]
        return _pytree.tree_unflatten(drawn, self._structure)

    def _draw(self, leaf: Any, place: int, index: int) -> Any:
        if isinstance(leaf, SampleSpec):
            seed = index * len(self._leaves) + place
            return leaf.draw(torch.Generator().manual_seed(seed))
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf(index)


pad_index = -1
"""A placeholder among sample numbers in the API; no sampler of this package yields it."""


class DistributedSampler(Sampler[Any]):
    """Sample numbers of `data_source`, in global batches when `batch_size` is given.

    The order is that of the API (cstorch 2.10, `CBSampler` of the Model Zoo), sample by sample.
    Epoch e of n samples is torch's random permutation from seed + e, cut to `num_samples` (n by
    default). With `num_samples` above n it is that many samples in random order: whole copies of
    the data, then the start of a permutation for the rest. Without `shuffle` samples come in
    their own order, again from 0 after the last.

    One iteration is one epoch. The last, short batch of an epoch: with `drop_last` its samples are
    carried into the next epoch's first batch, so none is lost; else it is yielded. `start_index`
    and `set_state`: samples consumed so far, which is all there is to resume by. `shard` has no
    effect: a loader yields global batches, for any num_csx.

    Different from the API: `pad_last` fills the last batch from the start of the epoch's order,
    not with placeholders; an epoch too short for a batch is never skipped, nor is an iteration
    without a batch; `set_state` keeps all settings. Raises BackendConfigError for a setting out of
    range.
    """

    def __init__(
        self,
        data_source: Sized,
        shuffle: bool = True,
        seed: int | None = None,
        start_index: int = 0,
        shard: bool = True,
        batch_size: int | None = None,
        drop_last: bool = True,
        num_samples: int | None = None,
        pad_last: bool = False,
    ) -> None:
        self._available = len(data_source)
        self.num_samples = self._available if num_samples is None else num_samples
        if not self._available:
            raise BackendConfigError("DistributedSampler: the data source has no samples")
        if type(self.num_samples) is not int or self.num_samples < 1:
            raise BackendConfigError(
                f"DistributedSampler: num_samples = {self.num_samples!r}: expected samples of an "
                "epoch, at least 1"
            )
        if batch_size is not None and batch_size < 1:
            raise BackendConfigError(
                f"DistributedSampler: batch_size = {batch_size}: expected at least 1"
            )
        if shuffle and seed is None:
            raise BackendConfigError(
                "DistributedSampler: shuffle needs a seed, or a resumed run would read another "
                "order"
            )
        self.shuffle = shuffle
        self.seed = seed
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.pad_last = pad_last
        self.set_state(start_index)

    def set_state(self, start_index: int) -> None:
        """Continue after `start_index` samples, counted from the start of epoch 0."""
        if type(start_index) is not int or start_index < 0:
            raise BackendConfigError(
                f"DistributedSampler: start_index = {start_index!r}: expected samples, at least 0"
            )
        self._consumed = start_index

    def __len__(self) -> int:
        """Batches (samples without a batch size) of the next iteration."""
        start, end = self._span()
        size = self.batch_size or 1
        return (end - start) // size if self.drop_last else -((start - end) // size)

    def __iter__(self) -> Iterator[Any]:
        start, end = self._span()
        stream = self._stream(start, end)
        if self.batch_size is None:
            for index in stream:
                self._consumed += 1
                yield index
            return
        batch: list[int] = []
        for index in stream:
            batch.append(index)
            if len(batch) == self.batch_size:
                self._consumed += len(batch)
                yield batch
                batch = []
        if batch and not self.drop_last:
            self._consumed += len(batch)
            yield batch + self._padding(start // self.num_samples, len(batch))

    def _span(self) -> tuple[int, int]:
        """Where the next iteration starts and ends in the stream of all epochs: at the end of
        the epoch it starts in, or of the first that completes a batch.
        """
        least = (self.batch_size or 1) if self.drop_last else 1
        epochs = -(-(self._consumed + least) // self.num_samples)
        return self._consumed, epochs * self.num_samples

    def _stream(self, start: int, end: int) -> Iterator[int]:
        for epoch in range(start // self.num_samples, end // self.num_samples):
            first = max(start - epoch * self.num_samples, 0)
            yield from self._order(epoch)[first:].tolist()

    def _padding(self, epoch: int, filled: int) -> list[int]:
        if not self.pad_last or self.batch_size is None:
            return []
        order = self._order(epoch)
        positions = torch.arange(self.batch_size - filled) % self.num_samples
        return order[positions].tolist()

    def _order(self, epoch: int) -> torch.Tensor:
        """The samples of an epoch, (num_samples,) int64."""
        size, available = self.num_samples, self._available
        if self.seed is None or not self.shuffle:
            return torch.arange(size) % available
        generator = torch.Generator().manual_seed(self.seed + epoch)
        if size <= available:
            return torch.randperm(available, generator=generator)[:size]
        rest = (size - 1) % available + 1
        chosen = torch.cat(
            [
                torch.arange(size - rest) % available,
                torch.randperm(available, generator=generator)[:rest],
            ]
        )
        return chosen[torch.randperm(size, generator=generator)]
