"""The distributed transport in real processes: the bits of one, and no hang when a rank dies."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("rank_program.py")
ROOT = Path(__file__).parents[3]


def _command(*arguments: object) -> list[str]:
    return [sys.executable, str(PROGRAM), *map(str, arguments)]


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _inline(*arguments: object) -> str:
    done = subprocess.run(
        _command("inline", *arguments), env=_environment(), check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    return done.stdout


def _start(ranks: int, *arguments: object) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            _command("distributed", *arguments), env={**_environment(), **where, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def test_bits_are_those_of_one_process():
    """Three ranks with five wafers: a sharded MemoryX, then a user's script on outputs."""
    expected = _inline(1, 4, "both")
    for process in _start(3, 5, 4, "both"):
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert out == expected


@pytest.mark.crash
@pytest.mark.parametrize(
    ("killed", "how"),
    [
        (0, signal.SIGKILL),
        pytest.param(2, signal.SIGKILL, marks=pytest.mark.slow),
        (1, signal.SIGSTOP),
    ],
)
def test_a_lost_rank_ends_the_others_by_name(killed: int, how: signal.Signals):
    processes = _start(3, 3, 1_000_000, "train")
    victim, others = processes[killed], [p for p in processes if p is not processes[killed]]
    try:
        assert victim.stdout is not None
        for _ in range(3):
            assert victim.stdout.readline().startswith("loss ")
        victim.send_signal(how)
        ended = time.monotonic()
        for process in others:
            _, errors = process.communicate(timeout=60)
            assert process.returncode != 0
            assert "go on from the last checkpoint" in errors
        assert time.monotonic() - ended < 30
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_running_statistics_are_refused_by_name():
    ended = [process.communicate(timeout=60)[1] for process in _start(2, 2, 1, "buffers")]
    assert any("buffer 'running_mean' of BatchNorm1d changes in forward" in e for e in ended)


def test_a_program_that_is_no_rank_is_told_how_to_become_one():
    done = subprocess.run(
        _command("distributed", 2, 1, "train"), env=_environment(), capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "start this program with torchrun" in done.stderr
