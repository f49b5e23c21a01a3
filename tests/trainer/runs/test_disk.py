"""Room on the disk is checked before step 1."""

import shutil
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import ResourceError
from trainer.config import RunConfig, load_params
from trainer.loop import build
from trainer.runs import checkpoint


def test_too_little_room_is_said_before_anything_is_written(trainer, monkeypatch):
    free = 6_000_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    trainer.train("fits", num_steps=6)
    free = 4_220_000
    with pytest.raises(ResourceError) as caught:
        trainer.train("out", num_steps=6)
    message = str(caught.value)
    assert str(trainer.root / "out") in message
    assert "3 more checkpoints of" in message
    assert "4.2 MB is free" in message
    assert "max_checkpoints" in message
    assert not (trainer.root / "out" / "run.json").exists()
    assert not (trainer.root / "out" / "metrics.jsonl").exists()


def test_the_estimate_holds_for_a_real_run(trainer):
    trainer.train("out", num_steps=6)
    (newest, *_) = reversed(checkpoint.list_committed(trainer.root / "out"))
    actual = sum(path.stat().st_size for path in newest.iterdir())
    logs = sum(
        path.stat().st_size
        for path in (trainer.root / "out").rglob("*")
        if path.is_file() and "checkpoints" not in path.parts
    )
    said = next(line for line in trainer.said if line.startswith("Checkpoints: "))
    estimate = float(said.split()[1]) * 1000
    assert "kB each" in said
    assert actual <= estimate <= 2 * actual
    assert logs < build.measure_need(RunConfig(max_steps=6), 1, 0, 0).logs


@pytest.mark.parametrize("every", [None, 1])
def test_logs_grow_no_faster_than_estimated(trainer, every):
    """Of files that grow with every step; the report, which is capped, is in the margin."""
    model = {"mixed_precision": True, "fp16_type": "bfloat16", "nonlinearity": "swiglu"}
    params = trainer.configure(runconfig={"stability": {"every": every}}, model=model)
    written, estimated = [], []
    for steps in (2, 6):
        trainer.train(f"out{steps}", params=params, num_steps=steps)
        run = load_params(params).runconfig.model_copy(update={"max_steps": steps, "num_csx": 2})
        estimated.append(build.measure_need(run, 1, 0, 0).logs)
        written.append(
            sum(
                path.stat().st_size
                for path in (trainer.root / f"out{steps}").rglob("*")
                if path.suffix in (".jsonl", ".log") or "tfevents" in path.name
                if not path.is_symlink()
            )
        )
    grown, expected = written[1] - written[0], estimated[1] - estimated[0]
    assert expected / 3 < grown < expected


@given(
    last=st.integers(1, 60),
    every=st.integers(0, 20),
    keep=st.integers(1, 4),
    start=st.integers(0, 60),
    standing=st.integers(0, 4),
)
def test_the_number_of_checkpoints_is_that_of_a_run(last, every, keep, start, standing):
    """Against counting: write one, then delete the oldest beyond `keep`."""
    run = RunConfig(max_steps=last, checkpoint_steps=every, max_checkpoints=keep)
    there = most = min(standing, keep)
    for step in range(start + 1, last + 1):
        if step == last or (every and step % every == 0):
            there += 1
            most = max(most, there)
            there = min(there, keep)
    wanted = build.measure_need(run, 10, start, min(standing, keep))
    assert wanted.checkpoints == most - min(standing, keep)


def test_a_run_of_any_length_is_measured_at_once():
    def listed(run, step):
        last, every = run.max_steps, run.checkpoint_steps
        return {*range(step + every - step % every, last, every), last} if step < last else set()

    for last in range(1, 14):
        for every in range(1, 15):
            run = RunConfig(max_steps=last, checkpoint_steps=every, max_checkpoints=10**6)
            for step in range(1, last + 2):
                due = build.measure_need(run, 1, step, 0).checkpoints
                assert due == len(listed(run, step)), (last, every, step)
    run = RunConfig(max_steps=1 << 31, checkpoint_steps=5)
    assert build.measure_need(run, 1, 0, 0).total > 1 << 31
