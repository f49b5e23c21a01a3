"""Where tasks run: workers of a local Dask cluster or of one that is there already, or this process
for small inputs. `run` yields (index, result) as calls finish and raises the first failure. This is
the only file that knows Dask.
"""

import contextlib
import heapq
import logging
import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from pipeline.core import mirror, storage
from pipeline.core.errors import ConfigError, PrepError, ResourceError, escape_text
from pipeline.core.words import format_duration

SMALL_INPUT_BYTES = 50 << 20
DEATHS_ALLOWED = 2
LONELY_SECONDS = 60
CONNECT_SECONDS = 20
_WAITING = 3
"""Calls submitted for each worker, which does one at a time; all others wait in this process."""
_SEMAPHORES = 12
"""More than a worker process needs; each takes a page of memory."""
_KILLED_AT = 0.95
"""Share of its limit at which Dask's nanny kills a worker."""
_QUIET = {
    "distributed.scheduler.allowed-failures": DEATHS_ALLOWED,
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.worker-ttl": None,  # by the wall clock, which may jump
    "distributed.worker.daemon": True,
    "distributed.logging.distributed": "critical",
    "distributed.admin.tick.limit": "600s",
    "distributed.comm.timeouts.connect": "60s",
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,  # workers hold no results, and a paused one waits
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": _KILLED_AT,
}


class Job(Protocol):
    """What a call is given: its name in messages, and the bytes of memory its process needs."""

    @property
    def label(self) -> str:
        """As messages name it."""
        ...

    @property
    def memory(self) -> int:
        """Bytes at the peak, those of the process included."""
        ...


