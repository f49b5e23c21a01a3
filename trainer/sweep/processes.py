"""Trials as child processes: ordinary runs by the ordinary command, some at a time.

A crash of one, or the memory it took, ends with its process; a signal is passed on to all that run,
which write a checkpoint each.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from trainer.stop import StopRequest
from trainer.sweep.draws import Trial

_PAUSE = 0.05
_LAST_BYTES = 4096

Command = Callable[[Trial], Sequence[str]]
Ended = Callable[[Trial, int, str], None]


@dataclass(frozen=True)
class _RunningTrial:
    """A trial under way, and what it writes to standard error."""

    trial: Trial
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def last_words(self) -> str:
        """The last line that is not empty."""
        size = self.errors.seek(0, 2)
        self.errors.seek(max(0, size - _LAST_BYTES))
        lines = self.errors.read().decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")


def run_all(
    trials: Iterable[Trial], jobs: int, command: Command, ended: Ended, stop: StopRequest
) -> None:
    """Run all trials in order, `jobs` at a time.

    `ended` is told of each (trial, exit code, last line of standard error) and may raise to end
    it all. Raises Stopped after a signal. Trials under way are then asked to stop and waited for.
    """
    waiting = iter(trials)
    running: list[_RunningTrial] = []
    with _none_left(running):
        while True:
            stop.check()
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                with each.errors:
                    ended(each.trial, each.process.returncode, each.last_words())
            while len(running) < jobs and (trial := next(waiting, None)) is not None:
                running.append(_started(trial, command(trial)))
            if not running:
                return
            time.sleep(_PAUSE)


def _started(trial: Trial, command: Sequence[str]) -> _RunningTrial:
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer.cli", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )
    return _RunningTrial(trial, process, errors)


@contextlib.contextmanager
def _none_left(running: list[_RunningTrial]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in running:
            each.process.terminate()
        for each in running:
            each.process.wait()
            each.errors.close()
