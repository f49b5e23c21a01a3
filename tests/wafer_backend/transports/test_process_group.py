"""The distributed transport in real processes: the bits of one, and no hang when a rank dies."""

import signal
import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch

from tests.programs import Program, script
from tests.wafer_backend.transports.processes import HERE, finish, free_port, start
from wafer_backend.compiled import BackendConfig, wafer_device
from wafer_backend.errors import TransportError
from wafer_backend.transports import ranks

PROGRAM = "rank_program.py"


def _start(count: int, *arguments: object) -> list[Program]:
    return start(count, PROGRAM, "distributed", *arguments)


def _rows(processes: list[Program]) -> list[list[list[str]]]:
    """The words of every line of each."""
    said = finish(processes)
    assert not any(process.returncode for process in processes), said
    return [[line.split() for line in out.splitlines()] for out, _ in said]


def test_bits_are_those_of_one_process():
    """Three ranks with five wafers: a sharded MemoryX, which has room for all weights on every
    rank; a user's script on outputs; masks."""
    one = Program(script(HERE / PROGRAM, "inline", 1, 4, "both"))
    expected, errors = one.communicate()
    assert one.returncode == 0, errors
    assert (expected.count("weights "), expected.count("home ")) == (3, 4)
    elsewhere = [line for line in expected.splitlines() if not line.startswith("home ")]
    for rank, process in enumerate(_start(3, 5, 4, "both")):
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        assert out.splitlines() == (elsewhere if rank else expected.splitlines())


def test_ranks_whose_wafers_are_devices():
    """Weights of other ranks are staged too, in half precision, and copied ahead."""
    (alone,) = _rows([Program(script(HERE / PROGRAM, "inline", 1, 3, "streams"))])
    first, second = _rows(_start(2, 3, 3, "streams"))
    assert first == alone
    assert second == [row for row in alone if row[0] != "home"]


@pytest.mark.parametrize(("where", "gpu"), [({"LOCAL_RANK": "3"}, 1), ({}, 0)])
def test_ranks_of_one_machine_take_its_gpus_in_turn(
    monkeypatch: pytest.MonkeyPatch, where: dict[str, str], gpu: int
):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    config = BackendConfig(target="CSX", micro_batch_size=1, device="cuda", transport="distributed")
    assert wafer_device(config) == torch.device("cuda", gpu)
    assert wafer_device(replace(config, transport="inline")) == torch.device("cuda", 0)


def test_optimizer_state_is_spread_over_ranks_and_visits_rank_0():
    """Each rank keeps that of its own weights; all of it is on rank 0 only to be saved."""
    (alone,) = _rows([Program(script(HERE / PROGRAM, "inline", 1, 5, "shares"))])
    first, second = _rows(_start(2, 2, 5, "shares"))
    assert [row[0] for row in first] == [row[0] for row in second] == [row[0] for row in alone]
    for (what, *every), (_, *here), (_, *there) in zip(alone, first, second, strict=True):
        assert here == every if what == "home" else not set(here) & set(there)
        assert set(here) | set(there) == set(every)
        assert 0 < len(there) < len(every)


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
            assert "resume from the last checkpoint" in errors, (process.returncode, errors)
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
    with pytest.raises(TransportError, match="rank 0 could not connect to the other 2: "):
        ranks.join([], liveness=1.0)
    assert not torch.distributed.is_initialized()


def test_a_program_that_is_no_rank_is_told_how_to_become_one():
    alone = Program(script(HERE / PROGRAM, "distributed", 2, 1, "train"))
    assert alone.wait() != 0
    assert "start this program with torchrun" in alone.err
