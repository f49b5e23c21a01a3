"""The distributed transport in real processes: the bits of one, and no hang when a rank dies."""

import signal
import time
from datetime import timedelta

import pytest
import torch

from tests.programs import Program, script
from tests.wafer_backend.transports.processes import HERE, free_port, start
from wafer_backend.errors import TransportError
from wafer_backend.transports import ranks

PROGRAM = "rank_program.py"


def _start(count: int, *arguments: object) -> list[Program]:
    return start(count, PROGRAM, "distributed", *arguments)


def test_bits_are_those_of_one_process():
    """Three ranks with five wafers: a sharded MemoryX, a user's script on outputs, masks."""
    one = Program(script(HERE / PROGRAM, "inline", 1, 4, "both"))
    expected, errors = one.communicate()
    assert one.returncode == 0, errors
    assert expected.count("weights ") == 3
    for process in _start(3, 5, 4, "both"):
        out, errors = process.communicate()
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
        victim.wait_for_line("loss ", count=3)
        victim.send_signal(how)
        ended = time.monotonic()
        for process in others:
            _, errors = process.communicate(timeout=60)
            assert process.returncode != 0
            assert "go on from the last checkpoint" in errors, (process.returncode, errors)
        assert time.monotonic() - ended < 30
    finally:
        for process in processes:
            process.kill()


def test_running_statistics_are_refused_by_name():
    ended = [process.communicate(timeout=60)[1] for process in _start(2, 2, 1, "buffers")]
    assert any("buffer 'running_mean' of BatchNorm1d changes in forward" in e for e in ended)


def test_ranks_that_never_come_are_missed_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks, "MEETING", timedelta(seconds=1))
    where = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TransportError, match="rank 0 did not meet the other 2: "):
        ranks.join([], liveness=1.0)
    assert not torch.distributed.is_initialized()


def test_a_program_that_is_no_rank_is_told_how_to_become_one():
    alone = Program(script(HERE / PROGRAM, "distributed", 2, 1, "train"))
    assert alone.wait() != 0
    assert "start this program with torchrun" in alone.err
