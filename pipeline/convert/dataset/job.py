"""The arguments of `convert_dataset_to_HDF5`, checked before anything is read or written, and the
DataLoader they ask for: which batches it reads, and what its failures mean.
"""

import contextlib
import functools
import os
import pickle
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from pipeline.convert.dataset.layout import parse_compression
from pipeline.convert.dataset.samples import (
    Collator,
    IterableReader,
    MapReader,
    PackedBatch,
    Packer,
    Problem,
    SampleRequest,
    as_is,
)
from pipeline.core.errors import ConfigError, InputError, ResourceError, escape_text
from pipeline.hdf5.format import DATA_PARAMS, SHARD_SUFFIX

_DTYPES = "iuf"


@dataclass(frozen=True, kw_only=True)
class ConvertJob:
    """What is converted, to where and how."""

    dataset: Any
    directory: Path
    name: str
    num_workers: int
    batch_size: int
    packer: Packer
    params: Mapping[str, Any]
    """The settings as data_params.json shows them."""

    @property
    def samples_per_file(self) -> int:
        """Samples in every file but the last."""
        return int(self.params["samples_per_file"])

    @property
    def samples(self) -> int | None:
        """Length of the dataset; None when it can only be iterated."""
        return None if _iterable(self.dataset) else len(self.dataset)

    def file_name(self, index: int) -> str:
        """The name of file `index`, from 0; names count from 1."""
        return f"{self.name}-{index + 1}{SHARD_SUFFIX}"

    def ours(self, name: str) -> bool:
        """Whether a name in the directory is one of this conversion's."""
        file = re.escape(self.name) + r"-[1-9][0-9]*" + re.escape(SHARD_SUFFIX)
        return name == DATA_PARAMS or re.fullmatch(file, name) is not None

    def identity(self) -> dict[str, Any]:
        """What two calls must share to be the same conversion."""
        settings = {k: v for k, v in self.params.items() if k != "output_dir"}
        return {"format": 1, "name": self.name, "samples": self.samples, **settings}


def conflicts(name: str) -> bool:
    """Whether readers of the output directory would take a file for one of the data set."""
    return name.endswith(SHARD_SUFFIX) or name == DATA_PARAMS


def check_job(
    dataset: Any,
    output_dir: str,
    name: str,
    samples_per_file: int,
    num_workers: int,
    batch_size: int,
    collator: Collator | None,
    dtype: Any,
    compression: str | int | None,
) -> ConvertJob:
    """The job that the arguments describe. Raises ConfigError naming the wrong one."""
    _check_number("samples_per_file", samples_per_file, 1)
    _check_number("num_workers", num_workers, 0)
    _check_number("batch_size", batch_size, 1)
    if not isinstance(name, str) or not name or Path(name).name != name or name.startswith("."):
        raise ConfigError(f"name: {name!r}; expected the beginning of a file name")
    _check_dataset(dataset)
    stored = _dtype(dtype)
    params = {
        "output_dir": output_dir,
        "dtype": dtype if isinstance(dtype, str) else stored.str,
        "compression": compression,
        "samples_per_file": samples_per_file,
    }
    packer = Packer(collator, stored, parse_compression(compression))
    return ConvertJob(
        dataset=dataset,
        directory=Path(output_dir),
        name=name,
        num_workers=num_workers,
        batch_size=batch_size,
        packer=packer,
        params=params,
    )


def _check_number(argument: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{argument}: {value!r}; expected a whole number of at least {least}")


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        stored: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"dtype: {dtype!r}; expected a numpy dtype such as 'i4'") from error
    if stored.kind not in _DTYPES or stored.itemsize > 8:
        raise ConfigError(f"dtype: {dtype!r}; expected an integer or float dtype such as 'i4'")
    return stored


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, Mapping):
        splits = ", ".join(escape_text(str(key), 40) for key in list(dataset)[:5])
        raise ConfigError(
            f"dataset: a dict ({splits}), expected a dataset of samples; convert each on its own"
        )
    if _iterable(dataset):
        if not isinstance(dataset, Iterable):
            kind = type(dataset).__name__
            raise ConfigError(f"dataset: a {kind} has neither __getitem__ nor __iter__")
    elif not hasattr(dataset, "__len__"):
        kind = type(dataset).__name__
        raise ConfigError(f"dataset: a {kind} has __getitem__ but no __len__; it needs both")


def _iterable(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


class Queue:
    """The batch sampler: every request in it is made once; `requests` may be filled again."""

    def __init__(self, first: Iterable[SampleRequest]) -> None:
        self.requests = iter(first)

    def __iter__(self) -> Iterator[SampleRequest]:
        return self.requests


def map_loader(reader: MapReader, queue: Queue, job: ConvertJob, workers: int) -> DataLoader[Any]:
    """A loader whose workers stay alive between two fillings of the queue."""
    return _loader(reader, job, workers, batch_sampler=queue, persistent_workers=workers > 0)


def iterable_loader(reader: IterableReader, job: ConvertJob) -> DataLoader[Any]:
    """A loader of at most one worker: several would yield the samples of a plain iterable dataset
    several times, and in an order that depends on their number."""
    return _loader(reader, job, min(job.num_workers, 1), batch_size=None)


def _loader(reader: Any, job: ConvertJob, workers: int, **how: Any) -> DataLoader[Any]:
    with _no_advice():
        return DataLoader(
            reader,
            num_workers=workers,
            collate_fn=as_is,
            worker_init_fn=functools.partial(let_go, str(job.directory.resolve())),
            **how,
        )


def let_go(directory: str, worker: int) -> None:
    """Close the lock that a forked worker inherits: when its parent is killed it lives on for some
    seconds, and the same call must not be refused meanwhile."""
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(entry.path) == f"{directory}/.lock":
                os.close(int(entry.name))


@contextlib.contextmanager
def explain_deaths() -> Iterator[None]:
    """Raises ResourceError when a worker dies, which torch tells at any moment, by a signal."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise ResourceError(
            f"a process that reads samples died ({str(error).splitlines()[0]}); call again to "
            "resume, with fewer num_workers or a smaller batch_size if memory is short"
        ) from error


@contextlib.contextmanager
def _no_advice() -> Iterator[None]:
    """torch warns of more workers than cores, which reading from a slow disk can well use, and of
    what cannot be pickled before it raises."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        warnings.filterwarnings("ignore", "Got pickle error", UserWarning)
        yield


def pack_batches(loader: DataLoader[Any]) -> Iterator[PackedBatch]:
    """What the workers pack. Raises InputError for what they find wrong, ConfigError when the
    dataset cannot be sent to them."""
    try:
        with _no_advice():
            iterator = iter(loader)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the dataset or data_collator cannot be sent to worker processes ({error}); define "
            "them at the top of a module, or give num_workers=0"
        ) from error
    for batch in iterator:
        if isinstance(batch, Problem):
            raise _with_detail(InputError(batch.message), batch.detail)
        yield batch


def _with_detail(error: InputError, detail: str) -> InputError:
    if detail:
        error.add_note(detail)
    return error