class Executor(Protocol):
    """Runs pure calls; order of completion is free."""

    workers: int

    def run(self, call: Callable[[Any], Any], jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """Yield (index of the job, what the call returned) for every job. Raises ResourceError
        before the first where a job needs more memory than there is."""
        ...


class LocalExecutor:
    """Runs everything here, one call after the other."""

    workers = 0

    def run(self, call: Callable[[Any], Any], jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """See Executor."""
        _check_memory(jobs, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        for index, job in enumerate(jobs):
            yield index, call(job)


class DaskExecutor:
    """Runs calls on the workers of a Dask cluster; a dead worker is replaced, its call repeated."""

    def __init__(self, client: Any, workers: int, memory: "LocalMemory | None" = None) -> None:
        self._client = client
        self.workers = workers
        self._memory = memory

    def run(self, call: Callable[[Any], Any], jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """See Executor. Raises ResourceError naming a call that killed three workers in a row, and
        when the scheduler or the last worker is gone."""
        from distributed import KilledWorker, as_completed

        lonely, left = threading.Event(), deque(range(len(jobs)))
        running: dict[str, tuple[int, Any]] = {}
        if self._memory:
            self._memory.share(jobs)

        def fits(job: Job) -> bool:
            """Whether the largest of what is submitted would fit if it ran at the same time."""
            sizes = [job.memory, *(jobs[index].memory for index, _ in running.values())]
            largest = heapq.nlargest(self.workers, sizes)
            return self._memory is None or not running or sum(largest) <= self._memory.total

        def submit() -> Iterator[Any]:
            while left and len(running) < most and fits(jobs[left[0]]):
                index = left.popleft()
                future = self._client.submit(call, jobs[index], pure=False, retries=0)
                running[future.key] = index, future
                yield future

        most = _WAITING + _WAITING * self.workers
        with _scheduler_there(self._client):
            name = ""
            try:
                with self._watching(running, lonely):
                    finished = as_completed(submit())
                    for future in finished:
                        index, _ = running.pop(future.key)
                        name = jobs[index].label
                        result = future.result()
                        finished.update(submit())
                        yield index, result
            except KilledWorker as error:
                raise ResourceError(
                    f"{name}: killed {DEATHS_ALLOWED + 1} workers one after the other "
                    "(often memory: lower read.task_bytes or use fewer workers)"
                ) from error
            except PrepError:
                self._cancel(running)
                raise
            except Exception as error:
                if not lonely.is_set():
                    raise
                raise ResourceError(
                    f"no worker was left for {format_duration(LONELY_SECONDS)}; "
                    "run the same command again, finished work is kept"
                ) from error

    def _cancel(self, running: Mapping[str, tuple[int, Any]]) -> None:
        self._client.cancel([future for _, future in list(running.values())])

    @contextlib.contextmanager
    def _watching(
        self, running: Mapping[str, tuple[int, Any]], lonely: threading.Event
    ) -> Iterator[None]:
        """Set `lonely` and cancel what runs when no worker has been there for a while; never wait
        for ever."""
        over = threading.Event()

        def watch() -> None:
            seen = time.monotonic()
            while not over.wait(5):
                if self._client.scheduler_info(n_workers=1)["workers"]:
                    seen = time.monotonic()
                elif time.monotonic() - seen > LONELY_SECONDS:
                    lonely.set()
                    self._cancel(running)
                    return

        def watch_while_connected() -> None:
            with contextlib.suppress(Exception):  # the scheduler is gone, which `run` notices
                watch()

        thread = threading.Thread(target=watch_while_connected, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(1)


@contextlib.contextmanager
def _scheduler_there(client: Any) -> Iterator[None]:
    """Turn what follows from a lost scheduler into one ResourceError."""
    address = client.scheduler.address
    try:
        yield
    except PrepError:
        raise
    except Exception as error:
        lost = getattr(error, "reason", "") == "scheduler-connection-lost"
        if not lost and client.status == "running":
            raise
        raise ResourceError(
            f"the Dask scheduler at {address} is gone; start it and its workers, then run the "
            "same command again, finished work is kept"
        ) from error


def automatic_workers(input_bytes: int) -> int:
    """Worker processes for an input of this size: 0, or one for each core."""
    return 0 if input_bytes < SMALL_INPUT_BYTES else os.cpu_count() or 1


def check_semaphores(workers: int) -> None:
    """Raises ResourceError where so many worker processes cannot get the semaphores they share."""
    try:
        context = multiprocessing.get_context("spawn")
        _ = [context.Lock() for _ in range(_SEMAPHORES * workers)]
    except OSError as error:
        raise ResourceError(
            f"{workers} worker processes cannot share semaphores ({error.strerror}); make room in "
            "/dev/shm, where they are, or use --workers 0, which needs none"
        ) from error


@contextlib.contextmanager
def executor(
    workers: int | None, input_bytes: int, address: str | None = None, shared: Path = Path()
) -> Iterator[Executor]:
    """An executor for `workers` processes; 0 means this process, None decides by the input size.

    With the `address` of a Dask scheduler, all of its workers; they must run the same version of
    this package and see the directory `shared`. Raises ConfigError or ResourceError if not.
    """
    if address is not None:
        if workers is not None:
            raise ConfigError(
                f"--workers {workers} with cluster.address {address}: that cluster has its own "
                "workers; leave one of the two out"
            )
        with _running_cluster(address, shared) as found:
            yield found
        return
    if workers is None:
        workers = automatic_workers(input_bytes)
    if workers == 0:
        yield LocalExecutor()
        return
    check_semaphores(workers)
    import dask
    from distributed import Client, LocalCluster

    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    _be_quiet()
    with (
        dask.config.set(_QUIET),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
            memory_limit=_memory() // workers,
            scheduler_kwargs={"dashboard": False},
            worker_dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        try:
            yield DaskExecutor(client, workers, LocalMemory(cluster))
        finally:
            _kill_workers(cluster)


def _memory() -> int:
    """Bytes that this machine, or its control group, lets processes use."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)


class LocalMemory:
    """The memory of this machine, or of its control group, which the workers of a local cluster
    share: an equal part each, or as much as the largest task of a stage needs."""

    def __init__(self, cluster: Any) -> None:
        self.total = _memory()
        self._nannies = list(cluster.workers.values())

    def share(self, jobs: Sequence[Job]) -> None:
        """Set the limits of the workers for these jobs. Raises ResourceError where one is too
        large."""
        _check_memory(jobs, self.total)
        largest = max((job.memory for job in jobs), default=0)
        for nanny in self._nannies:
            part = self.total // len(self._nannies)
            nanny.memory_manager.memory_limit = max(part, int(largest / _KILLED_AT))


def _check_memory(jobs: Sequence[Job], total: int) -> None:
    for job in jobs:
        if job.memory > total:
            raise ResourceError(
                f"{job.label}: needs {job.memory:,} bytes of memory, there are {total:,}; lower "
                "read.task_bytes, hdf5.shard_bytes or dedup.memory"
            )


@contextlib.contextmanager
def _running_cluster(address: str, shared: Path) -> Iterator[Executor]:
    import dask
    from distributed import Client

    _be_quiet()
    with dask.config.set(_QUIET):
        try:
            client = Client(address, timeout=CONNECT_SECONDS)
        except (TypeError, RuntimeError) as error:  # of TLS that is not set up, or demanded
            raise ResourceError(
                f"cluster.address: {address}: Dask's own config names no certificates, or it "
                f"requires tls:// ({escape_text(str(error), 200)}); docs/clusters.md shows how"
            ) from error
        except (OSError, ValueError, TimeoutError) as error:
            raise ResourceError(
                f"cluster.address: no Dask scheduler answers at {address} "
                f"({escape_text(str(error), 200)})"
            ) from error
        with client:
            with _scheduler_there(client):
                workers = _check_workers(client, address, shared)
            yield DaskExecutor(client, workers)


def _be_quiet() -> None:
    """No word of Dask's own, whose loggers have levels each. For good, not while a cluster lives:
    closing one whose workers or scheduler were killed logs tracebacks."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _check_workers(client: Any, address: str, shared: Path) -> int:
    """How many workers there are, each of which can do our tasks."""
    from distributed.client import FutureCancelledError

    probe = shared / ".cluster-probe"
    token = secrets.token_hex(8)
    storage.publish(probe, token.encode())
    try:
        with contextlib.suppress(TimeoutError):
            client.wait_for_workers(1, timeout=LONELY_SECONDS)
        found = client.run(_probe, str(probe), on_error="return")
    except FutureCancelledError:
        found = {}
    finally:
        storage.remove(probe)
    if not found:
        raise ResourceError(f"the Dask cluster at {address} has no workers; start some")
    expected = (token, _build())
    for worker, seen in sorted(found.items()):
        if isinstance(seen, Exception):
            raise ResourceError(
                f"worker {worker} cannot import this package ({escape_text(str(seen), 200)}); "
                "install the same version there"
            )
        if seen[0] != expected[0]:
            raise ResourceError(
                f"worker {worker} does not see the run directory {shared}; "
                "use a path that all machines share"
            )
        if seen[1] != expected[1]:
            raise ResourceError(
                f"worker {worker} runs {seen[1]}, this process {expected[1]}; "
                "install the same versions there"
            )
    return len(found)


def _probe(path: str) -> tuple[str, str]:
    """Runs on a worker: what it reads of the probe file, and its versions."""
    try:
        token = mirror.fetch(Path(path)).read_text()
    except OSError as error:
        token = str(error)
    return token, _build()


def _build() -> str:
    """Versions that decide what a task writes."""
    names = ("wafermill", "deflate", "ftfy", "h5py", "numpy", "pyarrow", "tokenizers")
    python = ".".join(map(str, sys.version_info[:3]))
    return ", ".join([f"Python {python}", *(f"{name} {version(name)}" for name in names)])


def _kill_workers(cluster: Any) -> None:
    """Stop at once: whatever counts is published, and waiting for workers to leave in good order
    takes a second, or as long as a task that one of them is at."""
    for nanny in cluster.workers.values():
        nanny.auto_restart = False
        if nanny.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
