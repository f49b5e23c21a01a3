"""Starts the ranks of a cluster on this machine, and ends them together.

What torchrun does for several machines, with the wafer cluster's own rules: a signal goes to every
rank, and when one rank is lost the others are given `liveness` seconds to end by themselves.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from wafer_backend.transports.ranks import LOST

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_SECONDS = 0.1


def run_ranks(command: Sequence[str], ranks: int, liveness: float) -> int:
    """Run `command` as so many ranks; returns when all have ended.

    The exit code is that of the ranks: 0 when all are, else the first that is none of a rank that
    only lost another one, else LOST. A rank that a signal killed counts as LOST.
    """
    where = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(ranks)
    ]
    with _forwarding(processes):
        codes = _wait(processes, liveness)
    own = [code for code in codes if code > 0 and code != LOST]
    if own:
        return own[0]
    return LOST if any(codes) else 0


def _wait(processes: Sequence[subprocess.Popen[bytes]], liveness: float) -> list[int]:
    """Exit codes of all; once one has failed, those that do not end in time are killed."""
    deadline = float("inf")
    while any(process.poll() is None for process in processes):
        if deadline == float("inf") and any(process.returncode for process in processes):
            deadline = time.monotonic() + 2 * liveness
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(_POLL_SECONDS)
    return [process.wait() for process in processes]


@contextlib.contextmanager
def _forwarding(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Signals to this process go to the ranks, which end in good order."""

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
