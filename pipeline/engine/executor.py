"""Where tasks run: worker processes of this machine, those of another Dask cluster, or this process
for small inputs. `run` yields (index, result) as calls finish and raises the first failure. Only
this file and those that start clusters (`clusters`, `srun`, `tls`, `memory`) know Dask.
"""

import contextlib
import functools
import heapq
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pipeline.core.errors import ConfigError, PrepError, ResourceError
from pipeline.core.words import format_duration
from pipeline.engine import clusters, srun
from pipeline.engine.clusters import Note, scheduler_there
from pipeline.engine.memory import (
    KILLED_AT,
    LocalMemory,
    Memory,
    SizedJob,
    WorkersMemory,
    check_memory,
    keep_freed_memory,
    machine_memory,
)
from pipeline.engine.warm import warm_workers

_ALONE, _EACH = 27e6, 23e6
"""Bytes of text that `prep run` prepares in a second without workers, and with each worker,"""
_START = 1.5
"""and seconds that workers take to start (docs/benchmarks.md)."""
_WORKER_TEXT = 32 << 20
"""Text that is worth a worker: about one task of a stage."""
DEATHS_ALLOWED = 2
_WAITING = 3
"""Calls submitted for each worker, which does one at a time; all others wait in this process."""
_SEMAPHORES = 12
"""More than a worker process needs; each takes a page of memory."""
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
    "distributed.worker.memory.terminate": KILLED_AT,
    # Each wakes every process; of 20 ms and 500 ms two idle workers took 3 CPU seconds in 40.
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}


SomeJob = TypeVar("SomeJob", bound=SizedJob)


