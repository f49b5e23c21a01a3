"""How long a run is: steps, passes over the data, batch-size steps, mixtures; resumed exactly."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError
from pipeline.core.order import samples_before_step
from tests.slow import mark_slow
from trainer.config import RunConfig
from trainer.loop.options import last_step
from trainer.runs import checkpoint

SCHEDULE = {
    "batch_size_schedule": [{"from_step": 1, "batch_size": 7}, {"from_step": 4, "batch_size": 12}]
}


@given(epochs=st.integers(1, 5), rows=st.integers(1, 500), sizes=st.lists(st.integers(1, 60),
       min_size=1, max_size=4), gap=st.integers(1, 9))  # fmt: skip
def test_an_epoch_ends_with_the_step_that_reads_its_last_sample(epochs, rows, sizes, gap):
    schedule = tuple((1 + i * gap, size) for i, size in enumerate(sizes))
    found = last_step(RunConfig(num_epochs=epochs), rows, schedule)
    assert samples_before_step(found, schedule) < epochs * rows
    assert samples_before_step(found + 1, schedule) >= epochs * rows


def test_epochs_steps_and_the_file(trainer):
    params = trainer.configure(runconfig={"max_steps": 3})
    trainer.train("epoch", params=params, num_steps=None, num_epochs=1)
    assert len(trainer.metrics("epoch")) == 8
    trainer.train("file", params=params, num_steps=None)
    assert len(trainer.metrics("file")) == 3
    trainer.train("more", params=params, num_steps=None, max_steps=5)
    assert len(trainer.metrics("more")) == 5
    nothing = trainer.configure("nothing.yaml")
    with pytest.raises(ConfigError, match="no length: give --num_steps"):
        trainer.train("none", params=nothing, num_steps=None)


def test_every_checkpoint_is_evaluated_in_order(trainer):
    params = trainer.configure(runconfig={"max_checkpoints": 9, "eval_frequency": 2})
    trainer.train("out", params=params, mode="train_and_eval", num_steps=7)
    path = trainer.root / "out" / "eval.jsonl"
    during = path.read_text()
    path.unlink()
    assert trainer.train("out", params=params, mode="eval_all") == 0
    assert path.read_text() == during
    assert during.count("\n") == 4


def test_evaluations_of_later_steps_are_cut_back_wherever_they_stand(trainer):
    params = trainer.configure(runconfig={"max_checkpoints": 9})
    trainer.train("out", params=params, mode="train_and_eval")
    path = trainer.root / "out" / "eval.jsonl"
    before = path.read_text().splitlines()
    path.write_text("\n".join([*before, before[0]]) + "\n")
    last = trainer.root / "out" / "checkpoints" / "step_0000006"
    (last / "manifest.json").unlink()
    trainer.train("out", params=params, mode="train_and_eval")
    assert path.read_text().splitlines() == [before[0], before[0], before[1]]


@pytest.mark.crash
@pytest.mark.parametrize("number", mark_slow([16, 25, 34], 16, 34))
def test_killed_across_the_batch_size_step_and_the_end_of_an_epoch(trainer, number):
    """Steps 1 to 3 read 7 rows, later ones 12, of 50: step 6 crosses into the second epoch."""
    params = trainer.configure(train_input=SCHEDULE)
    options = {"params": params, "num_steps": 8, "mode": "train_and_eval"}
    assert trainer.train_forked("whole", **options) == 0
    assert trainer.train_forked("out", f"*@{number}=kill", **options) == -signal.SIGKILL
    assert trainer.train_forked("out", num_csx=4, **options) == 0
    assert trainer.bits("out") == trainer.bits("whole")
    newest = checkpoint.find_newest(trainer.root / "out")
    assert newest is not None
    state = checkpoint.open_checkpoint(newest).state
    assert state["samples_consumed"] == 3 * 7 + 5 * 12
    assert state["batch_size_schedule"] == [[1, 7], [4, 12]]


@pytest.mark.crash
def test_a_mixture_is_resumed_exactly_and_another_weight_is_refused(trainer, make_split, make_rows):
    make_split(trainer.root / "two", make_rows(30, seed=8))
    parts = [
        {"data_dir": str(trainer.data / "hdf5" / "train"), "weight": 0.5},
        {"data_dir": str(trainer.root / "two"), "weight": 2.0},
    ]
    params = trainer.configure(train_input={"mixture": parts})
    options = {"params": params, "num_steps": 14, "data": None}
    assert trainer.train_forked("whole", **options) == 0
    assert trainer.train_forked("out", "*@40=kill", **options) == -signal.SIGKILL
    assert trainer.train_forked("out", num_csx=3, **options) == 0
    assert trainer.bits("out") == trainer.bits("whole")
    parts[1]["weight"] = 1.0
    params = trainer.configure("other.yaml", train_input={"mixture": parts})
    with pytest.raises(ConfigError, match=r"datasets\.1\.rows_per_epoch was 60, now 30"):
        trainer.train("out", **{**options, "params": params})
