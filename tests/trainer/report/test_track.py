"""`train track`: every line once, by W&B and MLflow themselves where they are installed."""

import json
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.core.errors import ConfigError, InputError
from trainer.report.track import STATE, TrackOptions, send_metrics
from trainer.runs import metrics, record

RUN = {"format": 1, "weights_seed": 3, "model": {"hidden_size": 8}, "datasets": [{"x": 1}]}


def write(model_dir: Path, steps: range, evaluated: tuple[int, ...] = ()) -> None:
    model_dir.mkdir(exist_ok=True)
    (model_dir / record.NAME).write_text(json.dumps(RUN))
    for step in steps:
        line = {"step": step, "loss": 9 - step / 10, "skipped": False, "sparsity": {"a": 0.5}}
        metrics.append_metrics(model_dir / metrics.TRAINING, line)
    for step in evaluated:
        metrics.append_metrics(model_dir / metrics.EVALUATION, {"step": step, "loss": 5.0})


class Recorder(ModuleType):
    """Stands for the package: what it is told."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802
        return settings

    def init(self, **options: Any) -> "Recorder":
        self.begun.append(options)
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        pass


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", recorder)
    return recorder


TO_WANDB = TrackOptions(to="wandb", offline=True)


def test_every_line_is_sent_once(tmp_path: Path, told: Recorder) -> None:
    out, said = tmp_path / "out", []
    write(out, range(1, 4), (2,))
    assert send_metrics(out, TO_WANDB, said.append) == 4
    numbers = {"train/sparsity/a": 0.5}
    assert told.logged == [
        (1, {"train/loss": 8.9, **numbers}),
        (2, {"train/loss": 8.8, **numbers}),
        (2, {"eval/loss": 5.0}),
        (3, {"train/loss": 8.7, **numbers}),
    ]
    assert said == ["wandb wafermill: 4 lines, up to step 3"]
    assert send_metrics(out, TO_WANDB, said.append) == 0
    write(out, range(4, 6), (4,))
    assert send_metrics(out, TO_WANDB, said.append) == 3
    assert [step for step, _ in told.logged[4:]] == [4, 4, 5]
    first, *others = told.begun
    assert first["mode"] == "offline"
    assert first["config"] == RUN
    assert all(other["id"] == first["id"] for other in others)


def test_a_line_that_is_being_written_waits(tmp_path: Path, told: Recorder) -> None:
    out = tmp_path / "out"
    write(out, range(1, 3))
    with open(out / metrics.TRAINING, "a") as file:
        file.write('{"step": 3, "lo')
    assert send_metrics(out, TO_WANDB, print) == 2


def test_errors_name_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="not a model directory"):
        send_metrics(tmp_path, TO_WANDB, print)
    out = tmp_path / "out"
    write(out, range(1, 3))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        send_metrics(out, TO_WANDB, print)
    monkeypatch.setitem(sys.modules, "wandb", Recorder())
    send_metrics(out, TO_WANDB, print)
    (out / record.NAME).write_text(json.dumps(RUN | {"weights_seed": 4}))
    with pytest.raises(InputError, match=STATE):
        send_metrics(out, TO_WANDB, print)


def records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: a log of LevelDB behind a head of seven bytes."""
    assert data[:4] == b":W&B"
    at, pieces = 7, b""
    while at + 7 <= len(data):
        if (1 << 15) - at % (1 << 15) < 7:
            at += (1 << 15) - at % (1 << 15)
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        pieces += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            yield pieces
            pieces = b""


@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_wandb_itself_reads_what_was_written(tmp_path: Path) -> None:
    if find_spec("wandb") is None:
        pytest.skip("needs the package wandb")
    from wandb.proto import wandb_internal_pb2

    out = tmp_path / "out"
    write(out, range(1, 30), (10, 20))
    assert send_metrics(out, TO_WANDB, print) == 31
    (file,) = out.glob("wandb/offline-run-*/*.wandb")
    losses = {}
    for data in records(file.read_bytes()):
        entry = wandb_internal_pb2.Record()
        entry.ParseFromString(data)
        items = {(i.key or "/".join(i.nested_key)): i.value_json for i in entry.history.item}
        if "train/loss" in items:
            losses[int(items["_step"])] = float(items["train/loss"])
    assert losses == {step: 9 - step / 10 for step in range(1, 30)}


@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_mlflow_itself_reads_what_was_written(tmp_path: Path) -> None:
    if find_spec("mlflow") is None or find_spec("sqlalchemy") is None:
        pytest.skip("needs the package mlflow")
    from mlflow.tracking import MlflowClient

    out, options = tmp_path / "out", TrackOptions(to="mlflow", project="mine", name="first")
    write(out, range(1, 20), (10,))
    assert send_metrics(out, options, print) == 20
    write(out, range(20, 25))
    assert send_metrics(out, options, print) == 5
    client = MlflowClient(tracking_uri=f"sqlite:///{out / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mine")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert {m.step: m.value for m in history} == {step: 9 - step / 10 for step in range(1, 25)}
    assert run.data.params["model.hidden_size"] == "8"
    assert run.info.run_name == "first"
