"""Killed, stopped and resumed training is bit-identical to unbroken training."""

import json
import os
import random
import signal
import time

import pytest

from pipeline.core.errors import ConfigError
from trainer.loop import run as trainer_run
from trainer.loop.loop import TrainingRun
from trainer.runs import record

KILLED = -signal.SIGKILL


def whole(trainer) -> tuple:
    """An undisturbed run, in a process of its own like the disturbed ones."""
    assert trainer.train_forked("whole", mode="train_and_eval") == 0
    return trainer.bits("whole")


@pytest.mark.crash
@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_a_fault_point_is_resumed_exactly(trainer, stride):
    """Every `stride`-th point from a rotating start; the first resume is killed too, and resumes
    change num_csx."""
    expected = whole(trainer)
    for number in range(1 + random.randrange(stride), 400, stride):
        out = f"killed{number}"
        status = trainer.train_forked(out, f"*@{number}=kill", mode="train_and_eval")
        if status == 0:
            break
        assert status == KILLED
        trainer.train_forked(out, f"*@{1 + number % 5}=kill", mode="train_and_eval", num_csx=3)
        assert trainer.train_forked(out, mode="train_and_eval", num_csx=1 + number % 4) == 0
        assert trainer.bits(out) == expected, f"fault point {number}"
    else:
        pytest.fail("the run has more fault points than the sweep covers")
    assert number > 40


@pytest.mark.crash
def test_two_resumes_in_a_row_and_a_torn_file(trainer):
    expected = whole(trainer)
    kill, torn = "storage.publish.renamed@9=kill", "storage.publish.start@4=torn:0.5"
    assert trainer.train_forked("out", kill, mode="train_and_eval") == KILLED
    assert trainer.train_forked("out", torn, mode="train_and_eval", num_csx=4) == KILLED
    assert trainer.train_forked("out", mode="train_and_eval", num_csx=1) == 0
    assert trainer.bits("out") == expected
    leftovers = [p.name for p in (trainer.root / "out").rglob(".tmp-*")]
    assert leftovers == []


@pytest.mark.crash
def test_a_kill_at_a_random_moment_is_resumed_exactly(trainer):
    """SIGKILL, then SIGTERM, of a process that trains, wherever they fall."""
    steps = 60
    params = trainer.configure(runconfig={"checkpoint_steps": 7, "log_steps": 1})
    trainer.train("whole", params=params, num_steps=steps)
    metrics = trainer.root / "out" / "metrics.jsonl"
    targets = sorted(random.sample(range(1, steps - 10), 2))
    for target, number in zip(targets, (signal.SIGKILL, signal.SIGTERM), strict=True):
        process = trainer.start("out", params=params, num_csx=3, num_steps=steps)
        while process.returncode is None and lines_of(metrics) < target:
            time.sleep(0.002)
        process.send_signal(number)
        assert process.wait() == (KILLED if number == signal.SIGKILL else 143)
    trainer.train("out", params=params, num_steps=steps)
    assert trainer.bits("out") == trainer.bits("whole")


def lines_of(path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_a_signal_finishes_the_leaf_and_writes_a_checkpoint(trainer, number, code):
    expected = whole(trainer)

    def say_and_signal(line: str) -> None:
        if "Step=4," in line:
            os.kill(os.getpid(), number)

    request = trainer.request("out", mode="train_and_eval")
    assert trainer_run.run_training(request, say_and_signal) == code
    assert (trainer.root / "out" / "checkpoints" / "step_0000004" / "manifest.json").is_file()
    assert trainer.train("out", mode="train_and_eval", num_csx=1) == 0
    assert trainer.bits("out") == expected


def test_a_signal_before_the_first_step_keeps_step_zero(trainer, monkeypatch):
    original = TrainingRun.run

    def run_stopped(self: TrainingRun) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "run", run_stopped)
        assert trainer.train("out") == 143
    assert (trainer.root / "out" / "checkpoints" / "step_0000000").is_dir()
    trainer.train("out")
    trainer.train("whole")
    assert trainer.bits("out") == trainer.bits("whole")


def test_running_a_finished_command_again_changes_nothing(trainer):
    trainer.train("out", mode="train_and_eval")
    before = trainer.bits("out")
    trainer.said.clear()
    assert trainer.train("out", mode="train_and_eval") == 0
    assert trainer.bits("out") == before
    assert any("already reached step 6" in line for line in trainer.said)


def test_more_steps_continue_the_same_run(trainer):
    trainer.train("out", num_steps=4)
    trainer.train("out", num_steps=6, num_csx=4)
    trainer.train("whole", num_steps=6)
    assert trainer.bits("out")[0] == trainer.bits("whole")[0]
    assert trainer.bits("out")[3] == trainer.bits("whole")[3]


def test_only_the_newest_checkpoints_stay(trainer):
    trainer.train("out", num_steps=9)
    kept = sorted(p.name for p in (trainer.root / "out" / "checkpoints").iterdir())
    assert kept == ["step_0000008", "step_0000009"]


def test_a_checkpoint_path_starts_another_directory(trainer):
    trainer.train("whole", num_steps=6)
    start = trainer.root / "whole" / "checkpoints" / "step_0000004"
    trainer.train("branch", num_steps=6, checkpoint_path=start)
    assert [line["step"] for line in trainer.metrics("branch")] == [5, 6]
    assert trainer.bits("branch")[3] == trainer.bits("whole")[3]
    with pytest.raises(ConfigError, match="step_0000006, newer than"):
        trainer.train("whole", num_steps=8, checkpoint_path=start)


@pytest.mark.parametrize(
    ("changes", "options", "field"),
    [
        ({}, {"seed": 6}, "seed was 5, now 6"),
        ({"train_input": {"batch_size": 8}}, {}, "batch_size_schedule.0.1 was 7, now 8"),
        ({"train_input": {"micro_batch_size": 1}}, {}, "micro_batch_size was 2, now 1"),
        ({"model": {"hidden_size": 32}}, {}, "model.hidden_size was 16, now 32"),
        ({"optimizer": {"weight_decay": 0.2}}, {}, "optimizer.weight_decay was 0.1, now 0.2"),
        ({"runconfig": {"threads": 2}}, {}, "threads was 1, now 2"),
    ],
    ids=["seed", "batch", "leaf", "model", "optimizer", "threads"],
)
def test_another_run_in_the_same_directory_is_refused_by_field(trainer, changes, options, field):
    trainer.train("out", num_steps=2)
    params = trainer.configure("other.yaml", **changes)
    with pytest.raises(ConfigError) as caught:
        trainer.train("out", params=params, **options)
    assert field in str(caught.value)


def test_other_data_in_the_same_directory_is_refused(trainer, make_split, make_rows):
    trainer.train("out", num_steps=2)
    make_split(trainer.root / "other" / "hdf5" / "train", make_rows(50, seed=3))
    with pytest.raises(ConfigError, match=r"datasets\.0\.dataset_hash was"):
        trainer.train("out", data=trainer.root / "other")


def test_a_record_of_a_release_with_fewer_config_keys_is_completed(trainer):
    trainer.train("out", num_steps=1)
    full = json.loads((trainer.root / "out" / "run.json").read_text())
    earlier = {**full, "optimizer": dict(full["optimizer"]), "model": dict(full["model"])}
    del earlier["optimizer"]["adjust_learning_rate"]
    del earlier["model"]["rope_theta"]
    assert record.complete_record(earlier) == full
