"""`--transport distributed`: a run as several processes, started by the command itself."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.programs import Program
from trainer import cli
from wafer_backend.transports import ranks as launch


def command(trainer, out: str, params: Path, *options: str) -> list[str]:
    return [
        "train", "CSX", "--params", str(params), "--data", str(trainer.data),
        "--model_dir", str(trainer.root / out), "--transport", "distributed", *options,
    ]  # fmt: skip


def start(line: list[str], forked: bool = False) -> Program:
    """The command. The ranks that it starts are fresh processes, or `forked` from its own."""

    def call() -> None:
        if forked:
            launch.subprocess = SimpleNamespace(Popen=rank)
        sys.argv = line
        cli.main()

    return Program(call, OMP_NUM_THREADS="1")


def rank(command: list[str], env: dict[str, str]) -> Program:
    """What `launch` asks subprocess.Popen for: a rank, which prints where its launcher does."""
    assert command[:3] == [sys.executable, "-m", "trainer.cli"]
    here = [os.dup(1), os.dup(2)]

    def call() -> None:
        for place, descriptor in enumerate(here, start=1):
            os.dup2(descriptor, place)
        sys.argv = command[2:]
        cli.main()

    return Program(call, **env)


def losses(trainer, out: str) -> list[str]:
    return [line["loss_hex"] for line in trainer.metrics(out)]


def wait_for_step(trainer, out: str, step: int) -> None:
    path = trainer.root / out / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and json.loads(lines[-1])["step"] >= step:
            return
        time.sleep(0.01)
    raise AssertionError(f"no step {step} within 90 s")


@pytest.mark.crash
def test_ranks_stop_and_resume_and_equal_one_process(trainer):
    """SIGTERM to the command ends all ranks after the same step; resumed, bits are those of one."""
    params = trainer.configure(
        runconfig={
            "processes": 2, "liveness": 20.0, "checkpoint_steps": 5, "eval_frequency": 8,
        },
        model={"dropout_rate": 0.1},
    )  # fmt: skip
    trainer.train("one", params=params, mode="train_and_eval", num_steps=16)
    line = command(
        trainer, "ranks", params, "--num_csx", "3", "--num_steps", "16", "-m", "train_and_eval"
    )
    process = start(line)
    wait_for_step(trainer, "ranks", 3)
    for each in psutil.Process(process.pid).children(recursive=True):
        every = each.net_connections("tcp")
        assert not [found.laddr for found in every if found.status == psutil.CONN_LISTEN]
    process.send_signal(signal.SIGTERM)
    assert process.wait() in (0, 143), process.out + process.err
    again = start(line, forked=True)
    assert again.wait() == 0, again.out + again.err
    assert trainer.bits("ranks") == trainer.bits("one")
    assert again.out.count("Training completed successfully!") == 1


@pytest.mark.crash
def test_a_lost_rank_is_replaced_by_a_smaller_cluster(trainer):
    params = trainer.configure(
        runconfig={
            "processes": 3, "liveness": 20.0, "checkpoint_steps": 5,
            "autorestart": {"max_num_restarts": 1, "min_num_csx": 1},
        }
    )  # fmt: skip
    trainer.train("one", params=params, num_steps=24)
    line = command(trainer, "ranks", params, "--num_csx", "3", "--num_steps", "24")
    process = start(line, forked=True)
    wait_for_step(trainer, "ranks", 7)
    ranks = psutil.Process(process.pid).children()
    assert len(ranks) == 3
    ranks[-1].kill()
    assert process.wait() == 0, process.out + process.err
    assert "restart 1 from the last checkpoint with num_csx 2" in process.out
    assert losses(trainer, "ranks") == losses(trainer, "one")
    assert {line["num_csx"] for line in trainer.metrics("ranks")} == {3, 2}


def test_ranks_are_for_csx(trainer):
    line = command(trainer, "out", trainer.configure())
    line[1] = "CPU"
    ended = start(line)
    assert ended.wait() == 2
    assert "runconfig.transport: distributed is for target CSX" in ended.err


def test_a_rank_set_for_something_else_silences_nobody(trainer, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    trainer.train("out", num_steps=2)
    assert [line["step"] for line in trainer.metrics("out")] == [1, 2]
    assert any(line.startswith("Saved checkpoint") for line in trainer.said)


def test_errors_that_all_ranks_would_meet_are_said_once(trainer):
    line = command(trainer, "out", trainer.configure(), "--num_csx", "2", "--num_steps", "2")
    place = line.index("--data")
    ended = start([*line[:place], *line[place + 2 :]])
    assert ended.wait() == 2
    assert ended.err.splitlines() == [
        "error: no data: give --data PREP_CONFIG_OR_DIR, or train_input.data_dir or mixture in "
        "the params file"
    ]


def test_an_error_of_a_rank_says_which(trainer):
    """The directory holds another run, which each rank finds by itself."""
    trainer.train("out", num_steps=2)
    other = trainer.configure(model={"hidden_size": 32})
    line = command(trainer, "out", other, "--num_csx", "2", "--num_steps", "2")
    ended = start(line, forked=True)
    assert ended.wait() == 2
    first, second = sorted(ended.err.splitlines(), key=len)
    assert "hidden_size" in first
    assert second == first.replace("error: ", "error: rank 1: ")
