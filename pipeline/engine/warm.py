"""Worker processes that are forks of this one: they have its imports, and start in a tenth of the
time. `multiprocessing` has a server that forks workers (`forkserver`), which starts as a new
interpreter and imports everything again; here that server is itself a fork.

A fork is safe while no other thread runs, as what one holds stays held for ever in the copy. So it
happens only in a process that has no thread but its first, and before Dask starts its own;
otherwise, as in a program or a notebook that calls us, workers start as new interpreters. A process
that is a fork itself may hold what threads of another held, so it forks none either.
"""

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from typing import Any

from pipeline.engine.memory import KEPT_MEMORY, keep_freed_memory

_METHOD = "distributed.worker.multiprocessing-method"
_KNOWN = sys.version_info < (3, 14)
"""Whether the server of `multiprocessing` is the one that this file was written for: later ones
make their clients prove a key."""
_SURVIVES = "jemalloc_bg_thd"
"""A thread of Arrow's allocator, which is made for forks."""


@contextlib.contextmanager
def warm_workers() -> Iterator[dict[str, object]]:
    """Settings of Dask for the workers of this machine that start meanwhile: forks of this process
    as it is now, where that is safe."""
    settings: dict[str, object] = {
        f"distributed.nanny.pre-spawn-environ.{name}": size
        for name, (_, size) in KEPT_MEMORY.items()
    }
    settings["distributed.worker.preload"] = [__name__]
    with contextlib.ExitStack() as stack:
        if _KNOWN and _is_alone():
            with contextlib.suppress(OSError):  # no process, memory or socket to spare
                stack.enter_context(_server())
                settings |= {_METHOD: "forkserver"}
        yield settings


def dask_setup(worker: Any) -> None:
    """What Dask calls in a worker before it starts: one that is told to leave twice, by its nanny
    and by the scheduler, raises in the second, which its process would print as a traceback."""
    close = worker.close

    async def close_quietly(*args: Any, **settings: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            return await close(*args, **settings)

    worker.close = close_quietly


_forks: list[int] = []
os.register_at_fork(after_in_child=lambda: _forks.append(os.getpid()))


def _is_alone() -> bool:
    if _forks:
        return False
    tasks = Path("/proc/self/task").glob("*/comm")
    names = [task.read_text().strip() for task in tasks]
    return threading.active_count() == 1 and len(names) - names.count(_SURVIVES) == 1


@contextlib.contextmanager
def _server() -> Iterator[None]:
    """The server that `multiprocessing` asks for new processes is a fork of this one meanwhile."""
    import distributed.utils
    import distributed.worker  # with numba, what every worker and this process need anyway
    import numba  # noqa: F401

    server: Any = vars(forkserver)["_forkserver"]
    if server._forkserver_pid is not None:
        raise OSError("there is a server already")
    resource_tracker.ensure_running()
    with socket.socket(socket.AF_UNIX) as listener:
        address = vars(connection)["arbitrary_address"]("AF_UNIX")
        listener.bind(address)
        listener.listen()
        alive_r, alive_w = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, for that thread
            pid = os.fork()
        if pid == 0:
            _serve(listener.fileno(), alive_r)
        os.close(alive_r)
    distributed.utils._forkserver_preload_set = True
    server._forkserver_address, server._forkserver_alive_fd = address, alive_w
    server._forkserver_pid = pid
    try:
        yield
    finally:
        # It would wait for workers that Dask failed to stop; those end with this process.
        if server._forkserver_pid is not None:
            os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()


def _serve(listener: int, alive: int) -> None:
    """Fork a process for each request until nobody is left who could ask. Does not return."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _let_go({listener, alive})
        keep_freed_memory()
        gc.freeze()  # what workers share with each other is not searched for cycles by each
        forkserver.main(listener, alive, [])
    finally:
        os._exit(0)


def _let_go(kept: set[int]) -> None:
    """Hold no file of the process this is a fork of: its locks end with it. The numbers stay taken,
    so that what closes one later closes nothing else."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in kept | {nothing}:
            with contextlib.suppress(OSError):
                os.fstat(number)
                os.dup2(nothing, number)
