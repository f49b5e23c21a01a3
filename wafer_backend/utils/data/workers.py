"""Worker processes that run the user's loader, seen from both sides, and batches between them.

A worker sends one message for each credit it gets, so it is never more than `AHEAD` batches ahead.
Credits and messages carry the number of the pass, so what a worker prepared for a pass that was
abandoned is recognised and dropped. A worker that dies closes its pipe, which ends the wait for it.
Tensors cross a pipe as plain numpy arrays.
"""

import itertools
import logging
import signal
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from typing import Any

import torch
from torch import multiprocessing
from torch.utils import _pytree, data

from wafer_backend.distributed import DataLoaderCheckpoint, worker_state
from wafer_backend.errors import LoaderError
from wafer_backend.storage.state_tree import (
    Array,
    TensorLayout,
    find_tensor_layout,
    from_stored,
    to_stored,
)


def infer_batch_size(batch: Any) -> int | None:
    """Samples in a nested batch: the first dimension its tensors share.

    0-d tensors do not count. None when there is no tensor, or when the tensors disagree.
    """
    leaves = _pytree.tree_leaves(batch)
    sizes = {leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()}
    return sizes.pop() if len(sizes) == 1 else None


@dataclass(frozen=True)
class _PackedBatch:
    layout: TensorLayout
    stored: Array


def pack_batch(batch: Any) -> Any:
    """The batch with plain numpy arrays for its dense tensors, so that a message is whole bytes.

    Torch would send handles, which need the sender to live until the receiver has opened them.
    """
    return _pytree.tree_map_only(torch.Tensor, _packed, batch)


def unpack_batch(message: Any) -> Any:
    """The batch of `pack_batch`."""
    return _pytree.tree_map_only(_PackedBatch, lambda p: from_stored(p.stored, p.layout), message)


def _packed(tensor: torch.Tensor) -> _PackedBatch:
    return _PackedBatch(find_tensor_layout("a tensor of the batch", tensor), to_stored(tensor))


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


@dataclass(frozen=True, kw_only=True)
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
        next_batch = next(own, None)
        if next_batch is None:
            yield WorkerMessage(number, ended=True)
            continue
        batch, passed = next_batch
        state = _state(loader, credit.before, passed) if job.restartable else None
        yield WorkerMessage(number, pack_batch(batch), state)


def _state(loader: Any, before: StreamPosition, passed: StreamPosition) -> Any:
    steps = before.steps + passed.steps
    checkpoint = DataLoaderCheckpoint(
        samples_streamed=before.samples + passed.samples, appliance_step=steps, worker_step=steps
    )
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


AHEAD = 2


class _Worker:
    """One process with its two pipes."""

    def __init__(self, job: WorkerJob, started: "list[_Worker]") -> None:
        context = multiprocessing.get_context()
        self.messages, sends = context.Pipe(duplex=False)
        receives, self.credits = context.Pipe(duplex=False)
        self.name = f"input worker {job.worker} of {job.workers}"
        inherited = _ends([*started, self]) if context.get_start_method() == "fork" else []
        self.process = context.Process(
            target=serve, args=(job, sends, receives, inherited), name=self.name, daemon=True
        )
        self.process.start()
        # The worker's ends are its own: when it dies, reading here ends instead of waiting.
        sends.close()
        receives.close()

    def grant(self, credit: Credit) -> None:
        """Let it send one more message."""
        try:
            self.credits.send(credit)
        except OSError as error:
            raise self._died() from error

    def receive(self) -> WorkerMessage:
        """The next message. Raises LoaderError when the worker failed or died."""
        try:
            wait([self.messages, self.process.sentinel])
            if not self.messages.poll():
                raise EOFError
            message: WorkerMessage = self.messages.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if message.failure is not None:
            raise LoaderError(f"{self.name} failed: {message.failure}")
        return message

    def _died(self) -> LoaderError:
        self.process.join(timeout=5)
        return LoaderError(
            f"{self.name} died (exit code {self.process.exitcode}); "
            "was it killed, or out of memory? Start again from the last checkpoint"
        )


class WorkerPool:
    """`workers` processes; each calls `make` once and serves any number of passes.

    `loaded`: a state for the loaders to start from, and whether strictly.
    """

    def __init__(
        self,
        workers: int,
        make: Callable[[], Any],
        loaded: tuple[dict[str, Any], bool] | None,
        *,
        restartable: bool,
    ) -> None:
        rng_state = torch.get_rng_state()
        self._workers: list[_Worker] = []
        self._passes = 0
        self.close = weakref.finalize(self, _stop, self._workers)
        for worker in range(workers):
            job = WorkerJob(
                worker=worker,
                workers=workers,
                make=make,
                loaded=loaded,
                restartable=restartable,
                rng_state=rng_state.numpy(),
            )
            try:
                self._workers.append(_Worker(job, self._workers))
            except (AttributeError, TypeError, PicklingError) as error:  # when it is not forked
                raise LoaderError(
                    f"input_fn cannot be sent to a worker process ({error}); make it a function "
                    "at the top of a module"
                ) from error

    def run(self, passed: StreamPosition) -> Iterator[tuple[Any, Any]]:
        """One pass over the loader: (batch, state of the loader after it), in order.

        `passed`: what was yielded before it.
        """
        self._passes += 1
        credit = Credit(self._passes, passed)
        for worker in self._workers:
            for _ in range(AHEAD):
                worker.grant(credit)
        for worker in itertools.cycle(self._workers):
            message = worker.receive()
            while message.number != self._passes:
                message = worker.receive()
            if message.ended:
                return
            worker.grant(credit)
            yield unpack_batch(message.batch), message.state


def _ends(workers: list[_Worker]) -> "list[Connection[Any, Any]]":
    """The main process's ends of all pipes."""
    return [end for worker in workers for end in (worker.credits, worker.messages)]


def _stop(workers: list[_Worker]) -> None:
    for end in _ends(workers):
        if not end.closed:
            end.close()
    for worker in workers:
        worker.process.join(timeout=1)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
