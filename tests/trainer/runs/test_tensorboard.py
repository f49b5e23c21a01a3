"""Events for TensorBoard: the numbers of metrics.jsonl, once for every step, also after kills."""

import importlib.util
from pathlib import Path

import pytest

from pipeline.core.errors import ResourceError
from tests.slow import mark_slow
from trainer.runs import metrics
from wafer_backend.utils.tensorboard import SummaryReader


def shown(directory: Path, tag: str) -> dict[int, float]:
    """What TensorBoard shows: event files in order, points purged where a later start says so."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    from wafer_backend.utils.tensorboard import _records

    points: dict[int, list[float]] = {}
    for path in sorted(directory.glob("*tfevents*"), key=lambda p: p.stat().st_mtime_ns):
        for record in _records(path):
            event = Event.FromString(record)
            if event.session_log.status == SessionLog.START:
                points = {step: v for step, v in points.items() if step < event.step}
            for value in event.summary.value:
                if value.tag == tag:
                    points.setdefault(event.step, []).append(value.simple_value)
    assert all(len(values) == 1 for values in points.values()), "a step has two points"
    return {step: values[0] for step, values in points.items()}


def test_scalars_are_those_of_the_metrics(trainer):
    trainer.train("out", mode="train_and_eval")
    out = trainer.root / "out"
    reader = SummaryReader(out / "train")
    assert set(reader.scalar_names()) == {
        "loss", "grad_norm", "learning_rate", "local_samples_per_sec", "avg_samples_per_sec",
        "stall_share",
    }  # fmt: skip
    lines = trainer.metrics("out")
    for name in ("loss", "grad_norm", "learning_rate"):
        found = [(s.step, s.value) for s in reader.read_scalar(name)]
        assert found == [(m["step"], pytest.approx(m[name], rel=1e-6)) for m in lines]
    assert [s.step for s in SummaryReader(out / "eval").read_scalar("loss")] == [3, 6]


def test_log_steps_thin_out_the_events(trainer):
    params = trainer.configure(runconfig={"log_steps": 3})
    trainer.train("out", params=params)
    assert list(shown(trainer.root / "out" / "train", "loss")) == [1, 3, 6]


@pytest.mark.crash
@pytest.mark.parametrize("number", mark_slow([9, 17, 26], 9, 26))
def test_no_step_has_two_points_after_a_kill(trainer, number):
    assert trainer.train_forked("whole", mode="train_and_eval") == 0
    assert trainer.train_forked("out", f"*@{number}=kill", mode="train_and_eval") != 0
    trainer.train_forked("out", f"*@{number - 3}=kill", mode="train_and_eval")
    assert trainer.train_forked("out", mode="train_and_eval") == 0
    for part in ("train", "eval"):
        whole = shown(trainer.root / "whole" / part, "loss")
        assert shown(trainer.root / "out" / part, "loss") == whole
        assert list(whole) == ([1, 2, 3, 4, 5, 6] if part == "train" else [3, 6])


def test_without_tensorboardx_training_says_so_once(trainer, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *m: None if n == "tensorboardX" else find(n, *m)
    )
    trainer.train("out", mode="train_and_eval")
    assert trainer.said.count(metrics.TENSORBOARD_MISSING) == 1
    assert not (trainer.root / "out" / "train").exists()
    assert not (trainer.root / "out" / "eval").exists()


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    events = metrics.Events(tmp_path / "train")
    events.add(1, {"loss": 1.0, "grad_norm": None})

    def full(event):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(events._writer, "write_event", full)
    with pytest.raises(ResourceError, match="train: cannot write: No space left"):
        events.add(2, {"loss": 1.0})
    events.close()
    events.close()