class Executor(Protocol):
    """Runs pure calls; order of completion is free. `is_here`: all on this machine."""

    workers: int
    is_here: bool

    def run(
        self, call: Callable[[Any], Any], jobs: Sequence[SizedJob]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index of the job, what the call returned) for every job. Raises ResourceError
        before the first where a job needs more memory than there is."""
        ...

    def run_in_order(
        self, call: Callable[[Any], Any], jobs: Iterable[SomeJob]
    ) -> Iterator[tuple[SomeJob, Any]]:
        """Yield (job, what the call returned) in the order of the jobs, which are asked for a few
        per worker ahead. They need about as much memory each as the first one. Raises as `run`."""
        ...


class LocalExecutor:
    """Runs everything here, one call after the other."""

    workers = 0
    is_here = True

    def run(
        self, call: Callable[[Any], Any], jobs: Sequence[SizedJob]
    ) -> Iterator[tuple[int, Any]]:
        """See Executor."""
        check_memory(jobs, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        keep_freed_memory()
        for index, job in enumerate(jobs):
            yield index, call(job)

    def run_in_order(
        self, call: Callable[[Any], Any], jobs: Iterable[SomeJob]
    ) -> Iterator[tuple[SomeJob, Any]]:
        """See Executor."""
        for job in jobs:
            yield job, call(job)


class LateExecutor:
    """Runs calls on workers of this machine that start with the first one: a run with nothing to do
    has none."""

    is_here = True

    def __init__(self, workers: int, start: Callable[[], Executor]) -> None:
        self.workers = workers
        self.start = functools.cache(start)

    def run(
        self, call: Callable[[Any], Any], jobs: Sequence[SizedJob]
    ) -> Iterator[tuple[int, Any]]:
        """See Executor."""
        if jobs:
            yield from self.start().run(call, jobs)

    def run_in_order(
        self, call: Callable[[Any], Any], jobs: Iterable[SomeJob]
    ) -> Iterator[tuple[SomeJob, Any]]:
        """See Executor."""
        yield from self.start().run_in_order(call, jobs)


class _Running(dict[str, tuple[int, SizedJob, Any]]):
    """Calls that were submitted, by the key of their future: number, job, future. `last` is the
    label of the one whose end was looked at last."""

    last = ""

    def finish(self, future: Any) -> int:
        """Take out a call that ended; its number."""
        index, job, _ = self.pop(future.key)
        self.last = job.label
        return index


class DaskExecutor:
    """Runs calls on the workers of a Dask cluster; a dead worker is replaced, its call repeated."""

    is_here = False

    def __init__(
        self, client: Any, workers: int, memory: Memory, patience: float = clusters.LONELY_SECONDS
    ) -> None:
        self._client = client
        client.scheduler_comm.interval = 0  # else 10 ms from one message to the next
        self._address = client.scheduler.address
        self._patience = patience
        self.workers = workers
        self._memory = memory

    def run(
        self, call: Callable[[Any], Any], jobs: Sequence[SizedJob]
    ) -> Iterator[tuple[int, Any]]:
        """See Executor. Raises ResourceError naming a call that killed three workers in a row, and
        when the scheduler or the last worker is gone."""
        from distributed import as_completed

        left, running = deque(range(len(jobs))), _Running()

        def fits(job: SizedJob) -> bool:
            """Whether the largest of what is submitted would fit if it ran at the same time."""
            sizes = [job.memory, *(job.memory for _, job, _ in running.values())]
            return not running or self._memory.fits(heapq.nlargest(self.workers, sizes))

        def submit() -> Iterator[Any]:
            while left and len(running) < self._most and fits(jobs[left[0]]):
                yield self._submit(call, jobs[left[0]], left.popleft(), running)

        with self._reporting(running):
            self._memory.share(jobs)
            finished = as_completed(submit())
            for future in finished:
                index = running.finish(future)
                result = future.result()
                finished.update(submit())
                yield index, result

    def run_in_order(
        self, call: Callable[[Any], Any], jobs: Iterable[SomeJob]
    ) -> Iterator[tuple[SomeJob, Any]]:
        """See Executor. Raises as `run`."""
        waiting: deque[tuple[SomeJob, Any]] = deque()
        running = _Running()

        def take() -> tuple[SomeJob, Any]:
            job, future = waiting.popleft()
            running.finish(future)
            return job, future.result()

        with self._reporting(running):
            for number, job in enumerate(jobs):
                if number == 0:
                    self._memory.share([job])
                waiting.append((job, self._submit(call, job, number, running)))
                if len(waiting) >= self._most:
                    yield take()
            while waiting:
                yield take()

    @property
    def _most(self) -> int:
        return _WAITING + _WAITING * self.workers

    def _submit(
        self, call: Callable[[Any], Any], job: SizedJob, index: int, running: "_Running"
    ) -> Any:
        resources = self._memory.needs(job)
        future = self._client.submit(call, job, pure=False, retries=0, resources=resources)
        running[future.key] = index, job, future
        return future

    @contextlib.contextmanager
    def _reporting(self, running: "_Running") -> Iterator[None]:
        """Turn what Dask raises of calls into our errors."""
        from distributed import KilledWorker

        lonely = threading.Event()
        with scheduler_there(self._client, self._address):
            try:
                with self._watching(running, lonely):
                    yield
            except KilledWorker as error:
                raise ResourceError(
                    f"{running.last}: killed {DEATHS_ALLOWED + 1} workers one after the other "
                    "(often memory: lower read.task_bytes or use fewer workers)"
                ) from error
            except PrepError:
                self._cancel(running)
                raise
            except Exception as error:
                if not lonely.is_set():
                    raise
                raise ResourceError(
                    f"no worker with enough memory was left for {format_duration(self._patience)}; "
                    "run the same command again, finished work is kept"
                ) from error

    def _cancel(self, running: "_Running") -> None:
        self._client.cancel([future for _, _, future in list(running.values())])

    @contextlib.contextmanager
    def _watching(self, running: "_Running", lonely: threading.Event) -> Iterator[None]:
        """Set `lonely` and cancel what runs when no worker has been there for a while; never wait
        for ever."""
        over = threading.Event()

        def watch() -> None:
            seen = time.monotonic()
            while not over.wait(5):
                info = self._client.scheduler_info()
                self.workers = max(self.workers, info["n_workers"])
                if self._memory.has_room(info["workers"]):
                    seen = time.monotonic()
                elif time.monotonic() - seen > self._patience:
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


def automatic_workers(text_bytes: int) -> int:
    """Worker processes for so much text: one for each core that gets work, or 0 where this process
    is estimated to be done before they are."""
    workers = min(os.cpu_count() or 1, -(-text_bytes // _WORKER_TEXT))
    with_workers = _START + text_bytes / (_EACH * max(1, workers))
    return workers if with_workers < text_bytes / _ALONE else 0


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
def joined_step(cluster: Mapping[str, Any], shared: Path) -> Iterator[None]:
    """Where `srun` started prep as the tasks of a job step: the first goes on, with the scheduler,
    and the others become its workers, which do not return. To be entered before `shared` is held.
    Raises ConfigError."""
    if cluster["kind"] not in ("srun", "slurm"):
        yield
        return
    import dask
    import distributed  # noqa: F401 - as below

    clusters.needs("cryptography", f"cluster.kind {cluster['kind']}", "slurm")
    _be_quiet()
    with dask.config.set(_QUIET):
        srun.join_step(cluster["kind"], shared.absolute(), cluster["memory"], cluster["interface"])
    try:
        yield
    finally:
        srun.let_all_join()


@contextlib.contextmanager
def executor(
    workers: int | None,
    text_bytes: int,
    cluster: Mapping[str, Any] | None = None,
    shared: Path = Path(),
    note: Note = lambda _: None,
) -> Iterator[Executor]:
    """An executor for `workers` processes; 0 means this process, None decides by the size of the
    text.

    `cluster` has the keys of that section of the config. The workers of other kinds than `local`
    must run the same version of this package and see the directory `shared`. What a cluster has to
    say goes to `note`. Raises ConfigError or ResourceError.
    """
    clusters.remove_leftovers(shared)
    settings = {"kind": "local", **(cluster or {})}
    if settings["kind"] == "local":
        workers = settings.get("workers") if workers is None else workers
        workers = automatic_workers(text_bytes) if workers is None else workers
        if workers == 0:
            yield LocalExecutor()
            return
        least, dashboard = settings.get("minimum"), settings.get("dashboard", False)
        with contextlib.ExitStack() as stack:
            local = _local_workers(workers, least, dashboard, note)
            yield LateExecutor(workers, lambda: stack.enter_context(local))
        return
    if workers is not None:
        raise ConfigError(
            f"--workers {workers} with cluster.kind {settings['kind']}: that cluster has its own "
            "workers; leave one of the two out"
        )
    import dask
    import distributed  # noqa: F401 - only loggers that are there can be quiet

    _be_quiet()
    with dask.config.set(_QUIET), clusters.connect(settings, shared, note) as there:
        memory = WorkersMemory(there.client)
        yield DaskExecutor(there.client, there.workers, memory, there.patience)


@contextlib.contextmanager
def _local_workers(
    workers: int, minimum: int | None, dashboard: bool, note: Note
) -> Iterator[Executor]:
    check_semaphores(workers)
    if dashboard:
        clusters.needs("bokeh", "cluster.dashboard", "dashboard")
    import dask
    from distributed import Client, LocalCluster

    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    _be_quiet()
    with (
        warm_workers() as warm,
        dask.config.set(_QUIET | warm),
        main_replaced(),
        _closing(
            LocalCluster,
            n_workers=workers if minimum is None else min(minimum, workers),
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
            memory_limit=machine_memory() // workers,
            scheduler_kwargs={"dashboard": dashboard},
            worker_dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        if minimum is not None:
            clusters.follow_work(cluster, min(minimum, workers), workers)
        if dashboard:
            note(f"dashboard at {client.dashboard_link}")
        try:
            yield DaskExecutor(client, workers, LocalMemory(cluster, workers))
        finally:
            _kill_workers(cluster)


@contextlib.contextmanager
def _closing(start: Callable[..., Any], **settings: Any) -> Iterator[Any]:
    """A cluster, closed at the end. What goes wrong in closing it is no error of a run, whose work
    is published: Dask raises there when a worker has died and another is about to start."""
    cluster = start(**settings)
    try:
        yield cluster
    finally:
        with contextlib.suppress(Exception):
            cluster.close()


@contextlib.contextmanager
def main_replaced() -> Iterator[None]:
    """Workers that start meanwhile, one in the place of another that died too, do not first import
    the program that starts them, as multiprocessing has it, but that of `prep`: no task is a
    function of a program, and a script may lack a guard."""
    program = vars(sys.modules["__main__"])
    replaced: dict[str, Any] = {n: program[n] for n in ("__file__", "__spec__") if n in program}
    try:
        program.pop("__file__", None)
        program["__spec__"] = find_spec("pipeline.__main__")
        yield
    finally:
        program.update(replaced)


def _be_quiet() -> None:
    """No word of Dask's own, whose loggers have levels each. For good, not while a cluster lives:
    closing one whose workers or scheduler were killed logs tracebacks."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("asyncio", "distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _kill_workers(cluster: Any) -> None:
    """Stop at once: whatever counts is published, and waiting for workers to leave in good order
    takes a second, or as long as a task that one of them is at."""
    for nanny in cluster.workers.values():
        nanny.auto_restart = False
        if nanny.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
