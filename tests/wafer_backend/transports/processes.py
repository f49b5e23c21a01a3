"""Starting the ranks of a test: real processes over loopback."""

import os
import socket
import sys
from pathlib import Path

from tests.programs import Program, script

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def command(program: str, *arguments: object) -> list[str]:
    """A program beside the tests, with arguments, for a fresh interpreter."""
    return [sys.executable, str(HERE / program), *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """That of a process that is no rank."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def free_port() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def start(ranks: int, program: str, *arguments: object, **more: str) -> list[Program]:
    """A program beside the tests as so many ranks; RANK in an argument is the rank's number."""
    where = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    started = []
    for rank in range(ranks):
        words = [str(word).replace("RANK", str(rank)) for word in arguments]
        call = script(HERE / program, *words)
        started.append(Program(call, **where, **more, RANK=str(rank)))
    return started


def finish(processes: list[Program], timeout: float = 120) -> list[tuple[str, str]]:
    """(stdout, stderr) of each; none outlives the call."""
    try:
        return [process.communicate(timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
