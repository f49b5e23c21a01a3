"""`DistributedSampler`: an order of samples that depends on (seed, epoch, global batch size)."""

import hashlib
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from wafer_backend.errors import BackendConfigError


class DistributedSampler(Sampler[Any]):
    """Sample numbers of `data_source`, in global batches when `batch_size` is given.

    Every epoch is a permutation of the first `num_samples` samples (all by default), from `seed`
    and the epoch alone. One iteration is one epoch. The last, short batch of an epoch: with
    `drop_last` its samples are carried into the next epoch's first batch, so none is lost; else
    it is yielded, filled up from the start of the epoch's order with `pad_last`. `start_index`
    and `set_state`: samples consumed so far, which is all there is to resume by. `shard` has no
    effect: a loader yields global batches, for any num_csx.
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
        available = len(data_source)
        self.num_samples = available if num_samples is None else num_samples
        if not 0 < self.num_samples <= available:
            raise BackendConfigError(
                f"DistributedSampler: num_samples = {self.num_samples}: expected 1 to {available}, "
                "the samples there are"
            )
        if batch_size is not None and batch_size < 1:
            raise BackendConfigError(f"DistributedSampler: batch_size = {batch_size}: at least 1")
        if shuffle and seed is None:
            raise BackendConfigError(
                "DistributedSampler: shuffle needs a seed, or a resumed run would see another order"
            )
        self.shuffle = shuffle
        self.seed = seed
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.pad_last = pad_last
        self.set_state(start_index)

    def set_state(self, start_index: int) -> None:
        """Go on after `start_index` samples, counted from the start of epoch 0."""
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
        wanted = torch.arange(self.batch_size - filled) % self.num_samples
        return order[wanted].tolist()

    def _order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.num_samples)
        key = hashlib.blake2b(f"{self.seed}/{epoch}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "big") >> 1)
        return torch.randperm(self.num_samples, generator=generator)
