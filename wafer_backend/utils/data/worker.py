"""Worker processes that run the user's loader: the side of the worker."""

import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data

from wafer_backend.distributed import DataLoaderCheckpoint, worker_state
from wafer_backend.utils.data.batches import infer_batch_size, pack

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@dataclass(frozen=True)
class StreamPosition:
    """Batches and samples of a stream so far."""

    steps: int
    samples: int


@dataclass(frozen=True)
class Credit:
    """Leave to send one message of pass `number`; `before`: what was yielded before the pass."""

    number: int
    before: StreamPosition


@dataclass(frozen=True)
class WorkerMessage:
    """One batch, or the end of the pass, or why the worker failed."""

    number: int
    batch: Any = None
    state: Any = None
    ended: bool = False
    failure: str | None = None


@dataclass(frozen=True)
class WorkerJob:
    """What worker `worker` of `workers` does."""

    worker: int
    workers: int
    make: Callable[[], Any]
    loaded: tuple[dict[str, Any], bool] | None
    restartable: bool
    rng_state: Any


def serve(
    job: WorkerJob,
    messages: "Connection[Any, Any]",
    credits: "Connection[Any, Any]",
    inherited: "list[Connection[Any, Any]]",
) -> None:
    """Run until the main process closes its ends or dies.

    `inherited`: copies of ends of the main process, which would keep the pipes open after it.
    """
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.set_rng_state(torch.from_numpy(job.rng_state))
    number = 0
    try:
        for message in _answers(job, credits):
            number = message.number
            messages.send(message)
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        logging.getLogger(__name__).exception("input worker %d failed", job.worker)
        messages.send(WorkerMessage(number, failure=f"{type(error).__name__}: {error}"))


def _answers(job: WorkerJob, credits: "Connection[Any, Any]") -> Iterator[WorkerMessage]:
    """One message per credit; a credit of a new pass abandons the old one."""
    loader = job.make()
    if job.loaded is not None:
        from wafer_backend.utils.data.loader import load_loader

        load_loader(loader, *job.loaded)
    number = 0
    own: Iterator[tuple[Any, StreamPosition]] = iter(())
    while True:
        credit: Credit = credits.recv()
        if credit.number != number:
            number, own = credit.number, own_batches(loader, job.worker, job.workers)
        found = next(own, None)
        if found is None:
            yield WorkerMessage(number, ended=True)
            continue
        batch, passed = found
        state = _state(loader, credit.before, passed) if job.restartable else None
        yield WorkerMessage(number, pack(batch), state)


def _state(loader: Any, before: StreamPosition, passed: StreamPosition) -> Any:
    steps = before.steps + passed.steps
    checkpoint = DataLoaderCheckpoint(before.samples + passed.samples, steps, steps)
    with worker_state(checkpoint):
        return loader.state_dict()


def own_batches(loader: Any, worker: int, workers: int) -> Iterator[tuple[Any, StreamPosition]]:
    """The batches worker, worker + workers, … of one pass, each with what the whole pass has
    yielded up to and including it.
    """
    if _can_stride(loader):
        strides = _Strides(loader.batch_sampler, worker, workers)
        strided: Any = data.DataLoader(
            loader.dataset,
            batch_sampler=strides,
            collate_fn=loader.collate_fn,
            generator=loader.generator,
        )
        for batch in strided:
            yield batch, strides.passed
        return
    samples = 0
    for step, batch in enumerate(loader):
        samples += infer_batch_size(batch) or 0
        if step % workers == worker:
            yield batch, StreamPosition(step + 1, samples)


def _can_stride(loader: Any) -> bool:
    """A torch DataLoader whose batches are made of sample numbers, and which is not subclassed
    to do something else.
    """
    return (
        isinstance(loader, data.DataLoader)
        and type(loader).__iter__ is data.DataLoader.__iter__
        and loader.batch_sampler is not None
        and not isinstance(loader.dataset, data.IterableDataset)
    )


class _Strides(data.Sampler[list[int]]):
    """Every `workers`-th list of sample numbers of a batch sampler."""

    def __init__(self, batches: Any, worker: int, workers: int) -> None:
        self._batches, self._worker, self._workers = batches, worker, workers
        self.passed = StreamPosition(0, 0)

    def __iter__(self) -> Iterator[list[int]]:
        samples = 0
        for step, indices in enumerate(self._batches):
            samples += len(indices)
            self.passed = StreamPosition(step + 1, samples)
            if step % self._workers == self._worker:
                yield indices
