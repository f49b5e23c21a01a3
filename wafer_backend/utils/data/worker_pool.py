"""Worker processes that run the user's loader: the side of the main process.

A worker sends one message for each credit it gets, so it is never more than `AHEAD` batches
ahead. Credits and messages carry the number of the pass, so what a worker prepared for a pass
that was abandoned is recognised and dropped. A worker that dies closes its pipe, which ends the
wait for it.
"""

import itertools
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from typing import Any

import torch
from torch import multiprocessing

from wafer_backend.errors import LoaderError
from wafer_backend.utils.data.batches import unpack
from wafer_backend.utils.data.worker import Credit, StreamPosition, WorkerJob, WorkerMessage, serve

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
            job = WorkerJob(worker, workers, make, loaded, restartable, rng_state.numpy())
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
            yield unpack(message.batch), message.state


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
