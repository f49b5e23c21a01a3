"""Programs that tests start, each in a fork of this process: real processes with signals, exit
codes and output of their own, without the seconds of CPU that a fresh one takes to import torch."""

import atexit
import importlib
import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.core import failpoint

_FORK = multiprocessing.get_context("fork")


class Program:
    """A call in a fork of this process, with what `subprocess.Popen` offers for a program.

    `environment`: variables that differ from those of this process.
    """

    def __init__(self, call: Callable[[], object], **environment: str) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the program
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = _FORK.Process(target=self._run, args=(call, environment))
        self._process.start()

    def _run(self, call: Callable[[], object], environment: dict[str, str]) -> None:
        """Like a new interpreter: nothing of this one's handlers, filters and exits stays."""
        os.environ.update(environment)
        failpoint._hits.clear()
        failpoint._plan = failpoint._read_plan()
        for number, handler in (
            (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGINT, signal.default_int_handler),
        ):
            signal.signal(number, handler)
        for file, handle in ((self._out, 1), (self._err, 2)):
            os.dup2(file.fileno(), handle)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        logging.getLogger().handlers.clear()
        warnings.resetwarnings()
        atexit._clear()
        try:
            call()
        finally:
            atexit._run_exitfuncs()

    @property
    def pid(self) -> int:
        """Of the fork."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, minus the signal that ended it, or None while it runs."""
        return self._process.exitcode

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return _text(self._out.fileno())

    @property
    def err(self) -> str:
        """What it has printed to stderr so far."""
        return _text(self._err.fileno())

    def poll(self) -> int | None:
        """`returncode`."""
        return self.returncode

    def wait_for_line(self, start: str, count: int = 1, seconds: float = 60) -> None:
        """Until it has printed so many lines that start so. AssertionError if it does not."""
        deadline = time.monotonic() + seconds
        while sum(line.startswith(start) for line in self.out.splitlines()) < count:
            assert self.returncode is None, self.err
            assert time.monotonic() < deadline, f"no {start!r} within {seconds} s"
            time.sleep(0.005)

    def wait(self, timeout: float = 120) -> int:
        """Its exit code, when it has ended. AssertionError if that takes longer."""
        self._process.join(timeout)
        assert self.returncode is not None, f"still running after {timeout} s: {self.err}"
        return self.returncode

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """What it printed, and what to stderr, when it has ended."""
        self.wait(timeout)
        return self.out, self.err

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        self._process.kill()


def script(path: Path, *arguments: object) -> Callable[[], object]:
    """The Python program of a file, for `Program`: with torch on one thread, as its pool of threads
    does not outlive a fork. What an optimizer imports at its first step is imported here, once.
    """
    import torch
    import torch._dynamo

    def call() -> None:
        torch.set_num_threads(1)
        sys.argv = [str(path), *map(str, arguments)]
        runpy.run_path(str(path), run_name="__main__")

    return call


def _main_in_fork(module: str, environment: dict[str, str]) -> None:
    """Between fork and exec, which then is not called: `main` of a module, with the pipes of the
    child as its only open files. Never returns."""
    code = 1
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # also tells the parent that all went well
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        os.environ.clear()
        os.environ.update(environment)
        code = importlib.import_module(module).main() or 0
    except BaseException:  # noqa: BLE001 - the child has nobody above
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forking(start: Callable[..., Any]) -> Callable[..., Any]:
    """`subprocess.run` or `Popen`, for a command `python … -m MODULE` without arguments."""

    def call(command: Sequence[str], *, env: dict[str, str], **options: Any) -> Any:
        assert command[0] == sys.executable and command[-2] == "-m", command
        return start(command, preexec_fn=lambda: _main_in_fork(command[-1], env), **options)

    return call


FORKING = SimpleNamespace(
    Popen=_forking(subprocess.Popen),
    run=_forking(subprocess.run),
    PIPE=subprocess.PIPE,
    TimeoutExpired=subprocess.TimeoutExpired,
)
"""In place of `subprocess` in a module that reads foreign files in a child process: the child is a
fork of this process, which spares it its imports. Pipes, limits and exit codes are real."""


def _text(handle: int) -> str:
    return os.pread(handle, os.fstat(handle).st_size, 0).decode()
