"""Reading samples in DataLoader workers: read, check, stack, hash, compress.

What travels back to the writer is compressed, so the pipes carry little and the writer is never the
bottleneck. A batch never crosses the end of a file, so that any file can be made again alone with
the batches it was made with.

A worker returns a `Problem` in place of raising, because torch would wrap the error in a traceback.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from torch.utils.data import IterableDataset

from pipeline.convert.dataset.layout import (
    Compression,
    FeatureLayout,
    Values,
    as_numbers,
    collate,
    exact,
    features,
    group_by_shape,
    same_shapes,
)
from pipeline.core.errors import InputError, PrepError, escape_text

Collator = Callable[[list[Any]], Mapping[str, Any]]
DIGEST_BYTES = 16
_LARGEST_CHUNK = (1 << 32) - 1


@dataclass(frozen=True)
class PackedBatch:
    """A batch of samples, ready to be stored: chunks[group][sample], and a digest per sample."""

    first: int
    count: int
    layout: FeatureLayout
    chunks: tuple[tuple[bytes, ...], ...]
    digests: bytes
    """xxh3-128 of each sample's values as stored, one after the other."""


@dataclass(frozen=True)
class Problem:
    """Why a batch could not be packed."""

    message: str
    detail: str
    """The traceback inside the worker, when the dataset or collator itself failed."""


@dataclass(frozen=True)
class SampleRequest:
    """Samples [first, stop) of a map-style dataset; `layout` is None in the first request."""

    first: int
    stop: int
    layout: FeatureLayout | None


@dataclass(frozen=True)
class Packer:
    """How a list of samples becomes a `PackedBatch`."""

    collator: Collator | None
    dtype: np.dtype[Any]
    compression: Compression

    def pack(
        self, samples: list[Any], first: int, layout: FeatureLayout | None, compress: bool = True
    ) -> PackedBatch:
        """Pack samples whose first has index `first`. Raises InputError, also for what the
        collator raises."""
        batch = self._collate(samples, first)
        if layout is None:
            layout = group_by_shape({name: values.shape[1:] for name, values in batch.items()})
        else:
            rows = {name: values[0] for name, values in batch.items()}
            same_shapes(layout.shapes(), rows, first)
        stacks = [
            np.stack([exact(batch[f], self.dtype, f, first) for f in group.features], axis=1)
            for group in layout.groups
        ]
        if any(stack[0].nbytes > _LARGEST_CHUNK for stack in stacks):
            raise InputError(f"sample {first} is larger than 4 GiB, the limit of an HDF5 chunk")
        digests, chunks = [], []
        for index in range(len(samples)):
            row = [stack[index].tobytes() for stack in stacks]
            digests.append(xxhash.xxh3_128_digest(b"".join(row)))
            if compress:
                chunks.append([self.compression.packed(chunk) for chunk in row])
        by_group = tuple(zip(*chunks, strict=True))
        return PackedBatch(first, len(samples), layout, by_group, b"".join(digests))

    def _collate(self, samples: list[Any], first: int) -> dict[str, Values]:
        if self.collator is None:
            return collate(samples, first)
        try:
            result = self.collator(samples)
        except Exception as error:
            raise InputError(
                f"samples {first} to {first + len(samples) - 1}: the data_collator raised "
                f"{type(error).__name__}: {escape_text(str(error))}"
            ) from error
        if not isinstance(result, Mapping):
            raise InputError(f"data_collator returned a {type(result).__name__}, expected a dict")
        batch = {f: as_numbers(v, first, f) for f, v in features(result, first).items()}
        for feature, values in batch.items():
            if values.ndim == 0 or len(values) != len(samples):
                raise InputError(
                    f"data_collator: feature {escape_text(feature)!r} has shape {values.shape} for "
                    f"{len(samples)} samples; expected one row for each sample"
                )
        return batch


def _problem(error: Exception) -> Problem:
    is_explained = isinstance(error, PrepError) and error.__cause__ is None
    return Problem(str(error), "" if is_explained else traceback.format_exc())


class MapReader:
    """A map-style dataset behind torch's batched fetching: a request in, a packed batch out."""

    def __init__(self, dataset: Any, packer: Packer) -> None:
        self.dataset = dataset
        self.packer = packer

    def __getitems__(self, request: SampleRequest) -> PackedBatch | Problem:
        try:
            samples = self._read(request.first, request.stop)
            return self.packer.pack(samples, request.first, request.layout)
        except InputError as error:
            return _problem(error)

    def _read(self, first: int, stop: int) -> list[Any]:
        batched = getattr(self.dataset, "__getitems__", None)
        if batched is not None:
            try:
                samples = list(batched(list(range(first, stop))))
            except Exception:  # noqa: BLE001 - read one by one below, which names the sample
                samples = []
            if len(samples) == stop - first:
                return samples
        return [self._sample(index) for index in range(first, stop)]

    def _sample(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            raise sample_error(index, error) from error


class IterableReader(IterableDataset[PackedBatch | Problem]):
    """An iterable dataset, iterated by one process, cut into packed batches.

    Samples before `begin` are read and hashed, but not compressed.
    """

    def __init__(
        self, dataset: Any, packer: Packer, batch_size: int, samples_per_file: int, begin: int
    ) -> None:
        self.dataset = dataset
        self.packer = packer
        self.batch_size = batch_size
        self.samples_per_file = samples_per_file
        self.begin = begin

    def __iter__(self) -> Iterator[PackedBatch | Problem]:
        layout = None
        first = 0
        try:
            for samples in self._batches():
                packed = self.packer.pack(samples, first, layout, compress=first >= self.begin)
                layout = packed.layout
                first += len(samples)
                yield packed
        except InputError as error:
            yield _problem(error)

    def _batches(self) -> Iterator[list[Any]]:
        samples: list[Any] = []
        total = 0
        iterator = iter(self.dataset)
        while True:
            try:
                sample = next(iterator)
            except StopIteration:
                break
            except Exception as error:
                raise sample_error(total, error) from error
            samples.append(sample)
            total += 1
            if len(samples) == self.batch_size or total % self.samples_per_file == 0:
                yield samples
                samples = []
        if samples:
            yield samples


def sample_error(index: int, error: Exception) -> InputError:
    """The error for a sample whose dataset raised."""
    return InputError(
        f"sample {index}: reading it raised {type(error).__name__}: {escape_text(str(error))}"
    )


def as_is(batch: Any) -> Any:
    """The collate function of the DataLoader: batches are packed where they are read."""
    return batch


def requests(
    spans: Iterable[tuple[int, int]], batch_size: int, layout: FeatureLayout | None
) -> Iterator[SampleRequest]:
    """Every batch of the given (first sample, number of samples), in order."""
    for first, count in spans:
        end = first + count
        for begin in range(first, end, batch_size):
            yield SampleRequest(begin, min(begin + batch_size, end), layout)
