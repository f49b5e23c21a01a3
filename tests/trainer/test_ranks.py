"""`--transport distributed`: a run as several processes, started by the command itself."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


def command(trainer, out: str, params: Path, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "trainer.cli", "CSX", "--params", str(params), "--data",
        str(trainer.data), "--model_dir", str(trainer.root / out), "--transport", "distributed",
        *options,
    ]  # fmt: skip


def start(line: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def losses(trainer, out: str) -> list[str]:
    return [line["loss_hex"] for line in trainer.metrics(out)]


def wait_for_step(trainer, out: str, step: int) -> None:
    path = trainer.root / out / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and json.loads(lines[-1])["step"] >= step:
            return
        time.sleep(0.05)
    raise AssertionError(f"no step {step} within 90 s")


@pytest.mark.crash
def test_ranks_stop_and_resume_and_equal_one_process(trainer):
    """SIGTERM to the command ends all ranks after the same step; resumed, bits are those of one."""
    params = trainer.configure(
        runconfig={"processes": 2, "liveness": 10.0}, model={"dropout_rate": 0.1}
    )
    trainer.train("one", params=params, mode="train_and_eval", num_steps=40)
    line = command(
        trainer, "ranks", params, "--num_csx", "3", "--num_steps", "40", "-m", "train_and_eval"
    )
    process = start(line)
    wait_for_step(trainer, "ranks", 3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=90)
    assert process.returncode in (0, 143), out
    again = subprocess.run(line, check=False, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stdout + again.stderr
    assert trainer.bits("ranks") == trainer.bits("one")
    assert again.stdout.count("Training completed successfully!") == 1


@pytest.mark.crash
def test_a_lost_rank_is_replaced_by_a_smaller_cluster(trainer):
    params = trainer.configure(
        runconfig={
            "processes": 3, "liveness": 3.0, "checkpoint_steps": 5,
            "autorestart": {"max_num_restarts": 1, "min_num_csx": 1},
        }
    )  # fmt: skip
    trainer.train("one", params=params, num_steps=60)
    line = command(trainer, "ranks", params, "--num_csx", "3", "--num_steps", "60")
    process = start(line)
    wait_for_step(trainer, "ranks", 7)
    ranks = psutil.Process(process.pid).children()
    assert len(ranks) == 3
    ranks[-1].kill()
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert "restart 1 from the last checkpoint with num_csx 2" in out
    assert losses(trainer, "ranks") == losses(trainer, "one")
    assert {line["num_csx"] for line in trainer.metrics("ranks")} == {3, 2}


def test_ranks_are_for_csx(trainer):
    line = command(trainer, "out", trainer.configure())
    line[3] = "CPU"
    ended = subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "runconfig.transport: distributed is for target CSX" in ended.stderr


def test_a_rank_set_for_something_else_silences_nobody(trainer, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    trainer.train("out", num_steps=2)
    assert [line["step"] for line in trainer.metrics("out")] == [1, 2]
    assert any(line.startswith("Saved checkpoint") for line in trainer.said)
