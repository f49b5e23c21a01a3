"""The DataLoader of a conversion: which batches it reads, and what its failures mean."""

import contextlib
import functools
import os
import pickle
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from pipeline.core.errors import ConfigError, InputError, ResourceError
from pipeline.hdf5.convert_job import ConvertJob
from pipeline.hdf5.convert_samples import (
    IterableReader,
    MapReader,
    PackedBatch,
    Problem,
    SampleRequest,
    as_is,
)


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
            reader, num_workers=workers, collate_fn=as_is,
            worker_init_fn=functools.partial(let_go, str(job.directory.resolve())), **how,
        )  # fmt: skip


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


def packed_batches(loader: DataLoader[Any]) -> Iterator[PackedBatch]:
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
    for made in iterator:
        if isinstance(made, Problem):
            raise _with_detail(InputError(made.message), made.detail)
        yield made


def _with_detail(error: InputError, detail: str) -> InputError:
    if detail:
        error.add_note(detail)
    return error
